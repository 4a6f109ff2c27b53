"""The promise ``node-agrees``: Toril replies as BullMQ 5.62.0 does, and leaves the same keys.

Sequences of operations are executed by both and compared whole; mistakes made in the scripts show that a
difference would be seen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from hypothesis import given, seed, settings

from tests.conformance import operations as ops
from tests.conformance.agreeing import (
    ENOUGH,
    Sides,
    check,
    differ,
    make,
    open_sides,
    read_mistakes,
    scaled,
    sequence,
    without_lossy_drains,
)
from tests.conformance.dump import differences, normalise
from tests.conformance.intents import KINDS
from tests.conformance.operations import Add, Drain, Fetch, Operation
from tests.conformance.replies import reply_difference
from tests.conformance.sides import compare, locate
from tests.conformance.strategies import sequences
from tests.conftest import SEED
from tests.matrix import BINARIES, PRODUCTS
from toril.testing import Server, cluster, standalone

on_shared_sides = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of its own: these tests wipe databases."""
    with standalone({"databases": 8}) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sides(server: Server) -> AsyncIterator[Sides]:
    async with open_sides(server) as made:
        yield made


# ---------------------------------------------------------------------- the same, whatever is done


@on_shared_sides
@pytest.mark.parametrize("without", ["mass", "schedulers", "nothing"])
async def test_node_agrees_after_random_sequences(sides: Sides, rng: random.Random, without: str) -> None:
    left_out = frozenset({without} & KINDS.keys())
    for number in range(scaled(450)):
        await check(*sides, sequence(rng, left_out), f"sequence {number}")


def test_node_agrees_after_drawn_sequences(server: Server) -> None:
    with asyncio.Runner() as runner:
        context = open_sides(server, dbs=(2, 3))
        node, toril = runner.run(context.__aenter__())
        try:

            @seed(SEED)
            @settings(
                max_examples=scaled(250),
                database=None,
            )
            @given(sequences())
            def agree(operations: list[Operation]) -> None:
                found = runner.run(differ(node, toril, operations))
                assert not found, "\n".join(runner.run(locate(node, toril, operations)) or found)

            agree()
        finally:
            runner.run(context.__aexit__(None, None, None))


async def test_node_agrees_on_a_cluster_of_three_masters(rng: random.Random) -> None:
    with cluster(masters=3, replicas=0) as nodes:
        prefixes = ("{b}", "{c}", "{e}")
        assert len({nodes.primary_of(prefix).pid for prefix in prefixes}) == 3
        for prefix in prefixes:
            async with open_sides(nodes, dbs=(0, 0), prefixes=("{a}", prefix)) as (node, toril):
                for number in range(scaled(100)):
                    await check(node, toril, sequence(rng), f"sequence {number} below {prefix}")


@pytest.mark.parametrize("product", PRODUCTS)
async def test_node_agrees_on_each_product(product: str, rng: random.Random) -> None:
    with standalone(binary=BINARIES[product]) as server:
        async with open_sides(server) as (node, toril):
            for number in range(scaled(150)):
                await check(node, toril, sequence(rng), f"sequence {number}")


@on_shared_sides
async def test_node_agrees_but_for_drains_that_lose_a_job(sides: Sides) -> None:
    """The one deviation that is meant."""
    node, toril = sides
    scheduler = ops.UpsertJobScheduler(scheduler="s1", repeat=ops.Repeat(every=1000))
    operations = [Add(), scheduler, Add(), Drain(), Fetch(token="t1")]
    assert await compare(node, toril, operations)
    assert await without_lossy_drains(node, operations) == [*operations[:3], operations[4]]
    assert not await differ(node, toril, operations)
    lost, kept = [(await side.run(operations))[-1]["ok"]["job"] for side in sides]
    assert "timestamp" not in lost or "repeatJobKey" not in lost, "BullMQ has mended it"
    assert kept["repeatJobKey"] == "s1"


