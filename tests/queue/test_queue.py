"""The queue as its users have it, on every kind of server.

That its state is BullMQ's is shown in ``tests/conformance``; here it is what the calls promise by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.dump import differences
from tests.conformance.sides import open_store
from tests.conformance.store import Line, Store
from toril import Connection, Durability, connect
from toril.connection import DurabilityNotReached, DurabilityRefused, OutOfMemory
from toril.queue import (
    AddJob,
    Backoff,
    BulkFailed,
    Deduplication,
    Job,
    JobMissing,
    JobOptions,
    JobScheduled,
    KeepJobs,
    LockLost,
    Parent,
    ParentMissing,
    Queue,
    QueueError,
    WrongState,
)
from toril.queue.outcomes import completed, failed
from toril.queue.queue import ALL_STATES, BULK_JOBS
from toril.queue.store import TakeOptions
from toril.testing import Cluster, Server, cluster, standalone

NAME = "{queue}"
BASE = f"bull:{NAME}"
MINUTE = 60_000


class Clock:
    """Time that stands until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(redis: Connection, clock: Clock) -> Queue:
    return Queue(NAME, redis, clock=clock)


@pytest.fixture
def store(server: Server | Cluster) -> Iterator[Store]:
    made = open_store(server)
    yield made
    made.close()


@contextmanager
def unchanged(store: Store) -> Iterator[None]:
    """Nothing in the server may differ afterwards."""
    before = store.dump()
    yield
    assert not differences(before, store.dump())


async def take(queue: Queue, token: str = "t", **options: Any) -> Job:
    """The next job, as a worker has it."""
    (job,) = (await queue.store.step([], [token], TakeOptions(**options))).jobs
    return Job.of(queue.store, job)


async def complete(queue: Queue, value: Any = None, **options: Any) -> Job:
    """Take the next job and finish it."""
    job = await take(queue)
    await queue.store.step([completed(job, value)], [], TakeOptions(**options))
    return job


async def fail(queue: Queue, reason: str = "boom") -> Job:
    """Take the next job and let it fail."""
    job = await take(queue)
    await queue.store.step([failed(job, Exception(reason), "a trace")])
    return job


async def taken(queue: Queue) -> list[str]:
    """The ids of all that waits, in the order in which workers get them."""
    result = await queue.store.step([], [f"t{number}" for number in range(100)])
    return [job.id for job in result.jobs]


def events(store: Store) -> list[dict[str, str]]:
    return [dict(pairs) for _, pairs in store.dump()[f"{BASE}:events"].value]


async def add_named(queue: Queue, *ids: str, **options: Any) -> list[Job]:
    return [await queue.add("job", {"id": name}, JobOptions(job_id=name, **options)) for name in ids]


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


# ---------------------------------------------------------------------- pausing


async def test_a_paused_queue_gives_nothing_and_keeps_its_order(queue: Queue, store: Store) -> None:
    await add_named(queue, "a", "b")
    await queue.pause()
    assert await queue.is_paused()
    await add_named(queue, "c")
    assert await taken(queue) == []
    assert await queue.counts("waiting") == {"waiting": 0, "paused": 3}
    assert f"{BASE}:marker" not in store.dump()
    await queue.resume()
    assert not await queue.is_paused()
    assert store.dump()[f"{BASE}:marker"].value == {"0": 0.0}
    assert await taken(queue) == ["a", "b", "c"]
    assert [event["event"] for event in events(store) if event["event"] in ("paused", "resumed")] == [
        "paused",
        "resumed",
    ]


async def test_no_job_lost_that_another_version_left_in_wait(queue: Queue, store: Store) -> None:
    """A client of BullMQ 6 pauses a queue where it stands; BullMQ 5's resume would overwrite its jobs."""
    await add_named(queue, "a", "b")
    store.ask("HSET", f"{BASE}:meta", "paused", 1)
    await add_named(queue, "c", "d")
    assert await queue.counts("waiting") == {"waiting": 2, "paused": 2}
    await queue.resume()
    assert sorted(await taken(queue)) == ["a", "b", "c", "d"]


async def test_no_job_lost_that_another_version_left_in_paused(queue: Queue, store: Store) -> None:
    """A client of BullMQ 6 resumes and leaves them there; BullMQ 5's next pause would overwrite them."""
    await add_named(queue, "a", "b")
    await queue.pause()
    store.ask("HDEL", f"{BASE}:meta", "paused")
    await add_named(queue, "c", "d")
    await queue.pause()
    assert await queue.counts("waiting") == {"waiting": 0, "paused": 4}
    await queue.resume()
    assert sorted(await taken(queue)) == ["a", "b", "c", "d"]


