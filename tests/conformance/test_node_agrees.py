"""The promise ``node-agrees``: Toril replies as BullMQ 5.62.0 does, and leaves the same keys.

Thousands of sequences are executed by both and compared whole; mistakes made in the scripts show that a
difference would be seen; and batches, which Node does not have, are shown to be their parts.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, seed, settings

from tests.conformance import operations as ops
from tests.conformance.dump import Dump, Key, differences, normalise
from tests.conformance.intents import CHILD, KINDS, OWN, SHAPES, new_job
from tests.conformance.operations import Add, Advance, Drain, Fetch, Operation
from tests.conformance.oracle import NodeOracle
from tests.conformance.replies import reply_difference
from tests.conformance.sides import NodeSide, compare, locate
from tests.conformance.store import Store
from tests.conformance.strategies import NOTHING_LEFT_OUT, random_sequence, sequences, shortest
from tests.conformance.toril_side import TorilSide, open_toril
from tests.conftest import SCALE, SEED
from toril import InvalidValue
from toril.connection import Script
from toril.queue import (
    AddJob,
    Deduplication,
    JobOptions,
    KeepJobs,
    Parent,
    ParentMissing,
    ParentTaken,
    QueueError,
)
from toril.queue import store as store_module
from toril.queue.outcomes import Completed, Delayed, Failed, HandedBack, Outcome, Retried
from toril.queue.store import NewJob, TakeOptions
from toril.testing import Cluster, Server, cluster, standalone

Sides = tuple[NodeSide, TorilSide]
Twins = tuple[TorilSide, TorilSide]

on_shared_sides = pytest.mark.asyncio(loop_scope="module")


def scaled(number: int) -> int:
    """So many at scale 1."""
    return max(1, int(number * SCALE))


# ---------------------------------------------------------------------- the sides


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of its own: these tests wipe databases."""
    with standalone({"databases": 8}) as made:
        yield made


@asynccontextmanager
async def open_sides(
    server: Server | Cluster, *, dbs: tuple[int, int] = (0, 1), prefixes: tuple[str, str] = ("bull", "bull")
) -> AsyncIterator[Sides]:
    """Node and Toril, each in a database (or below a prefix) of its own, with a Node process each."""
    async with NodeOracle() as truth, NodeOracle() as beside:
        node = await NodeSide.open(truth, server, db=dbs[0], prefix=prefixes[0])
        try:
            async with open_toril(beside, server, db=dbs[1], prefix=prefixes[1]) as toril:
                yield node, toril
        finally:
            await node.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sides(server: Server) -> AsyncIterator[Sides]:
    async with open_sides(server) as made:
        yield made


async def differ(node: NodeSide, toril: TorilSide, operations: Sequence[Operation]) -> list[str]:
    """How the sides differ after a sequence, apart from the one thing that Toril means to do otherwise."""
    found = await compare(node, toril, operations)
    if found:
        kept = await without_lossy_drains(node, operations)
        if len(kept) < len(operations):
            found = await compare(node, toril, kept)
    return found


async def without_lossy_drains(node: NodeSide, operations: Sequence[Operation]) -> list[Operation]:
    """Leave out the drains that meet a scheduler's job in ``wait``: BullMQ loses it (FINDINGS, 10)."""
    kept: list[Operation] = []
    await node.reset()
    for operation in operations:
        if isinstance(operation, Drain) and _scheduled_waits(node.store, operation.queue):
            continue
        await node.execute(operation)
        kept.append(operation)
    return kept


def _scheduled_waits(store: Store, queue: str) -> bool:
    lists = [store.ask("LRANGE", store.key(queue, name), 0, -1) for name in ("wait", "paused")]
    return any(job.startswith(b"repeat:") for ids in lists for job in ids)


async def check(node: NodeSide, toril: TorilSide, operations: Sequence[Operation], what: str) -> None:
    """Fail with the shortest sequence, and where it goes wrong, unless the sides agree."""
    if not await differ(node, toril, operations):
        return
    small = await shortest(operations, lambda some: differ(node, toril, some))
    small = await without_lossy_drains(node, small)
    lines = [f"{what} (TORIL_TEST_SEED={SEED}):", *map(repr, small), *await locate(node, toril, small)]
    pytest.fail("\n".join(lines))