@on_shared_sides
@pytest.mark.parametrize("second", [ops.JobOptions(), ops.JobOptions(priority=1)])
async def test_node_agrees_on_markers_of_bullmq_4(sides: Sides, second: ops.JobOptions) -> None:
    """They may stand in ``wait`` of a queue that was made by an older version; they are no jobs."""
    replies = []
    for side in sides:
        await side.run([Add(), Add(opts=second)])
        side.store.ask("RPUSH", side.store.key("q", "wait"), "0:1700000000000")
        replies.append(await side.execute(Fetch(token="t1")))
    assert not reply_difference(*replies)
    assert not differences(*[normalise(await side.dump()) for side in sides])


# ---------------------------------------------------------------------- no difference goes unseen

MISTAKES = """
a delayed score in milliseconds
  - lowest, highest = due * DELAY_STEP,
  + lowest, highest = due,
no order within a millisecond
  - math.min(tonumber(last[2]) + 1, highest)
  + lowest
added at the wrong end
  - call('LPUSH', here.list, ...)
  + call('RPUSH', here.list, ...)
handed back at the wrong end
  - push(q, at.list, at.blocked, job.id, 'RPUSH')
  + push(q, at.list, at.blocked, job.id, 'LPUSH')
stalled, and put back at the wrong end
  - push(q, at.list, at.blocked, id, 'RPUSH')
  - event(q, 'waiting', 'jobId', id, 'prev', 'active')
  + push(q, at.list, at.blocked, id, 'LPUSH')
  + event(q, 'waiting', 'jobId', id, 'prev', 'active')
the priority counter ignored
  - priority * PRIORITY_STEP + turn
  + priority * PRIORITY_STEP
the priority counter never reset
  - call('DEL', q .. 'pc')
no marker
  - call('ZADD', q .. 'marker', 0, '0')
no marker for delayed jobs
  - call('ZADD', q .. 'marker', due, '1')
a marker although the queue is blocked
  - if not blocked then
  + if true then
the lock not released
  - call('DEL', ...)
the lock of another released
  - return locks[id] and -6 or -2
  + return 0
the lock not renewed
  - call('SET', lock, token, 'PX', ARGV[1])
still suspected after a finish
  - call('SREM', q .. 'stalled', ...)
the stalled count not raised
  - call('HINCRBY', key, 'stc', 1)
  + 1
allowed to stall once more
  - times > allowed
  + times > allowed + 1
attemptsMade written at the finish
  - call('HSET', key, 'atm', made, value, job.value, 'finishedOn', now)
  + call('HSET', key, 'atm', made, value, job.value, 'finishedOn', now, 'attemptsMade', made)
an attempt not counted when it is retried
  - call('HINCRBY', key, 'atm', 1)
  - event_and_trim(q, 'waiting'
  + event_and_trim(q, 'waiting'
a start not counted
  - call('HSET', key, 'processedOn', now, 'ats', runs)
  + call('HSET', key, 'processedOn', now)
a deferred failure kept after it
  - call('HDEL', key, 'defa')
no active event
  - event(q, 'active', 'jobId', id, 'prev', 'waiting')
no stalled event
  - event(q, 'stalled', 'jobId', id)
no drained event
  - event(q, 'drained')
no event for the last attempt
  - made >= job.attempts
  + made > job.attempts
the end told before its parent's start
  - if own[4] then
  - end_dedup(q, own[4], id)
  + event(q, job.target, 'jobId', id)
  + if own[4] then
  + end_dedup(q, own[4], id)
the parent not released
  - call('HSET', parent_key .. ':processed', child, result)
  - start_parent_if_free(pq, parent_key, parent_id, now)
  + call('HSET', parent_key .. ':processed', child, result)
the parent released too early
  - if call('SCARD', key .. ':dependencies') == 0 then
  - start_waiting_parent
  + if true then
  + start_waiting_parent
the parent not failed
  - fail_parent(pq, key, id, child, now)
  - elseif
  + start_waiting_parent(pq, key, id, now)
  + elseif
an ignored failure not noted
  - if link['idof'] then
  + if false then
a child that its parent does not wait for
  - call('SADD', more.parentKey .. ':dependencies', key)
the deduplication key kept at the finish
  - end_dedup(q, own[4], id)
the deduplication key kept at the removal
  - if dedup_id and call('GET', q .. 'de:' .. dedup_id) == id then
  + if false then
a deduplication time not extended
  - call('SET', key, owner, 'PX', ttl)
the delay kept when it is over
  - call('HSET', q .. id, 'delay', 0)
  - end
  - mark(q, at.blocked)
  + end
  + mark(q, at.blocked)
the delay kept by a promotion
  - call('HSET', q .. id, 'delay', 0)
  - return 0
  + return 0
retention off by one
  - call('ZCARD', set) - count
  + call('ZCARD', set) - count - 1
an age that spares the edge
  - now - age * 1000, 'LIMIT'
  + now - age * 1000 - 1, 'LIMIT'
metrics off by one
  - call('HINCRBY', key, 'count', 1) - 1
  + call('HINCRBY', key, 'count', 1)
a minute too many kept
  - ':data', 0, points - 1)
  + ':data', 0, points)
the limiter never counted
  - if max and call('INCRBY', q .. 'limiter', #ids) == #ids then
  + if false then
the limiter off by one
  - if started < max then
  + if started <= max then
global concurrency off by one
  - found.blocked = call('LLEN', q .. 'active') >= found.concurrency
  + found.blocked = call('LLEN', q .. 'active') > found.concurrency
a pause that leaves the jobs in wait
  - call('RENAME', from, to)
  + call('COPY', from, to)
a priority's field not written
  - call('HSET', q .. id, 'priority', priority)
a delay counted from the job's beginning
  - local score, due = delayed_score(q, tonumber(ARGV[2]), wait_ms)
  + local score, due = delayed_score(q, tonumber(call('HGET', q .. id, 'timestamp')), wait_ms)
a job run again that still has its end
  - call('HDEL', key, 'finishedOn', 'processedOn', state
  + call('HDEL', key, 'processedOn', state
a removed job's log kept
  - key .. ':logs',
  - key .. ':dependencies',
  + key .. ':dependencies',
a scheduler's next run not linked
  - call('HSET', q .. producer, 'nrjid', id)
a scheduler's late run at no slot
  - math.floor(now / every) * every + every + offset
  + now + every
"""
"""What could be wrong in the scripts: lines that stand there once, and what they would be."""


