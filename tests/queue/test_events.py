"""Following a queue's events, and waiting for results: nothing missed, whatever comes between."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.oracle import NodeOracle
from tests.conformance.sides import NodeSide
from tests.conftest import SCALE
from tests.waiting import until
from toril import Connection, connect
from toril.connection import ConnectionFailed
from toril.errors import InvalidValue
from toril.keyspace import QueueKeys
from toril.queue import AddJob, Job, JobMissing, JobOptions, Queue, UntaggedName
from toril.queue.events import (
    MISSED,
    Event,
    EventsClosed,
    JobFailed,
    QueueEvents,
    ResultTimeout,
    follower,
    results,
)
from toril.queue.job import JobData
from toril.queue.outcomes import completed, failed
from toril.queue.store import QueueStore
from toril.testing import Cluster, Server, cluster, standalone

NAME = "{events}"
TRIES = int(2_000 * SCALE)
PATIENCE = 20.0
"""Seconds that a test waits for what must come."""

FLOOD = """
for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'event', 'mine', 'n', n) end
redis.call('XTRIM', KEYS[1], 'MAXLEN', ARGV[2])
"""


@pytest.fixture
def queue(redis: Connection) -> Queue:
    return Queue(NAME, redis)


async def take(queue: Queue, count: int = 1) -> list[JobData]:
    taken = (await queue.store.step([], [f"token-{number}" for number in range(count)])).jobs
    assert len(taken) == count
    return taken


async def finish(queue: Queue, *jobs: JobData, value: Any = None, problem: str = "") -> None:
    outcomes = [failed(job, Exception(problem), "") if problem else completed(job, value) for job in jobs]
    assert (await queue.store.step(outcomes)).codes == [0] * len(jobs)


async def some(events: QueueEvents, count: int) -> list[Event]:
    async with asyncio.timeout(PATIENCE):
        return [await anext(events) for _ in range(count)]


async def stored_ids(queue: Queue) -> list[str]:
    stored = await queue.store.redis.command("XRANGE", queue.keys.events, "-", "+")
    return [entry[0].decode() for entry in stored]


async def clients(redis: Connection, *, reading: bool = False) -> int:
    """How many connections the servers have; or only those that wait for an event just now."""
    lines = [
        line for reply in (await redis.each_primary("CLIENT", "LIST")).values() for line in reply.split(b"\n")
    ]
    return sum(b"cmd=xread" in line and b" flags=b " in line if reading else bool(line) for line in lines)


def readers(redis: Connection, count: int) -> Callable[[], Awaitable[bool]]:
    async def are_there() -> bool:
        return await clients(redis, reading=True) == count

    return are_there


# ---------------------------------------------------------------------------- following


async def test_order_kept_events_come_typed_and_as_they_happened(queue: Queue, redis: Connection) -> None:
    async with QueueEvents(NAME, redis) as events:
        first, second = await queue.add("a"), await queue.add("b", options=JobOptions(delay=60_000))
        made = await queue.job(second.id)
        assert made is not None
        (job,) = await take(queue)
        await first.update_progress({"done": [1, 2]})
        await finish(queue, job, value={"sum": 3})
        await second.promote()
        await finish(queue, *await take(queue), problem="no luck")
        await queue.clean(0, state="failed")
        ids = await stored_ids(queue)
        seen = await some(events, len(ids))
    assert [event.id for event in seen] == ids
    told = [(event.name, event.job_id) for event in seen]
    one, two = first.id, second.id
    assert told == [
        *(("added", one), ("waiting", one), ("added", two), ("delayed", two), ("active", one)),
        *(("progress", one), ("completed", one), ("drained", None), ("waiting", two), ("active", two)),
        *(("failed", two), ("retries-exhausted", two), ("drained", None), ("cleaned", None)),
    ]
    by_name = {event.name: event for event in seen}
    assert by_name["progress"].progress == by_name["progress"].data == {"done": [1, 2]}
    assert by_name["completed"].return_value == {"sum": 3}
    assert by_name["completed"].prev == "active"
    assert by_name["completed"].progress is None
    assert by_name["failed"].failed_reason == "no luck"
    assert by_name["waiting"].prev == "delayed"
    assert by_name["delayed"].delay == made.timestamp + 60_000
    assert by_name["added"].fields == {"name": "b"}
    assert by_name["added"].delay is None


def test_a_return_value_that_is_not_json_stays_text() -> None:
    event = Event.read([b"1-0", [b"event", b"completed", b"jobId", b"7", b"returnvalue", b"{oops"]])
    assert (event.job_id, event.return_value) == ("7", "{oops")
    assert Event.read([b"1-0", [b"event", b"mine", b"returnvalue", b"1"]]).return_value == "1"


async def test_it_begins_where_it_is_told(queue: Queue, redis: Connection) -> None:
    await queue.add_bulk([AddJob("a")] * 3)
    ids = await stored_ids(queue)
    async with QueueEvents(NAME, redis, after="0") as events:
        assert [event.id for event in await some(events, 6)] == ids
    async with QueueEvents(NAME, redis, after=ids[2]) as events:
        assert [event.id for event in await some(events, 3)] == ids[3:]
    async with QueueEvents(NAME, redis) as events:
        new = await queue.add("b")
        assert [event.job_id for event in await some(events, 2)] == [new.id, new.id]
    with pytest.raises(InvalidValue, match="after 'now' is not valid"):
        QueueEvents(NAME, redis, after="now")
    if redis.clustered:
        with pytest.raises(UntaggedName):
            QueueEvents("plain", redis)


async def test_a_consumer_that_is_slow_misses_nothing(
    queue: Queue, redis: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "AT_ONCE", 7)
    async with QueueEvents(NAME, redis) as events:
        for half in range(2):
            waiting = asyncio.create_task(events.wait_for("removed", timeout=PATIENCE))
            for job in await queue.add_bulk([AddJob("a")] * 20):
                await job.update_progress(half)
            await job.remove()
            await waiting  # so all of it was read, ten batches and more, before the first is asked for
            ids = await stored_ids(queue)
            assert [event.id for event in await some(events, 61)] == ids[61 * half :]


async def test_what_was_trimmed_unseen_is_counted_and_said(
    queue: Queue, redis: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BLOCK", 0.2)
    key = queue.keys.events
    async with QueueEvents(NAME, redis) as events:
        await queue.add("a")
        await some(events, 2)
        await redis.command("EVAL", FLOOD, 1, key, 10, 3)  # nobody can read between the two
        missed, *rest = await some(events, 4)
        assert (missed.name, missed.job_id, missed.fields) == (MISSED, None, {"count": "7"})
        assert [event.fields for event in rest] == [{"n": "8"}, {"n": "9"}, {"n": "10"}]
        await redis.command("EVAL", FLOOD, 1, key, 10, 0)
        await redis.command("XADD", key, "*", "event", "mine", "n", "11")
        missed, last = await some(events, 2)
        assert (missed.fields, last.fields) == ({"count": "10"}, {"n": "11"})
        await redis.command("DEL", key)
        await queue.add("b")  # in the same millisecond, perhaps: then its ids are below the old ones
        assert [event.name for event in await some(events, 3)] == [MISSED, "added", "waiting"]
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["7 events" in told[0], "10 events" in told[1], "may have gone" in told[2]] == [True] * 3
    assert all(NAME in text for text in told)
    ids = await stored_ids(queue)
    await redis.command("XTRIM", key, "MAXLEN", 1)
    async with QueueEvents(NAME, redis, after=ids[0]) as events:  # who knows what came right after that
        missed, last = await some(events, 2)
        assert (missed.name, missed.fields, last.id) == (MISSED, {}, ids[1])


@pytest.mark.parametrize("slow", [False, True])
async def test_what_was_seen_and_what_was_missed_add_up(
    redis: Connection, rng: random.Random, monkeypatch: pytest.MonkeyPatch, *, slow: bool
) -> None:
    """Entries come and are trimmed at random, under a reader that keeps up, and one that does not."""
    monkeypatch.setattr(follower, "AT_ONCE", 5)
    key = QueueKeys(NAME).events
    added, missed, seen = 0, 0, list[tuple[int, ...]]()
    async with QueueEvents(NAME, redis) as events:
        while added < 1000 * SCALE:
            count = rng.randrange(1, 20)
            await redis.command("EVAL", FLOOD, 1, key, count, rng.choice([0, 3, 10, 10_000]))
            added += count
            if slow and rng.random() < 0.9 and added < 1000 * SCALE:
                continue
            await redis.command("XADD", key, "*", "event", "mark")
            while (event := (await some(events, 1))[0]).name != "mark":
                if event.name == MISSED:
                    missed += int(event.fields["count"])
                else:
                    seen.append(tuple(map(int, event.id.split("-"))))
    assert seen == sorted(set(seen))
    assert len(seen) + missed == added
    assert missed


async def test_callbacks_are_called_in_order_and_do_not_disturb_each_other(
    queue: Queue, redis: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[tuple[str, str | None]] = []
    done = asyncio.Event()
    events = QueueEvents(NAME, redis)

    @events.on("added")
    def sync(event: Event) -> None:
        called.append(("sync", event.job_id))
        raise ValueError("a callback that fails")

    @events.on("added")
    async def cancelled(event: Event) -> None:  # noqa: ARG001
        raise asyncio.CancelledError

    async with events:

        @events.on("added")
        async def later(event: Event) -> None:
            called.append(("async", event.job_id))
            if event.job_id == "1":  # a callback may wait for other events
                await events.wait_for("paused", timeout=PATIENCE)
            if event.job_id == "3":
                await events.close()
                done.set()

        await queue.add_bulk([AddJob("a")] * 4)
        await until(lambda: _is(len(called) == 2))
        await queue.pause()
        await asyncio.wait_for(done.wait(), PATIENCE)
    assert called == [(kind, str(n)) for n in (1, 2, 3) for kind in ("sync", "async")]
    assert [record.exc_info is not None for record in caplog.records] == [True] * 6


async def _is(value: bool) -> bool:
    return value


async def test_waiting_for_an_event(queue: Queue, redis: Connection) -> None:
    events = QueueEvents(NAME, redis)
    with pytest.raises(EventsClosed):
        await events.wait_for("added")
    async with events:
        waits = [
            asyncio.create_task(events.wait_for(name, job_id=job, timeout=PATIENCE))
            for name, job in (("waiting", None), (None, "2"), ("waiting", "3"), (None, None))
        ]
        forever = asyncio.create_task(events.wait_for("never"))
        await asyncio.sleep(0)
        await queue.add_bulk([AddJob("a")] * 3)
        found = [(event.name, event.job_id) for event in await asyncio.gather(*waits)]
        assert found == [("waiting", "1"), ("added", "2"), ("waiting", "3"), ("added", "1")]
        with pytest.raises(ResultTimeout, match="no completed of job 1 has come within 0.01 s"):
            await events.wait_for("completed", job_id="1", timeout=0.01)
    with pytest.raises(EventsClosed):
        await forever
    assert [event.job_id async for event in events] == []


async def test_it_leaves_no_task_and_no_socket(queue: Queue, redis: Connection) -> None:
    await clients(redis)
    tasks, sockets = asyncio.all_tasks(), await clients(redis)
    for _ in range(3):
        async with QueueEvents(NAME, redis) as events:
            events.on("added")(print)
            await until(readers(redis, 1))
            await queue.pause()
            await some(events, 1)
    assert asyncio.all_tasks() <= tasks

    async def as_before() -> bool:
        return await clients(redis) == sockets

    await until(as_before)


async def test_the_end_of_the_connection_is_told_to_all_who_wait(server: Server | Cluster) -> None:
    redis = await connect(server.url)
    job = await Queue(NAME, redis).add("a")
    async with QueueEvents(NAME, redis) as events:
        waits = [asyncio.create_task(each) for each in (anext(events), events.wait_for(), job.result())]
        await until(readers(redis, 2))
        await redis.close()
        for wait in waits:
            with pytest.raises(ConnectionFailed, match="closed by its owner"):
                await asyncio.wait_for(wait, PATIENCE)


# ---------------------------------------------------------------------------- through trouble


async def test_no_job_lost_events_go_on_after_a_server_was_killed_and_came_back(
    binary: Path | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is away for longer than the connection's patience."""
    monkeypatch.setattr(follower, "PAUSE", 0.01)
    with standalone({"appendonly": "yes", "appendfsync": "always"}, binary=binary) as server:
        async with connect(server.url, patience=0.2) as redis, QueueEvents(NAME, redis) as events:
            queue = Queue(NAME, redis)
            job = await queue.add("a")
            (taken,) = await take(queue)
            result = asyncio.create_task(job.result())
            await until(readers(redis, 2))
            await asyncio.to_thread(server.kill)
            await until(lambda: _is(caplog.text.count("trying again") >= 4))
            await asyncio.to_thread(server.restart)
            await finish(queue, taken, value="kept")
            assert await asyncio.wait_for(result, PATIENCE) == "kept"
            ids = await stored_ids(queue)
            assert [event.id for event in await some(events, len(ids))] == ids