async def test_resuming_wakes_workers_for_jobs_that_another_version_left_in_wait(
    queue: Queue, store: Store
) -> None:
    """Though ``paused`` is empty. BullMQ 5 would wake nobody, and an idle worker look in its own time."""
    await add_named(queue, "a")
    store.ask("HSET", f"{BASE}:meta", "paused", 1)
    store.ask("DEL", f"{BASE}:marker")
    await queue.resume()
    assert store.dump()[f"{BASE}:marker"].value == {"0": 0.0}


@pytest.mark.parametrize(
    "version", ["bullmq:6.0.0", "bullmq:6.2.0-rc.1", "bullmq:10.1.0", "bullmq-pro:7.0.0"]
)
async def test_a_queue_of_bullmq_6_is_not_paused(version: str, queue: Queue, store: Store) -> None:
    await add_named(queue, "a")
    store.ask("HSET", f"{BASE}:meta", "version", version)
    for verb in (queue.pause, queue.resume):
        with unchanged(store), pytest.raises(QueueError, match=version):
            await verb()


@pytest.mark.parametrize(
    "version", ["bullmq:5.62.0", "bullmq:4.18.2", "bullmq-pro:5.1.0", "mine", "bullmq:", ""]
)
async def test_other_queues_are_paused(version: str, queue: Queue, store: Store) -> None:
    store.ask("HSET", f"{BASE}:meta", "version", version)
    await queue.pause()
    assert await queue.is_paused()


async def test_a_queue_of_bullmq_6_stays_one_when_a_job_is_added(queue: Queue, store: Store) -> None:
    """BullMQ 5 writes its own version over it; from then on nobody would know."""
    store.ask("HSET", f"{BASE}:meta", "version", "bullmq:6.2.0")
    await queue.add("job")
    with pytest.raises(QueueError):
        await queue.pause()


async def test_a_queue_of_bullmq_6_is_not_paused_by_obliterating(queue: Queue, store: Store) -> None:
    """Obliterating pauses first, and jobs would be left where BullMQ 6 does not look."""
    await add_named(queue, "a", "b")
    await take(queue)
    store.ask("HSET", f"{BASE}:meta", "version", "bullmq:6.2.0")
    with unchanged(store), pytest.raises(QueueError):
        await queue.obliterate()


# ---------------------------------------------------------------------- many jobs at once


async def test_clean_removes_what_is_old_enough(queue: Queue, clock: Clock, store: Store) -> None:
    await add_named(queue, "a", "b", "c")
    for _ in range(3):
        await complete(queue)
        clock.now += 1000
    assert await queue.clean(5000) == []
    assert await queue.clean(2000) == ["a", "b"]
    assert await queue.ids("completed") == ["c"]
    assert await queue.job("a") is None
    assert [event["count"] for event in events(store) if event["event"] == "cleaned"] == ["0", "2"]


@pytest.mark.parametrize("state", ["waiting", "paused", "delayed", "prioritized", "failed", "active"])
async def test_clean_takes_the_oldest_first_up_to_a_limit(state: Any, queue: Queue) -> None:
    options = {"delayed": {"delay": 1000}, "prioritized": {"priority": 1}}.get(state, {})
    await add_named(queue, "a", "b", "c", "d", **options)
    if state == "paused":
        await queue.pause()
    for token in "1234":
        if state == "failed":
            await fail(queue)
        if state == "active":
            await take(queue, token)
    if state == "active":
        assert await queue.clean(0, state=state) == [], "they are being worked on"
        for job in await queue.jobs("active"):
            await queue.store.redis.command("DEL", queue.keys.lock(job.id))
    assert sorted(await queue.clean(0, limit=3, state=state)) == ["a", "b", "c"]
    assert await queue.ids(state) == ["d"]
    assert await queue.clean(0, limit=3, state=state) == ["d"]


async def test_clean_takes_no_more_than_the_limit(redis_server: Server) -> None:
    """Beyond 10,000 it goes in steps; the last one is shorter (in Node it is not)."""
    redis_server.ask("FLUSHALL")
    async with connect(redis_server.url) as redis:
        queue = Queue(NAME, redis)
        await queue.add_bulk([AddJob("job")] * 10_100)
        assert len(await queue.clean(0, limit=10_050, state="waiting")) == 10_050


async def test_drain_removes_what_waits(queue: Queue) -> None:
    await add_named(queue, "taken")
    await take(queue)
    for delayed in (False, True):
        await add_named(queue, "a", "b")
        await add_named(queue, "p", priority=1)
        await add_named(queue, "d", delay=1000)
        if delayed:
            await queue.pause()
        await queue.drain(delayed=delayed)
        left = ["taken"] if delayed else ["taken", "d"]
        assert sorted(await queue.ids()) == sorted(left)
        assert await queue.job("a") is None