def sequence(chance: random.Random, without: frozenset[str] = NOTHING_LEFT_OUT) -> list[Operation]:
    """One of :func:`random_sequence`'s; some with more of what seldom comes by itself."""
    operations = random_sequence(chance, without=without)
    match chance.randrange(5):
        case 0:
            return [_counted(operation) for operation in operations]
        case 1:
            return [each for operation in operations for each in _watched(operation)]
        case _:
            return operations


def _counted(operation: Operation) -> Operation:
    """With minutes instead of seconds, and workers that count what they finish in them."""
    match operation:
        case Advance(ms=ms) if ms >= 1000:
            return Advance(ms=60_000)
        case Fetch() | ops.OnLockedJob():
            return replace(operation, worker=replace(operation.worker, metrics=ops.Metrics(2)))
        case _:
            return operation


def _watched(operation: Operation) -> list[Operation]:
    """With a line in the log of every job that is taken, and a look for stalled ones after it."""
    match operation:
        case Fetch(queue=queue, token=token):
            line = ops.Log(queue=queue, job=ops.Held(token), row=f"taken by {token}")
            return [operation, line, ops.Sweep(queue=queue)]
        case _:
            return [operation]


# ---------------------------------------------------------------------- the same, whatever is done


@on_shared_sides
@pytest.mark.parametrize("without", ["mass", "schedulers", "nothing"])
async def test_node_agrees_after_random_sequences(sides: Sides, rng: random.Random, without: str) -> None:
    left_out = frozenset({without} & KINDS.keys())
    for number in range(scaled(250)):
        await check(*sides, sequence(rng, left_out), f"sequence {number}")