async def test_no_job_lost_events_go_on_after_a_failover(binary: Path | None) -> None:
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis, QueueEvents(NAME, redis) as events:
            queue = Queue(NAME, redis)
            seen: list[Event] = []

            async def through(trouble: Callable[[Server], object]) -> None:
                job = await queue.add("a")
                (taken,) = await take(queue)
                result = asyncio.create_task(job.result())
                await until(readers(redis, 2))
                # Replication is asynchronous: what must outlive the server is waited for.
                await queue.add("b", options=JobOptions(priority=1), durability="replicated")
                await asyncio.to_thread(trouble, nodes.primary_of(queue.keys.events))
                await finish(queue, taken, value="kept")
                assert await asyncio.wait_for(result, PATIENCE) == "kept"
                ids = await stored_ids(queue)
                seen.extend(await some(events, len(ids) - len(seen)))
                assert [event.id for event in seen] == ids

            await through(nodes.fail_over)
            nodes.wait_until_whole()
            await through(nodes.kill)


# ---------------------------------------------------------------------------- results


async def test_a_result_is_what_the_job_returned(queue: Queue, redis: Connection) -> None:
    job, bad, odd = await queue.add_bulk([AddJob("a"), AddJob("b"), AddJob("c")])
    waits = [asyncio.create_task(each.result(PATIENCE)) for each in (job, bad)]
    one, two, three = await take(queue, 3)
    await until(readers(redis, 1))
    await finish(queue, one, value=[1, None])
    await finish(queue, two, problem="no luck")
    assert await waits[0] == await job.result() == [1, None]
    for late in (waits[1], bad.result()):
        with pytest.raises(JobFailed, match=f"job {bad.id} has failed: no luck") as caught:
            await late
        assert (caught.value.job_id, caught.value.reason) == (bad.id, "no luck")
    await finish(queue, three)
    assert await odd.result() is None
    await redis.command("HSET", queue.keys.job(odd.id), "returnvalue", "{oops")
    assert await odd.result() == "{oops"