@pytest.mark.parametrize("count", [1, 2, 1000])
async def test_drain_works_in_steps(count: int, queue: Queue, store: Store) -> None:
    """However small they are: also where jobs that stay stand in front."""
    kept = ["repeat:s1:5000", "repeat:s2:6000", "repeat:s3:7000"]
    for place, next_run in enumerate(kept, start=1):
        store.ask("ZADD", f"{BASE}:repeat", 4000 + 1000 * place, f"s{place}")
        store.ask("HSET", f"{BASE}:{next_run}", "name", "tick", "rjk", f"s{place}", "timestamp", 1)
    await add_named(queue, "a", "b")
    store.ask("LPUSH", f"{BASE}:wait", *kept[:2])
    await add_named(queue, "c", "d")
    await add_named(queue, "p1", "p2", priority=1)
    await add_named(queue, "d1", delay=1000)
    store.ask("ZADD", f"{BASE}:delayed", 7000 * 4096, kept[2])
    before, more = 10, True
    while more:
        more = await queue.store.drain(count, delayed=True)
        after = len(await queue.ids())
        assert before - after == min(count, before - 3)
        before = after
    assert await queue.ids("waiting", oldest_first=True) == kept[:2]
    assert await queue.ids() == [kept[2], *reversed(kept[:2])]


async def test_no_job_lost_a_schedulers_next_job_survives_drain_and_clean(queue: Queue, store: Store) -> None:
    store.ask("ZADD", f"{BASE}:repeat", 5000, "s1")
    for add in ("LPUSH", "RPUSH"):
        await add_named(queue, "a")
        store.ask("HSET", f"{BASE}:repeat:s1:5000", "name", "tick", "rjk", "s1", "timestamp", 1)
        store.ask(add, f"{BASE}:wait", "repeat:s1:5000")
        await add_named(queue, "b")
        if add == "LPUSH":
            await queue.drain(delayed=True)
        else:
            await queue.clean(0, state="waiting")
        assert await queue.ids("waiting") == ["repeat:s1:5000"]
        with pytest.raises(JobScheduled):
            await queue.remove("repeat:s1:5000")
        assert await taken(queue) == ["repeat:s1:5000"]
        store.ask("DEL", f"{BASE}:active")


@pytest.mark.parametrize("count", [1, 2, 1000])
async def test_obliterate_leaves_nothing(count: int, queue: Queue, store: Store, clock: Clock) -> None:
    await add_named(queue, "a", "b", "c", "d")
    await complete(queue, metrics_points=2)
    await fail(queue)
    job = await take(queue)
    await job.log("line")
    await add_named(queue, "e", delay=1000)
    await add_named(queue, "f", priority=1, deduplication=Deduplication("d"))
    clock.now += 1
    with pytest.raises(QueueError, match="Cannot obliterate queue with active jobs"):
        await queue.obliterate(count=count)
    assert len(await queue.ids()) == 6
    await queue.obliterate(force=True, count=count)
    assert not store.dump()
    assert (await queue.add("job")).id == "1"


async def test_failed_jobs_run_again(queue: Queue, clock: Clock) -> None:
    await add_named(queue, "a", "b", "c", "d")
    for _ in range(3):
        await fail(queue)
        clock.now += 1000
    await complete(queue)
    await queue.retry_jobs(until=clock.now - 2000, count=1)
    assert await queue.ids("failed", oldest_first=True) == ["c"]
    assert await queue.ids("waiting", oldest_first=True) == ["a", "b"]
    await queue.retry_jobs()
    await queue.retry_jobs("completed")
    assert await taken(queue) == ["a", "b", "c", "d"]
    job = await queue.job("a")
    assert job is not None
    assert (job.finished_on, job.failed_reason, job.attempts_made) == (None, None, 1)


async def test_delayed_jobs_run_now(queue: Queue) -> None:
    await add_named(queue, "a", "b", "c", delay=1000)
    await queue.promote_jobs(count=1)
    assert await taken(queue) == ["a", "b", "c"]


# ---------------------------------------------------------------------- limits


async def test_concurrency_over_all_workers(queue: Queue) -> None:
    assert await queue.global_concurrency() is None
    assert not await queue.is_maxed()
    assert await queue.set_global_concurrency(2) == 1
    assert await queue.set_global_concurrency(1) == 0
    assert await queue.global_concurrency() == 1
    await add_named(queue, "a", "b")
    assert await taken(queue) == ["a"]
    assert await queue.is_maxed()
    assert await queue.remove_global_concurrency() == 1
    assert await queue.remove_global_concurrency() == 0
    assert await taken(queue) == ["b"]


