"""The queue as its users have it, on every kind of server: adding jobs, and looking at them.

That its state is BullMQ's is shown in ``tests/conformance``; here it is what the calls promise by themselves.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.store import Line, Store
from tests.queue.by_hand import (
    BASE,
    MINUTE,
    NAME,
    Clock,
    add_named,
    complete,
    events,
    fail,
    take,
    taken,
    unchanged,
)
from toril import Connection, Durability, connect
from toril.connection import DurabilityNotReached, DurabilityRefused, OutOfMemory
from toril.queue import (
    AddJob,
    Backoff,
    BulkFailed,
    Deduplication,
    JobOptions,
    KeepJobs,
    Parent,
    ParentMissing,
    Queue,
)
from toril.queue.outcomes import completed
from toril.queue.queue import ALL_STATES, BULK_JOBS
from toril.testing import Cluster, Server, cluster, standalone

# ---------------------------------------------------------------------- adding


async def test_a_job_is_stored_as_bullmq_has_it(queue: Queue, store: Store, clock: Clock) -> None:
    job = await queue.add("mail", {"to": "año"}, JobOptions(attempts=3, backoff=Backoff("exponential", 1000)))
    assert (job.id, job.name, job.data, job.timestamp) == ("1", "mail", {"to": "año"}, clock.now)
    found = store.dump()
    assert found[f"{BASE}:1"].value == {
        "name": "mail",
        "data": '{"to":"año"}',
        "opts": '{"attempts":3,"backoff":{"type":"exponential","delay":1000}}',
        "timestamp": str(clock.now),
        "delay": "0",
        "priority": "0",
    }
    assert found[f"{BASE}:meta"].value == {"opts.maxLenEvents": "10000", "version": "bullmq:5.62.0"}
    assert found[f"{BASE}:wait"].value == ["1"]
    assert found[f"{BASE}:marker"].value == {"0": 0.0}
    assert [event["event"] for event in events(store)] == ["added", "waiting"]
    read = await queue.job("1")
    assert read is not None
    assert (read.data, read.opts) == (job.data, job.opts)
    assert repr(read) == "Job('1', 'mail')"


async def test_a_job_without_data_has_an_empty_object(queue: Queue) -> None:
    await queue.add("job")
    await queue.add("job", None)
    assert [job.data for job in await queue.jobs(oldest_first=True)] == [{}, None]


async def test_defaults_fill_what_a_job_does_not_say(redis: Connection) -> None:
    defaults = JobOptions(attempts=3, priority=5, remove_on_complete=KeepJobs(count=1), lifo=True)
    queue = Queue(NAME, redis, defaults=defaults)
    plain = await queue.add("job")
    own = await queue.add("job", {}, JobOptions(priority=0, attempts=1, remove_on_fail=True))
    assert plain.opts == {"attempts": 3, "priority": 5, "removeOnComplete": {"count": 1}, "lifo": True}
    assert own.opts == {**plain.opts, "attempts": 1, "priority": 0, "removeOnFail": True}
    assert await queue.counts("prioritized", "waiting") == {"prioritized": 1, "waiting": 1, "paused": 0}
    (bulk,) = await queue.add_bulk([AddJob("job", {}, JobOptions(attempts=7))])
    assert (bulk.opts["attempts"], bulk.opts["priority"]) == (7, 5)


async def test_a_job_that_gives_way_has_the_others_id(queue: Queue) -> None:
    await add_named(queue, "a")
    assert (await queue.add("other", {}, JobOptions(job_id="a"))).id == "a"
    first = await queue.add("job", {}, JobOptions(deduplication=Deduplication("d")))
    assert (await queue.add("job", {}, JobOptions(deduplication=Deduplication("d")))).id == first.id
    assert await queue.counts("waiting") == {"waiting": 2, "paused": 0}
    assert await queue.deduplication_owner("d") == first.id
    assert await queue.deduplication_owner("e") is None
    assert await queue.forget_deduplication("d")
    assert not await queue.forget_deduplication("d")
    assert (await queue.add("job", {}, JobOptions(deduplication=Deduplication("d")))).id != first.id


async def test_a_bulk_is_added_in_order(queue: Queue) -> None:
    jobs = await queue.add_bulk(AddJob("job", number) for number in range(5))
    assert [job.id for job in jobs] == ["1", "2", "3", "4", "5"]
    assert [job.data for job in jobs] == [0, 1, 2, 3, 4]
    assert await taken(queue) == ["1", "2", "3", "4", "5"]
    assert await queue.add_bulk([]) == []


async def test_a_bulk_goes_in_parts_of_jobs_and_of_bytes(redis: Connection, queue: Queue) -> None:
    await queue.announce()

    async def calls(jobs: list[AddJob]) -> int:
        before = redis.script_counts["queue/add"].calls
        await queue.add_bulk(jobs)
        return redis.script_counts["queue/add"].calls - before

    assert await calls([AddJob("job")] * BULK_JOBS) == 1
    assert await calls([AddJob("job")] * (2 * BULK_JOBS + 1)) == 3
    half = "x" * ((1 << 19) - 2)  # with its quotes, half of what a call takes
    assert await calls([AddJob("job", half)] * 2) == 1
    assert await calls([AddJob("job", half + "x")] * 2) == 2
    assert await calls([AddJob("job", "x" * (1 << 21)), AddJob("job")]) == 2


async def test_a_part_is_added_whole_or_not_at_all(queue: Queue, store: Store) -> None:
    await queue.announce()
    orphan = AddJob("job", {}, JobOptions(parent=Parent("nobody", BASE)))
    with unchanged(store), pytest.raises(ParentMissing):
        await queue.add_bulk([AddJob("job"), AddJob("job", {}, JobOptions(delay=5)), orphan, AddJob("job")])


async def test_a_bulk_that_fails_later_says_what_is_in(queue: Queue, store: Store) -> None:
    jobs = [AddJob("job", number) for number in range(BULK_JOBS + 50)]
    jobs.append(AddJob("job", {}, JobOptions(parent=Parent("nobody", BASE))))
    with pytest.raises(BulkFailed, match=r"200 of 251 jobs were added") as caught:
        await queue.add_bulk(jobs)
    assert isinstance(caught.value.__cause__, ParentMissing)
    assert [job.data for job in caught.value.added] == list(range(BULK_JOBS))
    assert store.dump()[f"{BASE}:wait"].value == [job.id for job in reversed(caught.value.added)]


async def test_no_job_lost_when_a_server_is_full_in_the_middle_of_a_bulk(binary: Path | None) -> None:
    with standalone({"maxmemory": "12mb", "maxmemory-policy": "noeviction"}, binary=binary) as server:
        async with connect(server.url) as redis:
            queue = Queue(NAME, redis)
            jobs = [AddJob("job", f"{number:06}" + "x" * (1 << 19)) for number in range(60)]
            with pytest.raises(BulkFailed) as caught:
                await queue.add_bulk(jobs)
            assert isinstance(caught.value.__cause__, OutOfMemory)
            added = caught.value.added
            assert 0 < len(added) < len(jobs)
            assert (await queue.counts("waiting"))["waiting"] == len(added)
            with pytest.raises(OutOfMemory):
                await queue.add("job", "x" * (1 << 19))
            # A full server can be emptied: finishing is let through.
            for job in added:
                assert (await complete(queue)).data == job.data
            assert (await queue.counts("completed"))["completed"] == len(added)


# ---------------------------------------------------------------------- durability


async def test_durability_is_passed_on(redis: Connection, queue: Queue) -> None:
    quick = Durability("replicated", timeout=0.5)
    if redis.clustered:
        await queue.add("job", durability="replicated")
        assert len(await queue.add_bulk([AddJob("job")] * 2, durability=quick)) == 2
        return
    with pytest.raises(DurabilityNotReached):
        await queue.add("job", durability=quick)
    with pytest.raises(DurabilityNotReached):
        await queue.add_bulk([AddJob("job")] * 2, durability=quick)
    assert (await queue.counts("waiting"))["waiting"] == 3, "the write takes place all the same"
    with pytest.raises(DurabilityRefused):
        await queue.add("job", durability="fsync")
    assert (await queue.counts("waiting"))["waiting"] == 3


async def test_a_bulk_says_what_is_in_also_when_that_is_not_durable(binary: Path | None) -> None:
    """DurabilityNotReached means that the jobs of its part are in."""
    with cluster(masters=1, replicas=1, binary=binary) as nodes:
        primary = nodes.primaries()[0]
        replicas = nodes.replicas_of(primary)

        def clock() -> int:
            """It is read when a part begins: before the second one, the replica falls silent."""
            if replicas and primary.ask("LLEN", f"{BASE}:wait"):
                replicas.pop().pause()
            return 1

        async with connect(nodes.url) as redis:
            queue = Queue(NAME, redis, clock=clock)
            quick = Durability("replicated", timeout=0.5)
            with pytest.raises(BulkFailed) as caught:
                await queue.add_bulk([AddJob("job")] * (BULK_JOBS + 50), durability=quick)
            assert isinstance(caught.value.__cause__, DurabilityNotReached)
            assert len(caught.value.added) == (await queue.counts("waiting"))["waiting"]


# ---------------------------------------------------------------------- looking


async def in_every_state(queue: Queue, clock: Clock) -> None:
    """Two jobs in each state but paused; their ids say which."""
    for name in ("completed", "failed", "active"):
        await add_named(queue, f"{name}-1", f"{name}-2")
    for _ in range(2):
        await complete(queue, "fine")
        clock.now += 1
    for _ in range(2):
        await fail(queue)
        clock.now += 1
    parent, _ = [await take(queue, token) for token in ("t1", "t2")]
    await add_named(queue, "delayed-1", "delayed-2", delay=1000)
    await add_named(queue, "prioritized-1", "prioritized-2", priority=2)
    await add_named(queue, "waiting-1", parent=Parent(parent.id, BASE))
    await add_named(queue, "waiting-2")
    assert await parent.move_to_waiting_children()


async def test_jobs_are_counted_and_listed_by_state(queue: Queue, clock: Clock) -> None:
    await in_every_state(queue, clock)
    assert await queue.counts() == {
        "active": 1,
        "completed": 2,
        "delayed": 2,
        "failed": 2,
        "paused": 0,
        "prioritized": 2,
        "waiting": 2,
        "waiting-children": 1,
    }
    assert await queue.counts("failed") == {"failed": 2}
    assert await queue.counts("waiting") == {"waiting": 2, "paused": 0}
    for state in ALL_STATES:
        listed = await queue.ids(state)
        assert [await queue.state(name) for name in listed] == [state] * len(listed)
    assert await queue.state("nobody") == "unknown"
    assert len(await queue.ids()) == 12
    assert [job.id for job in await queue.jobs("failed", "completed", oldest_first=True)] == [
        "failed-1",
        "failed-2",
        "completed-1",
        "completed-2",
    ]


async def test_ranges_count_from_the_newest_or_the_oldest(queue: Queue) -> None:
    await add_named(queue, "a", "b", "c", "d")
    await add_named(queue, "x", "y", "z", delay=1000)
    assert await queue.ids("waiting") == ["d", "c", "b", "a"]
    assert await queue.ids("waiting", oldest_first=True) == ["a", "b", "c", "d"]
    assert await queue.ids("waiting", start=1, end=2) == ["c", "b"]
    assert await queue.ids("waiting", start=1, end=2, oldest_first=True) == ["b", "c"]
    assert await queue.ids("waiting", start=-1, end=-1) == ["a"]
    assert await queue.ids("waiting", start=10) == []
    assert await queue.ids("delayed", end=1) == ["z", "y"]
    assert await queue.ids("delayed", end=1, oldest_first=True) == ["x", "y"]
    assert await queue.ids("waiting", "delayed", end=0) == ["d", "z"]
    await queue.pause()
    assert await queue.ids("waiting", end=1) == ["d", "c"], "those of a paused queue are meant too"


async def test_a_job_that_was_removed_meanwhile_is_left_out(queue: Queue, store: Store) -> None:
    await add_named(queue, "a", "b", "c")
    store.ask("DEL", f"{BASE}:b")
    assert await queue.ids("waiting") == ["c", "b", "a"]
    assert [job.id for job in await queue.jobs("waiting")] == ["c", "a"]
    assert await queue.job("b") is None


async def test_priorities_are_counted(queue: Queue) -> None:
    await add_named(queue, "a")
    await add_named(queue, "b", "c", priority=1)
    await add_named(queue, "d", priority=2_097_152)
    assert await queue.counts_per_priority(0, 1, 2, 2_097_152) == {0: 1, 1: 2, 2: 0, 2_097_152: 1}
    await queue.pause()
    assert await queue.counts_per_priority(0) == {0: 1}


async def test_metrics_are_read_by_minute(queue: Queue, clock: Clock) -> None:
    await queue.add_bulk([AddJob("job")] * 6)
    assert (await queue.metrics("completed")).data == []
    for minute in range(4):
        for _ in range(2 if minute == 1 else 1):
            await complete(queue, metrics_points=2)
        clock.now += MINUTE
    found = await queue.metrics("completed")
    assert (found.count, found.points, found.previous_time) == (5, 2, clock.now - MINUTE)
    assert found.data == [1, 2], "the newest first: what was finished in the minutes that are over"
    assert (await queue.metrics("completed", start=1, end=1)).data == [2]
    assert (await queue.metrics("failed")).count == 0


async def test_workers_are_listed_wherever_they_come_from(
    queue: Queue, server: Server | Cluster, redis: Connection
) -> None:
    at = server.primary_of(BASE) if isinstance(server, Cluster) else server
    mine, other = "bull:e3F1ZXVlfQ==", "bull:e290aGVyfQ=="  # {queue} and {other}
    with ExitStack() as stack:
        for name in (mine, f"{mine}:w:first", f"{mine}:qe", other, f"{other}:w:first"):
            line = Line(at.address)
            stack.callback(line.close)
            line.ask("CLIENT", "SETNAME", name)
        found = await queue.workers()
        assert sorted(worker["rawname"] for worker in found) == [mine, f"{mine}:w:first"]
        assert sorted(worker["name"] for worker in found) == ["", "first"]
        assert all(worker["addr"].startswith("127.0.0.1:") for worker in found)
        assert await Queue("{nobody}", redis).workers() == []


async def test_schedulers_are_read(queue: Queue, store: Store) -> None:
    assert await queue.schedulers() == []
    assert await queue.scheduler("s1") is None
    record = ("name", "tick", "every", 1000, "offset", 0, "ic", 3, "limit", 5, "data", '{"n":1}')
    store.ask("HSET", f"{BASE}:repeat:s1", *record, "opts", '{"priority":3}')
    store.ask(
        "HSET", f"{BASE}:repeat:s2", "name", "tock", "pattern", "* * * * *", "tz", "Europe/Madrid", "ic", 1
    )
    store.ask("ZADD", f"{BASE}:repeat", 2000, "s1", 1000, "s2", 3000, "gone")
    first, second = await queue.schedulers()
    assert (first.id, first.name, first.next_run) == ("s2", "tock", 1000)
    assert (first.pattern, first.timezone, first.every, first.template) == (
        "* * * * *",
        "Europe/Madrid",
        None,
        None,
    )
    assert (second.id, second.every, second.limit, second.iterations) == ("s1", 1000, 5, 3)
    assert second.template == {"data": {"n": 1}, "opts": {"priority": 3}}
    assert [each.id for each in await queue.schedulers(latest_first=True)] == ["s1", "s2"]
    assert [each.id for each in await queue.schedulers(0, 0)] == ["s2"]
    assert await queue.scheduler("s1") == second


# ---------------------------------------------------------------------- what Node has written

FROM_NODE: dict[str, tuple[tuple[str, str | bytes], Any]] = {
    # Each was seen to be written by Node: {delay: 1.5}, and data and names with half a character in them.
    "a broken delay": (("delay", "1.5"), lambda job: job.delay == 1.5),
    "half a character in the data": (("data", '{"a":"\\ud800"}'), lambda job: len(job.data["a"]) == 1),
    "half a character in the name": (("name", b"\xed\xa0\x80"), lambda job: isinstance(job.name, str)),
    "a broken age": (
        ("opts", '{"removeOnComplete":{"age":0.5}}'),
        lambda job: completed(job, 1).keep.age == 0.5,
    ),
}


@pytest.mark.parametrize("what", FROM_NODE)
async def test_node_agrees_a_job_that_node_added_can_be_worked_on(
    what: str, queue: Queue, store: Store
) -> None:
    (name, value), is_read = FROM_NODE[what]
    await queue.add("job")
    store.ask("HSET", f"{BASE}:1", name, value)
    assert is_read(await take(queue))