MUTATIONS = read_mistakes(MISTAKES)


class Trials:
    """One row of sequences for all mistakes; the true scripts pass as many of them as any was shown.

    Not by the session's seed: whether a mistake is found in so many is a fact about the suite, not luck.
    """

    def __init__(self) -> None:
        self._chance = random.Random("mistakes")
        self._made: list[list[Operation]] = []
        self._passed = 0

    def __getitem__(self, number: int) -> list[Operation]:
        while len(self._made) <= number:
            self._made.append(sequence(self._chance))
        return self._made[number]

    async def passed(self, number: int, sides: Sides) -> None:
        """Show that nothing is found up to this one where there is no mistake."""
        while self._passed <= number:
            await check(*sides, self[self._passed], f"trial {self._passed}, with the true scripts")
            self._passed += 1


@pytest.fixture(scope="module")
def trials() -> Trials:
    return Trials()


@on_shared_sides
@pytest.mark.parametrize("mistake", MUTATIONS)
async def test_node_agrees_with_no_mistaken_script(
    mistake: str, sides: Sides, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(MUTATIONS[mistake], monkeypatch)
    needed = 0
    while not await differ(*sides, trials[needed]):
        needed += 1
        assert needed < ENOUGH, f"{ENOUGH} sequences did not find it"
    print(f"sequences needed: {needed + 1}")
    monkeypatch.undo()
    await trials.passed(needed, sides)