async def test_a_rate_over_all_workers(queue: Queue) -> None:
    assert await queue.global_rate_limit() is None
    assert await queue.set_global_rate_limit(2, MINUTE) == 2
    assert await queue.global_rate_limit() == (2, MINUTE)
    await add_named(queue, "a", "b", "c")
    assert await taken(queue) == ["a", "b"]
    assert 0 < await queue.rate_limit_ttl() <= MINUTE
    assert 0 < await queue.rate_limit_ttl(1) <= MINUTE
    assert await queue.rate_limit_ttl(3) == 0
    assert await queue.remove_rate_limit()
    assert not await queue.remove_rate_limit()
    assert await taken(queue) == ["c"]
    assert await queue.remove_global_rate_limit() == 2
    assert await queue.global_rate_limit() is None


async def test_a_rate_limit_by_hand(queue: Queue) -> None:
    assert await queue.rate_limit_ttl() < 0
    await add_named(queue, "a")
    await queue.rate_limit(MINUTE)
    assert 0 < await queue.rate_limit_ttl() <= MINUTE
    limited = await queue.store.step([], ["t"], TakeOptions(limiter_max=10, limiter_duration=1000))
    assert not limited.jobs
    assert 0 < limited.limited_for <= MINUTE
    assert await taken(queue) == ["a"], "a worker without a limiter is not concerned (a.12)"


async def test_events_are_trimmed(queue: Queue, store: Store) -> None:
    await queue.add_bulk([AddJob("job")] * 300)
    assert await queue.trim_events(0) == 600
    assert events(store) == []


# ---------------------------------------------------------------------- one job


async def test_a_jobs_log(queue: Queue) -> None:
    (job,) = await add_named(queue, "a")
    assert [await job.log(line) for line in ("one", "two", "tres ✓")] == [1, 2, 3]
    assert await job.logs() == ["one", "two", "tres ✓"]
    assert await job.logs(0, 1) == ["one", "two"]
    assert await job.logs(0, 1, newest_first=True) == ["tres ✓", "two"]
    assert await job.logs(newest_first=True) == ["tres ✓", "two", "one"]
    await job.clear_logs(keep=2)
    assert await job.logs() == ["two", "tres ✓"]
    await job.clear_logs()
    assert await job.logs() == []
    (few,) = await add_named(queue, "b", keep_logs=2)
    assert [await few.log(line) for line in ("one", "two", "three")] == [1, 2, 2]
    assert await few.logs() == ["two", "three"]
    await few.remove()
    with pytest.raises(JobMissing):
        await few.log("four")


async def test_a_job_that_keeps_no_number_of_lines_keeps_all(queue: Queue) -> None:
    """As in Node: 0 is no limit."""
    (job,) = await add_named(queue, "a", keep_logs=0)
    assert [await job.log(line) for line in ("one", "two")] == [1, 2]


async def test_data_and_progress_can_be_replaced(queue: Queue, store: Store) -> None:
    (job,) = await add_named(queue, "a")
    await job.update_data({"n": 2})
    await job.update_progress({"half": True})
    read = await queue.job("a")
    assert read is not None
    assert (job.data, job.progress) == (read.data, read.progress) == ({"n": 2}, {"half": True})
    assert events(store)[-1] == {"event": "progress", "jobId": "a", "data": '{"half":true}'}
    await job.remove()
    for call in (job.update_data, job.update_progress):
        with unchanged(store), pytest.raises(JobMissing):
            await call(1)


async def test_a_job_is_removed_unless_it_is_being_worked_on(queue: Queue, store: Store) -> None:
    free, held = await add_named(queue, "a", "b")
    await free.remove()
    assert await queue.job("a") is None
    await take(queue)
    with unchanged(store), pytest.raises(QueueError, match="locked by another worker"):
        await held.remove()
    assert not await queue.remove("b")
    assert await queue.remove("nobody")


async def test_a_finished_job_runs_again(queue: Queue) -> None:
    done, bad, waiting = await add_named(queue, "a", "b", "c")
    await complete(queue)
    await fail(queue)
    await bad.retry()
    await done.retry("completed")
    assert await queue.ids("waiting", oldest_first=True) == ["c", "b", "a"]
    for job, state in ((bad, "failed"), (waiting, "completed")):
        with pytest.raises(WrongState, match=state):
            await job.retry(state)  # type: ignore[arg-type]
    await bad.remove()
    with pytest.raises(JobMissing):
        await bad.retry()