async def test_a_result_that_does_not_come_is_said(queue: Queue) -> None:
    job = await queue.add("a")
    with pytest.raises(ResultTimeout, match=f"job {job.id} of queue '{NAME}' has not finished within 0.05 s"):
        await job.result(0.05)
    with pytest.raises(JobMissing, match="there is no job 99"):
        await Job(queue.store, "99", {}).result()


async def removed(queue: Queue, job: Job) -> None:  # noqa: ARG001
    await job.remove()


async def cleaned(queue: Queue, job: Job) -> None:  # noqa: ARG001
    assert await queue.clean(0, state="waiting")


async def drained(queue: Queue, job: Job) -> None:  # noqa: ARG001
    await queue.drain()


async def obliterated(queue: Queue, job: Job) -> None:  # noqa: ARG001
    await queue.obliterate()


@pytest.mark.parametrize("how", [removed, cleaned, drained, obliterated])
async def test_who_waits_for_a_job_that_goes_away_is_told(
    queue: Queue, redis: Connection, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how not in (removed, cleaned):  # these two make an event
        monkeypatch.setattr(results, "LOOK_AGAIN", 0.05)
    job = await queue.add("a")
    result = asyncio.create_task(job.result(PATIENCE))
    await until(readers(redis, 1))
    await how(queue, job)
    with pytest.raises(JobMissing):
        await asyncio.wait_for(result, 5)


async def test_the_result_of_a_job_that_runs_again_is_the_new_one(queue: Queue) -> None:
    """Also when the one who reads events for all has yet to see how the first run ended."""
    other = await queue.add("other")
    (held,) = await take(queue)
    waiting = asyncio.create_task(other.result(PATIENCE))
    for number in range(100):
        job = await queue.add("a")
        (first,) = await take(queue)
        ended = asyncio.create_task(finish(queue, first, problem="the first time"))
        retried = asyncio.create_task(job.retry())
        result = asyncio.create_task(job.result(PATIENCE))  # goes out together with the other two
        await asyncio.gather(ended, retried)
        await finish(queue, *await take(queue), value=number)
        assert await result == number
    await finish(queue, held)
    await waiting


async def test_no_job_lost_no_result_is_missed_however_the_job_ends_meanwhile(
    queue: Queue, server: Server | Cluster, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs end at every moment of a wait that begins, some of them removed at once; others wait as well."""

    class Dawdling(QueueStore):
        async def outcome(self, job_id: str) -> tuple[int, bytes | None]:
            found = await super().outcome(job_id)
            for _ in range(rng.choice([0, 0, 1, 3, 10, 30])):
                await asyncio.sleep(0)
            return found

    async def one(job: Job, taken: JobData, away: Queue) -> None:
        goes, fails = bool(job.opts["removeOnComplete"]), rng.random() < 0.3
        # Who goes at once must still be there when the wait begins: its end goes over the same wire.
        where = queue if goes else rng.choice([queue, away])
        result = asyncio.create_task(Job.of(dawdling, job).result(PATIENCE))
        for _ in range(rng.randrange(1 if goes else 0, 8)):
            await asyncio.sleep(0)
        await finish(where, taken, value=job.id, problem="no luck" if fails else "")
        if fails:
            with pytest.raises(JobFailed, match="no luck"):
                await result
        else:
            assert await result == job.id

    async with connect(server.url) as other:
        away, dawdling, done = Queue(NAME, other), Dawdling(queue.store.redis, queue.keys), 0
        while done < TRIES:
            monkeypatch.setattr(results, "LOOK_AGAIN", rng.choice([10.0, 0.0005]))
            count = rng.choice([1, 1, 2, 20])
            keep = [JobOptions(remove_on_complete=goes, remove_on_fail=goes) for goes in (True, False)]
            jobs = await queue.add_bulk([AddJob("a", None, rng.choice(keep)) for _ in range(count)])
            taken = await take(queue, count)
            await asyncio.gather(*(one(job, mine, away) for job, mine in zip(jobs, taken, strict=True)))
            done += count


async def test_a_thousand_who_wait_share_one_connection(
    queue: Queue, redis: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BLOCK", 0.2)
    jobs = await queue.add_bulk([AddJob("a", n, JobOptions(remove_on_complete=True)) for n in range(1000)])
    taken = await take(queue, 1000)
    await clients(redis)
    tasks, sockets = asyncio.all_tasks(), await clients(redis)
    twin = Queue(NAME, redis)  # another object, the same connection
    waits = [
        asyncio.create_task(Job.of((queue, twin)[n % 2].store, job).result()) for n, job in enumerate(jobs)
    ]

    async def all_wait() -> bool:
        followers = results.FOLLOWED.get(redis, {})
        return [len(each._waits) for each in followers.values()] == [1000]

    await until(all_wait)
    await until(readers(redis, 1))
    assert await clients(redis) == sockets + 1
    for start in range(0, 1000, 100):
        part = taken[start : start + 100]
        assert (await queue.store.step([completed(job, job.data) for job in part])).codes == [0] * 100
        assert await asyncio.gather(*waits[start : start + 100]) == list(range(start, start + 100))
        assert await clients(redis) <= sockets + 1

    await until(lambda: _is(asyncio.all_tasks() <= tasks))  # and it stops when nobody waits
    assert not results.FOLLOWED[redis]
    assert await clients(redis, reading=True) == 0


# ---------------------------------------------------------------------------- with Node


@pytest.fixture
async def node(server: Server | Cluster) -> AsyncIterator[NodeSide]:
    async with NodeOracle() as oracle:
        side = await NodeSide.open(oracle, server)
        yield side
        await side.close()


async def test_node_agrees_on_events_and_results(node: NodeSide, queue: Queue, redis: Connection) -> None:
    scripts: list[dict[str, Any]] = [
        {"kind": "report", "steps": 2, "value": {"by": "Node"}},
        {"kind": "fail", "message": "no luck"},
        {"kind": "ok", "value": None},
    ]
    async with QueueEvents(NAME, redis) as events:
        await node.call("startListener", name="l", queue=NAME, **{"from": "0"})
        jobs = await queue.add_bulk([AddJob("a", {"script": script}) for script in scripts])
        gone = await queue.add("a", {"script": scripts[0]}, JobOptions(remove_on_complete=True))
        results = asyncio.gather(*(job.result(PATIENCE) for job in (*jobs, gone)), return_exceptions=True)
        await until(readers(redis, 3))  # Node's listener is one of them
        await node.call("startWorker", name="w", queue=NAME, processor={"kind": "fromData"})
        first, second, third, fourth = await results
        assert (first, third, fourth) == ({"by": "Node"}, None, {"by": "Node"})
        assert isinstance(second, JobFailed)
        assert second.reason == "no luck"
        assert await node.call("until", name="l", event="drained")
        ids = await stored_ids(queue)
        heard = [entry for entry in await node.call("stop", name="l") if entry["event"] != "error"]
        seen = await some(events, len(ids))
    assert [(event.name, event.job_id) for event in seen] == [(e["event"], e.get("job")) for e in heard]
    assert [event.data for event in seen] == [entry.get("data") for entry in heard]
    assert [event.return_value for event in seen] == [entry.get("returnvalue") for entry in heard]
    assert [event.failed_reason for event in seen] == [entry.get("failedReason") for entry in heard]