def test_node_agrees_after_drawn_sequences(server: Server) -> None:
    with asyncio.Runner() as runner:
        context = open_sides(server, dbs=(2, 3))
        node, toril = runner.run(context.__aenter__())
        try:

            @seed(SEED)
            @settings(
                max_examples=scaled(100),
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
                for number in range(scaled(50)):
                    await check(node, toril, sequence(rng), f"sequence {number} below {prefix}")


async def test_node_agrees_on_each_product(binary: Path | None, rng: random.Random) -> None:
    with standalone(binary=binary) as server:
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


@dataclass(frozen=True)
class Mistake:
    """One change of the scripts' text."""

    was: tuple[str, ...]
    becomes: tuple[str, ...]

    def made_in(self, script: Script) -> Script | None:
        """The script with the mistake in it; None where there is no place for it."""
        pattern = re.compile(r"\n\s*".join(re.escape(line) for line in self.was))
        source, times = pattern.subn("\n".join(self.becomes).replace("\\", r"\\"), script.source)
        if not times:
            return None
        assert times == 1, f"{self.was} stands in {script.name} more than once"
        assert source != script.source
        return replace(script, source=source, sha=hashlib.sha1(source.encode()).hexdigest())


def _read_mistakes(text: str) -> dict[str, Mistake]:
    found = {}
    for block in re.split(r"\n(?=\w)", text.strip()):
        name, *lines = block.split("\n")
        was, becomes = (tuple(line[4:] for line in lines if line[2] == sign) for sign in "-+")
        found[name] = Mistake(was, becomes)
    return found


MUTATIONS = _read_mistakes(MISTAKES)

ENOUGH = 300
"""Sequences within which each mistake must be found."""


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


def make(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Toril work with the mistake, in every script that has a place for it."""
    scripts = {name: value for name, value in vars(store_module).items() if isinstance(value, Script)}
    mutants = {name: mistake.made_in(script) for name, script in scripts.items()}
    assert any(mutants.values()), "there is no place for this mistake"
    for name, mutant in mutants.items():
        if mutant is not None:
            monkeypatch.setattr(store_module, name, mutant)


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


# ---------------------------------------------------------------------- a batch is its parts


@asynccontextmanager
async def open_twins(server: Server) -> AsyncIterator[Twins]:
    """Toril twice: one does in a batch what the other does one by one."""
    async with (
        NodeOracle() as oracle,
        open_toril(oracle, server, db=4) as batch,
        open_toril(oracle, server, db=5) as singles,
    ):
        yield batch, singles


async def dumps(twins: Twins) -> list[Dump]:
    return [normalise(await side.dump()) for side in twins]


async def fill(twins: Twins, chance: random.Random) -> None:
    """Any state, the same in both, with some jobs active and more that wait; sometimes with limits."""
    operations = random_sequence(chance, least=5, most=20)
    match chance.randrange(8):
        case 0:
            operations.append(ops.SetGlobalConcurrency(concurrency=chance.randint(2, 8)))
        case 1:
            operations.append(ops.SetGlobalRateLimit(max=chance.randint(2, 8), duration=60_000))
    jobs = [ops.NewJob(opts=ops.JobOptions(priority=chance.choice((None, None, 1)))) for _ in range(8)]
    fetches = [Fetch(token=f"f{number}") for number in range(chance.randrange(6))]
    for side in twins:
        await side.run([*operations, ops.AddBulk(jobs=tuple(jobs)), *fetches])
    assert not differences(*await dumps(twins))


def held(store: Store) -> list[tuple[str, str]]:
    """The active jobs with their locks; for one whose lock is lost, one that will not do."""
    ids = [job.decode() for job in store.ask("LRANGE", store.key("q", "active"), 0, -1)]
    locks = [store.ask("GET", store.key("q", f"{job}:lock")) for job in ids]
    return [(job, lock.decode() if lock else "lost") for job, lock in zip(ids, locks, strict=True)]


KEPT = (*[KeepJobs(count=-1)] * 2, KeepJobs(count=0), KeepJobs(count=1), KeepJobs(count=2, age=5))
TAKES = (
    *[TakeOptions()] * 3,
    TakeOptions(limiter_max=2, limiter_duration=60_000),
    TakeOptions(worker="w", metrics_points=2),
)


def finished(chance: random.Random, job: str, token: str) -> Outcome:
    """Completed or failed."""
    if chance.random() < 0.5:
        return Completed(job, token, b'{"n":1}', chance.choice(KEPT))
    return Failed(job, token, "boom", chance.choice(KEPT), chance.randrange(3), b'["a trace"]')


def given_up(chance: random.Random, job: str, token: str) -> Outcome:
    """Any way to give up a job, sometimes with a lock that is not its own."""
    token = token if chance.random() < 0.95 else "nobody"
    match chance.randrange(8):
        case 0:
            return Retried(job, token, chance.random() < 0.5, "boom", b'["a trace"]')
        case 1:
            return Delayed(job, token, chance.choice((0, 1, 1000)), chance.random() < 0.5, "boom")
        case 2:
            return HandedBack(job, token)
        case _:
            return finished(chance, job, token)


def same_codes(left: list[int], right: list[int]) -> bool:
    """Codes are the same; times (of jobs handed back to a limited queue) are about the same."""
    pairs = zip(left, right, strict=True)
    return all(a == b if min(a, b) < 0 else abs(a - b) < 5000 for a, b in pairs)


def without_drained(dump: Dump) -> dict[str, Key]:
    """All but the ``drained`` events, which say that the queue was empty when a call ended.

    Calls that end at other moments cannot say the same. K calls that take nothing also tell it when the
    next call finds a job that has become due; and the part of a batch that delays the last job ends after
    the part that finished the one before it.
    """
    return {
        name: replace(key, value=[pairs for _, pairs in key.value if pairs[0] != ("event", "drained")])
        if key.kind == "stream"
        else key
        for name, key in dump.items()
    }


async def check_step(twins: Twins, chance: random.Random) -> None:
    """A step that gives up and takes jobs leaves what as many single steps leave."""
    await fill(twins, chance)
    batch, singles = (side.queue().store for side in twins)
    active = held(twins[0].store)
    outcomes = [given_up(chance, *job) for job in chance.sample(active, chance.randint(0, len(active)))]
    tokens = [f"n{place}" for place in range(chance.randrange(5))]
    take = chance.choice(TAKES)
    what = f"{outcomes} {tokens} {take}"

    whole = await batch.step(outcomes, tokens, take)
    codes = [(await singles.step([outcome], [], take)).codes[0] for outcome in outcomes]
    assert same_codes(whole.codes, codes), what
    # A worker that could not give up a job hears of that first, as in Node: nothing is taken.
    wanted = tokens if min(codes, default=0) >= 0 else []
    parts = [await singles.step([], [token], take) for token in wanted]
    taken = [(job.id, job.token, job.fields) for part in parts for job in part.jobs]
    assert [(job.id, job.token, job.fields) for job in whole.jobs] == taken, what
    left, right = map(without_drained, await dumps(twins))
    assert not differences(left, right), what


async def test_node_agrees_with_batches_a_step_is_its_parts(server: Server, rng: random.Random) -> None:
    async with open_twins(server) as twins:
        for _ in range(scaled(150)):
            await check_step(twins, rng)


async def test_node_agrees_with_batches_that_empty_the_queue(server: Server, rng: random.Random) -> None:
    """Finishes, of which the last also takes, as Node's do: here ``drained`` is the same too."""
    emptied = 0
    async with open_twins(server) as twins:
        for number in range(scaled(100)):
            jobs = [Add() for _ in range(rng.randint(1, 5))]
            later = [Add(opts=ops.JobOptions(delay=1000))] * rng.randrange(2)
            fetches = [Fetch(token=f"f{place}") for place in range(len(jobs) - rng.randrange(2))]
            for side in twins:
                await side.run([*jobs, *later, *fetches])
            batch, singles = (side.queue().store for side in twins)
            outcomes = [finished(rng, *job) for job in held(twins[0].store)]
            tokens = [f"n{place}" for place in range(rng.randrange(3))]

            await batch.step(outcomes, tokens)
            for outcome in outcomes[:-1]:
                await singles.step([outcome])
            await singles.step(outcomes[-1:], tokens[:1])
            for token in tokens[1:]:
                await singles.step([], [token])
            left, right = await dumps(twins)
            assert not differences(left, right), (number, SEED, outcomes, tokens)
            emptied += ("event", "drained") in left["bull:q:events"].value[-1][1]
    assert emptied or SCALE < 1


async def test_node_agrees_with_batches_that_empty_the_queue_beside_a_refusal(server: Server) -> None:
    """The last job ends in one step with a job that someone else has completed meanwhile."""
    async with open_twins(server) as twins:
        operations = [Add(), Add(), Fetch(token="t1"), Fetch(token="t2")]
        someone = ops.Complete(job=ops.Held("t2"), token="0", fetch_next=False)
        for side in twins:
            await side.run([*operations, someone])
        batch, singles = (side.queue().store for side in twins)
        last, gone = (Completed(job, token, b"1", KEPT[0]) for job, token in (("1", "t1"), ("2", "t2")))
        assert (await batch.step([last, gone], ["n1"])).codes == [0, -3]
        assert (await singles.step([last], ["n1"])).codes == [0]
        assert (await singles.step([gone])).codes == [-3]
        assert not differences(*await dumps(twins))


DEDUPLICATIONS = (None, None, Deduplication("d"), Deduplication("d", replace=True))


def new_jobs(chance: random.Random, toril: TorilSide) -> list[NewJob]:
    """Jobs to add; some like any others, some that are likely to be in each other's way."""
    jobs: list[NewJob] = []
    for _ in range(1 + chance.randrange(6)):
        try:
            options = toril.options(new_job(chance.randrange, SHAPES + OWN + CHILD).opts)
        except InvalidValue:
            continue
        names = [job.options.job_id for job in jobs if job.options.job_id]
        if chance.random() < 0.7:
            options = JobOptions(
                job_id=chance.choice((None, "alpha", "beta", "gamma")),
                delay=chance.choice((None, 1000)),
                deduplication=chance.choice(DEDUPLICATIONS),
                parent=Parent(chance.choice(names), f"{toril.prefix}:q") if names else None,
            )
        if options.parent is None and options.job_id in names:
            continue  # known: "another parent after none"
        jobs.append(NewJob("job", b"{}", options))
    return jobs


async def added(toril: TorilSide, jobs: Sequence[NewJob]) -> list[str] | int | None:
    """The ids, or the code of the error."""
    try:
        return await toril.queue().store.add(jobs)
    except QueueError as problem:
        return problem.code


async def check_add(twins: Twins, chance: random.Random) -> bool:
    """Adding jobs together leaves what adding them in turn leaves, or nothing; whether they were added."""
    await fill(twins, chance)
    batch, singles = twins
    jobs = new_jobs(chance, batch)
    what = f"{jobs}"
    before = normalise(await batch.dump())
    result = await added(batch, jobs)
    parts = [await added(singles, [job]) for job in jobs]
    codes = [part for part in parts if not isinstance(part, list)]
    if codes:
        # All or none: what one by one leaves half done, a batch does not begin.
        assert result == codes[0], what
        assert len(jobs) == 1 or not differences(before, normalise(await batch.dump())), what
    else:
        assert result == [part[0] for part in parts if isinstance(part, list)], what
        assert not differences(*await dumps(twins)), what
    return not codes


async def test_node_agrees_with_batches_adding_many_is_adding_each(
    server: Server, rng: random.Random
) -> None:
    async with open_twins(server) as twins:
        added = [await check_add(twins, rng) for _ in range(scaled(150))]
    assert {True, False} == set(added) or SCALE < 1


MISTAKES_WITH_MANY = """
more taken than may be active at once
  - room = math.min(room, here.concurrency - call('LLEN', q .. 'active'))
more taken than the limit lets through
  - return 0, max - started
  + return 0, math.huge
one start counted for all
  - if max and call('INCRBY', q .. 'limiter', #ids) == #ids then
  + if max and call('INCRBY', q .. 'limiter', 1) == 1 then
an end written behind the purge of the next
  - write_finished(q)
  - purge(
  + purge(
a parent that gives way, but is waited for
  - elseif (custom or more.de) and not (more.de and will_give_way(id, more.de)) then
  + elseif custom or more.de then
a parent that is replaced, but is waited for
  - there[q .. owner], delayed[owner] = false, nil
  + delayed[owner] = nil
"""
"""What could be wrong only where there are several jobs."""

MUTATIONS_WITH_MANY = _read_mistakes(MISTAKES_WITH_MANY)


@pytest.mark.parametrize("mistake", MUTATIONS_WITH_MANY)
async def test_node_agrees_with_batches_by_no_mistaken_script(
    mistake: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check_both(number: int) -> None:
        for way in (check_step, check_add):
            await way(twins, random.Random(f"many/{number}"))

    async def check_until_found() -> None:
        while len(shown) < ENOUGH:
            shown.append(len(shown))
            await check_both(shown[-1])

    shown: list[int] = []
    make(MUTATIONS_WITH_MANY[mistake], monkeypatch)
    async with open_twins(server) as twins:
        with pytest.raises(AssertionError):
            await check_until_found()
        print(f"batches needed: {len(shown)}")
        monkeypatch.undo()
        await check_both(shown[-1])


IN_THE_WAY = {
    "a parent that gives way": (
        [JobOptions(deduplication=Deduplication("d"))],
        [
            JobOptions(job_id="p", deduplication=Deduplication("d")),
            JobOptions(parent=Parent("p", "bull:q")),
        ],
        ParentMissing,
    ),
    "a parent that is replaced": (
        [JobOptions(job_id="p", delay=1000, deduplication=Deduplication("d", replace=True))],
        [
            JobOptions(delay=1000, deduplication=Deduplication("d", replace=True)),
            JobOptions(parent=Parent("p", "bull:q")),
        ],
        ParentMissing,
    ),
    "two parents for one id": (
        [JobOptions(job_id="a"), JobOptions(job_id="b")],
        [JobOptions(job_id="c", parent=Parent(parent, "bull:q")) for parent in ("a", "b")],
        ParentTaken,
    ),
    "another parent after none": (
        [JobOptions(job_id="a"), JobOptions(job_id="b")],
        [
            JobOptions(job_id="c", parent=Parent("a", "bull:q")),
            JobOptions(job_id="c"),
            JobOptions(job_id="c", parent=Parent("b", "bull:q")),
        ],
        ParentTaken,
    ),
}
"""Jobs that are there; a batch whose last job is refused when it is added by itself, in turn; and how."""


@pytest.mark.parametrize(
    "what",
    [*list(IN_THE_WAY)[:-1], pytest.param("another parent after none")],
)
async def test_node_agrees_with_batches_whose_jobs_are_in_each_others_way(server: Server, what: str) -> None:
    there, batch, refusal = IN_THE_WAY[what]
    async with NodeOracle() as oracle, open_toril(oracle, server, db=6) as toril:
        await toril.reset()
        for options in there:
            await toril.queue().add("job", {}, options)
        before = normalise(await toril.dump())
        with pytest.raises(refusal):
            await toril.queue().add_bulk([AddJob("job", {}, options) for options in batch])
        assert not differences(before, normalise(await toril.dump()))