async def test_a_delayed_job_can_be_hurried_and_put_off(queue: Queue, clock: Clock) -> None:
    soon, late, never = await add_named(queue, "a", "b", "c", delay=1000)
    await late.change_delay(500)
    await never.change_delay(9000)
    clock.now += 1000
    assert await taken(queue) == ["b", "a"]
    await never.promote()
    assert await taken(queue) == ["c"]
    for call in (soon.promote(), soon.change_delay(5)):
        with pytest.raises(WrongState, match="delayed"):
            await call


async def test_a_waiting_job_can_change_its_priority(queue: Queue) -> None:
    a, _, c, d = await add_named(queue, "a", "b", "c", "d", priority=5)
    await c.change_priority(1)
    await d.change_priority(1, lifo=True)
    await a.change_priority()
    assert await taken(queue) == ["a", "d", "c", "b"]
    with pytest.raises(JobMissing):
        await Job(queue.store, "nobody", {}).change_priority(1)


async def test_a_lock_is_renewed_by_its_owner_only(queue: Queue, clock: Clock) -> None:
    await add_named(queue, "a")
    job = await take(queue, "mine")
    assert await job.extend_lock(MINUTE)
    assert not await job.extend_lock(MINUTE, "another's")
    with pytest.raises(LockLost):
        await job.move_to_delayed(clock.now + 5, "another's")
    await job.move_to_delayed(clock.now + 5)
    assert await job.state() == "delayed"
    clock.now += 5
    again = await take(queue)
    assert again.id == "a"
    assert await again.move_to_wait() == 0
    assert await again.state() == "waiting"


# ---------------------------------------------------------------------- families


@pytest.fixture
async def parent(queue: Queue) -> Job:
    """A job that a worker has."""
    await add_named(queue, "parent")
    return await take(queue, "p")


async def test_a_parent_gets_what_its_children_return(queue: Queue, parent: Job) -> None:
    above = Parent("parent", BASE)
    await add_named(queue, "good", parent=above)
    await add_named(queue, "ignored", parent=above, ignore_dependency_on_failure=True)
    await add_named(queue, "last", parent=above)
    keys = {name: f"{BASE}:{name}" for name in ("good", "ignored", "last")}
    assert sorted(await parent.pending_children()) == sorted(keys.values())
    assert await parent.move_to_waiting_children()
    await complete(queue, {"n": [1]})
    await fail(queue, "never mind")
    assert await parent.state() == "waiting-children"
    await complete(queue)
    assert await parent.state() == "waiting"
    assert await parent.children_values() == {keys["good"]: {"n": [1]}, keys["last"]: None}
    assert await parent.ignored_failures() == {keys["ignored"]: "never mind"}
    assert await parent.failed_children() == []
    assert await parent.pending_children() == []
    again = await take(queue)
    assert not await again.move_to_waiting_children(), "there is nothing to wait for"


async def test_a_child_that_fails_its_parent_is_named(queue: Queue, parent: Job) -> None:
    await add_named(queue, "bad", parent=Parent("parent", BASE), fail_parent_on_failure=True)
    await parent.move_to_waiting_children()
    await fail(queue)
    assert await parent.failed_children() == [f"{BASE}:bad"]
    again = await take(queue)
    assert again.deferred_failure == f"child {BASE}:bad failed"


async def test_children_can_leave_and_be_removed(queue: Queue, parent: Job) -> None:
    children = await add_named(queue, "a", "b", "c", "d", parent=Parent("parent", BASE))
    assert await children[0].leave_parent()
    assert f"{BASE}:a" not in await parent.pending_children()
    with pytest.raises(ParentMissing):
        await (await add_named(queue, "alone"))[0].leave_parent()
    await take(queue)  # a
    held = await take(queue, "h")
    assert held.id == "b"
    await parent.remove_unprocessed_children()
    assert await parent.pending_children() == [f"{BASE}:b"]
    assert await queue.job("c") is None
    assert await queue.state("a") == "active"


async def test_a_parent_is_removed_with_its_children(queue: Queue, parent: Job) -> None:
    child, *_ = await add_named(queue, "a", "b", parent=Parent("parent", BASE))
    await parent.move_to_waiting_children()
    await take(queue)
    assert not await queue.remove("parent"), "a child is being worked on"
    await child.move_to_wait("t")
    assert await queue.remove("parent")
    assert await queue.ids() == []
    (parent,) = await add_named(queue, "parent")
    await add_named(queue, "a", parent=Parent("parent", BASE))
    assert await queue.remove("parent", children=False)
    assert await queue.ids() == ["a"]


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
