"""The worker on every kind of server: what becomes of jobs, whatever their handlers do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from tests.queue import handlers
from tests.waiting import until
from toril import Connection, InvalidValue, connect
from toril.queue import (
    AddJob,
    Backoff,
    DelayedError,
    Job,
    JobOptions,
    KeepJobs,
    Limiter,
    Queue,
    RateLimitError,
    UnrecoverableError,
    UntaggedName,
    WaitingChildrenError,
    Worker,
)
from toril.queue.options import Parent
from toril.testing import Cluster, Server

NAME = "{work}"


@pytest.fixture
def queue(redis: Connection) -> Queue:
    return Queue(NAME, redis)


def worker_for(queue: Queue, **options: Any) -> Worker:
    return Worker(queue.name, queue.store.redis, **options)


async def until_counts(queue: Queue, seconds: float = 20.0, **wanted: int) -> None:
    async def reached() -> bool:
        counts = await queue.counts()
        return all(counts[name.replace("_", "-")] == number for name, number in wanted.items())

    try:
        await until(reached, seconds)
    except TimeoutError:
        raise AssertionError(f"wanted {wanted}, have {await queue.counts()}") from None


@asynccontextmanager
async def working(queue: Queue, handler: Callable[..., Any], **options: Any) -> AsyncIterator[Worker]:
    how = {name: options.pop(name) for name in ("in_process", "timeout") if name in options}
    worker = worker_for(queue, **options)
    worker.handler(**how)(handler)
    async with worker:
        yield worker


async def found(queue: Queue, job: Job) -> Job:
    stored = await queue.job(job.id)
    assert stored is not None
    return stored


# ------------------------------------------------------------------------- how jobs end


async def test_jobs_are_completed_with_what_the_handler_returns(queue: Queue) -> None:
    async def double(job: Job) -> int:
        await job.update_progress({"at": 1})
        await job.log("doubling")
        return int(job.data["n"]) * 2

    async with working(queue, double, concurrency=5, worker_name="w1") as worker:
        seen: list[Any] = []
        worker.on("completed")(lambda job, value: seen.append((job.id, value)))
        jobs = await queue.add_bulk([AddJob("double", {"n": n}) for n in range(50)])
        await until_counts(queue, completed=50)
    done = await found(queue, jobs[7])
    assert done.return_value == 14
    assert done.attempts_made == 1
    assert done.processed_by == "w1"
    assert done.progress == {"at": 1}
    assert await done.logs() == ["doubling"]
    assert sorted(value for _, value in seen) == [n * 2 for n in range(50)]


async def test_jobs_are_taken_in_order(queue: Queue) -> None:
    await queue.add_bulk([AddJob("j", n, JobOptions(priority=9 - n if n >= 5 else None)) for n in range(9)])
    order: list[int] = []

    async def note(job: Job) -> None:
        order.append(job.data)

    async with working(queue, note):
        await until_counts(queue, completed=9)
    assert order == [0, 1, 2, 3, 4, 8, 7, 6, 5]


async def test_failed_jobs_are_tried_again_with_backoff(queue: Queue) -> None:
    tries: list[float] = []

    async def flaky(job: Job) -> str:
        tries.append(time.monotonic())
        if job.attempts_made < 2:
            raise ValueError(f"try {job.attempts_made}")
        return "at last"

    async with working(queue, flaky, drain_delay=60) as worker:
        problems: list[str] = []
        worker.on("failed")(lambda job, problem: problems.append(str(problem)))  # noqa: ARG005
        options = JobOptions(attempts=3, backoff=Backoff("exponential", 200))
        job = await queue.add("flaky", {}, options)
        await until_counts(queue, completed=1)
    done = await found(queue, job)
    assert done.return_value == "at last"
    assert problems == ["try 0", "try 1"]
    assert len(done.stack_traces) == 2
    assert "ValueError: try 1" in done.stack_traces[1]
    assert tries[1] - tries[0] >= 0.2
    assert tries[2] - tries[1] >= 0.4


async def test_jobs_fail_for_good(queue: Queue) -> None:
    async def hopeless(job: Job) -> None:
        raise UnrecoverableError("no use") if job.name == "stop" else RuntimeError("broken")

    async with working(queue, hopeless):
        stop = await queue.add("stop", {}, JobOptions(attempts=5))
        plain = await queue.add("plain", {}, JobOptions(attempts=2))
        await until_counts(queue, failed=2)
    assert (await found(queue, stop)).attempts_made == 1
    assert (await found(queue, stop)).failed_reason == "no use"
    assert (await found(queue, plain)).attempts_made == 2


async def test_retention_of_the_worker_and_of_the_job(queue: Queue) -> None:
    async def nothing(job: Job) -> None:
        pass

    async with working(queue, nothing, remove_on_complete=KeepJobs(count=3)):
        await queue.add_bulk([AddJob("j", n) for n in range(20)])
        await queue.add("own", {}, JobOptions(remove_on_complete=True))
        await until_counts(queue, waiting=0, active=0)
    assert (await queue.counts())["completed"] == 3


async def test_delayed_jobs_run_when_they_are_due(queue: Queue) -> None:
    late: dict[int, float] = {}
    started = time.monotonic()

    async def note(job: Job) -> None:
        late[job.data] = time.monotonic() - started

    async with working(queue, note, drain_delay=60):
        for delay in (300, 900):
            await queue.add("later", delay, JobOptions(delay=delay))
        await until_counts(queue, completed=2)
    # Woken by the marker, not by the drain delay.
    assert late[300] >= 0.29
    assert late[900] >= 0.89


async def test_an_idle_worker_is_woken_at_once(queue: Queue) -> None:
    async def nothing(job: Job) -> None:
        pass

    async with working(queue, nothing, drain_delay=60):
        for number in range(1, 21):
            await queue.add("j", number)
            await until_counts(queue, completed=number)


async def test_a_limiter_slows_all_workers_down(queue: Queue) -> None:
    times: list[float] = []

    async def note(job: Job) -> None:  # noqa: ARG001
        times.append(time.monotonic())

    limiter = Limiter(max=5, duration=400)
    async with (
        working(queue, note, concurrency=10, limiter=limiter),
        working(queue, note, concurrency=10, limiter=limiter),
    ):
        await queue.add_bulk([AddJob("j", n) for n in range(15)])
        await until_counts(queue, completed=15)
    assert times[-1] - times[0] >= 0.39
    for first in times:
        assert sum(first <= other < first + 0.35 for other in times) <= 10


async def test_handlers_move_their_jobs_themselves(queue: Queue) -> None:
    runs: list[str] = []

    async def moving(job: Job) -> str:
        runs.append(job.name)
        first = job.attempts_started == 1
        if job.name == "later" and first:
            await job.move_to_delayed(job.store.clock() + 100)
            raise DelayedError
        if job.name == "limited" and first:
            await Queue(queue.name, queue.store.redis).rate_limit(200)
            raise RateLimitError
        if job.name == "parent" and await job.move_to_waiting_children():
            raise WaitingChildrenError
        return job.name

    async with working(queue, moving, limiter=Limiter(max=100, duration=1000)):
        await queue.add("later", {})
        await until_counts(queue, completed=1)
        parent = await queue.add("parent", {}, JobOptions(job_id="the-parent", delay=50))
        key = queue.keys.base.rstrip(":")
        await queue.add("child", {}, JobOptions(parent=Parent(parent.id, key)))
        await until_counts(queue, completed=3)
        await queue.add("limited", {})
        await until_counts(queue, completed=4)
    assert runs.count("later") == runs.count("limited") == 2
    assert (await found(queue, parent)).attempts_made == 1
    assert await (await found(queue, parent)).children_values() == {f"{key}:3": "child"}


# ------------------------------------------------------------------------- kinds of handlers


async def test_plain_handlers_run_in_threads(queue: Queue) -> None:
    together = threading.Barrier(4, timeout=10)

    def blocking(job: Any) -> str:
        together.wait()  # four at once, or it breaks
        job.update_progress(1)
        job.log(threading.current_thread().name)
        return str(job.data)

    async with working(queue, blocking, concurrency=4):
        jobs = await queue.add_bulk([AddJob("j", n) for n in range(4)])
        await until_counts(queue, completed=4)
    done = await found(queue, jobs[2])
    assert done.return_value == "2"
    assert done.progress == 1
    assert await done.logs() == [f"toril-job-{jobs[2].id}"]


async def test_computing_handlers_run_in_processes(queue: Queue) -> None:
    async with working(queue, handlers.multiply, in_process=True, concurrency=2):
        job = await queue.add("m", {"a": 6, "b": 7})
        await until_counts(queue, completed=1)
    done = await found(queue, job)
    assert done.return_value == 42
    assert done.progress == 50
    assert await done.logs() == ["half-way"]


async def test_an_endless_loop_in_a_process_is_killed_at_its_timeout(queue: Queue) -> None:
    worker = worker_for(queue, concurrency=1)
    worker.handler("endless", in_process=True, timeout=0.5)(handlers.endless)
    worker.handler("multiply", in_process=True)(handlers.multiply)
    async with worker:
        stuck = await queue.add("endless", {})
        after = await queue.add("multiply", {"a": 1, "b": 2})
        await until_counts(queue, failed=1, completed=1)
    assert (await found(queue, stuck)).failed_reason == "timed out after 0.5 s"
    assert (await found(queue, after)).return_value == 2, "the slot is used again"


@pytest.mark.parametrize(
    ("handler", "data", "reason"),
    [
        (handlers.dies, {}, "the handler's process is gone (exit code 3)"),
        (handlers.fails, {}, "wrong"),
        (handlers.fails, "for good", "hopeless"),
        (handlers.unpicklable, {}, "the result cannot be handed over"),
    ],
)
async def test_what_a_handler_in_a_process_can_do_wrong(
    queue: Queue, handler: Any, data: Any, reason: str
) -> None:
    async with working(queue, handler, in_process=True):
        job = await queue.add("j", data)
        await until_counts(queue, failed=1)
    assert reason in str((await found(queue, job)).failed_reason)


async def test_handlers_have_timeouts_and_can_be_cancelled(queue: Queue) -> None:
    async def forever(job: Job) -> None:  # noqa: ARG001
        await asyncio.Event().wait()

    def sleepy(job: Any) -> None:  # noqa: ARG001
        threading.Event().wait(2)

    worker = worker_for(queue, concurrency=3)
    worker.handler("forever")(forever)
    worker.handler("timed", timeout=0.1)(forever)
    worker.handler("thread", timeout=0.1)(sleepy)
    async with worker:
        timed, thread, job = [await queue.add(name, {}) for name in ("timed", "thread", "forever")]
        await until_counts(queue, failed=2, active=1)
        assert worker.cancel(job.id, "not needed any more")
        assert not worker.cancel("no such job")
        await until_counts(queue, failed=3)
    assert (await found(queue, timed)).failed_reason == "timed out after 0.1 s"
    assert (await found(queue, thread)).failed_reason == "timed out after 0.1 s"
    assert (await found(queue, job)).failed_reason == "not needed any more"


# ------------------------------------------------------------------------- schemas


@dataclass
class AsDataclass:
    id: int
    name: str = "?"


class AsStruct(msgspec.Struct):
    id: int
    name: str = "?"


class AsDict(TypedDict):
    id: int


class AsModel(pydantic.BaseModel):
    id: int
    name: str = "?"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        *((schema, "Expected `int`, got `str` - at `$.id`") for schema in (AsDataclass, AsStruct, AsDict)),
        (AsModel, "Input should be a valid integer, unable to parse string as an integer - at `$.id`"),
    ],
)
async def test_data_that_does_not_fit_fails_at_once(queue: Queue, schema: Any, reason: str) -> None:
    got: list[Any] = []

    async def typed(job: Job, data: Any) -> None:  # noqa: ARG001
        got.append(data)

    typed.__annotations__["data"] = schema
    async with working(queue, typed):
        good = await queue.add("j", {"id": 7})
        bad = await queue.add("j", {"id": "seven"}, JobOptions(attempts=5))
        await until_counts(queue, completed=1, failed=1)
    assert got[0] == {"id": 7} if schema is AsDict else got[0].id == 7
    failed = await found(queue, bad)
    assert failed.attempts_made == 1, "trying again would not help"
    assert failed.failed_reason == f"the data does not fit {schema.__name__}: {reason}"
    assert (await found(queue, good)).finished_on


async def test_handlers_by_name(queue: Queue) -> None:
    worker = worker_for(queue)
    worker.handler("a")(lambda job: "A")  # noqa: ARG005
    async with worker:
        a, b = await queue.add("a", {}), await queue.add("b", {}, JobOptions(attempts=3))
        await until_counts(queue, completed=1, failed=1)
    assert (await found(queue, a)).return_value == "A"
    assert (await found(queue, b)).failed_reason == "no handler for jobs named 'b'"
    assert (await found(queue, b)).attempts_made == 1


# ------------------------------------------------------------------------- losing and closing


async def test_no_job_lost_a_stalled_job_is_run_again(queue: Queue) -> None:
    job = await queue.add("j", {})
    taken = await queue.store.step([], ["dead-worker:1"])
    assert [each.id for each in taken.jobs] == [job.id]
    await queue.store.redis.command("DEL", queue.keys.lock(job.id))
    stalled: list[str] = []

    async def nothing(job: Job) -> str:  # noqa: ARG001
        return "done"

    worker = worker_for(queue, stalled_interval=100)
    worker.handler()(nothing)
    worker.on("stalled")(stalled.append)
    async with worker:
        await until_counts(queue, completed=1)
    assert stalled == [job.id]
    assert (await found(queue, job)).stalled_count == 1


async def test_a_worker_that_lost_its_lock_cannot_finish(queue: Queue) -> None:
    running, go_on = asyncio.Event(), asyncio.Event()
    lost: list[str] = []

    async def slow(job: Job) -> str:  # noqa: ARG001
        running.set()
        await go_on.wait()
        return "mine"

    worker = worker_for(queue, lock_duration=400)
    worker.handler()(slow)
    worker.on("lock_lost")(lambda job: lost.append(job.id))
    async with worker:
        job = await queue.add("j", {})
        await running.wait()
        await queue.store.redis.command("SET", queue.keys.lock(job.id), "another", "PX", 60_000)

        async def noticed() -> bool:
            return bool(lost)

        await until(noticed)
        go_on.set()
        assert (await queue.counts())["active"] == 1
    assert lost == [job.id]
    assert (await found(queue, job)).return_value is None


async def test_closing_waits_for_jobs_and_hands_back_the_rest(queue: Queue) -> None:
    started: list[int] = []
    quick = asyncio.Event()

    async def handler(job: Job) -> str:
        started.append(job.data)
        await (quick if job.data == 0 else asyncio.Event()).wait()
        return "done"

    worker = worker_for(queue, concurrency=2, grace=0.3)
    worker.handler()(handler)
    await worker.start()
    jobs = await queue.add_bulk([AddJob("j", n) for n in range(3)])
    await until_counts(queue, active=2)
    closing = asyncio.create_task(worker.close())
    quick.set()
    await closing
    assert await queue.counts("completed", "waiting", "active") == {
        "completed": 1, "waiting": 2, "active": 0, "paused": 0,
    }  # fmt: skip
    assert await queue.ids("waiting", oldest_first=True) == [jobs[1].id, jobs[2].id], "in front again"
    back = await found(queue, jobs[1])
    assert back.attempts_made == 0
    assert started == [0, 1]
    await worker.run()  # returns: it is closed


async def test_force_close_hands_back_at_once(queue: Queue) -> None:
    async def forever(job: Job) -> None:  # noqa: ARG001
        await asyncio.Event().wait()

    worker = worker_for(queue)
    worker.handler()(forever)
    await worker.start()
    await queue.add("j", {})
    await until_counts(queue, active=1)
    async with asyncio.timeout(10):
        await worker.close(force=True)
    assert (await queue.counts())["waiting"] == 1


async def test_pausing_a_worker(queue: Queue) -> None:
    async def nothing(job: Job) -> None:
        pass

    redis = queue.store.redis

    async def waits_for_jobs() -> bool:
        clients = (await redis.each_primary("INFO", "clients")).values()
        return not all(b"blocked_clients:0\r" in each for each in clients)

    async def leaves_them_to_others() -> bool:
        return not await waits_for_jobs() and await redis.command("EXISTS", queue.keys.marker) == 1

    async with working(queue, nothing) as worker:
        await queue.add("j", {})
        await until_counts(queue, completed=1)
        await until(waits_for_jobs)
        worker.pause()
        await queue.add("j", {})
        await until(leaves_them_to_others)
        assert (await queue.counts())["waiting"] == 1
        worker.resume()
        await until_counts(queue, completed=2)


async def test_workers_are_seen(queue: Queue) -> None:
    async def nothing(job: Job) -> None:
        pass

    async with working(queue, nothing, worker_name="anna"), working(queue, nothing):
        await queue.add("j", {})
        await until_counts(queue, completed=1)
        seen = await queue.workers()
        assert sorted(client["name"] for client in seen) == ["", "anna"]


# ------------------------------------------------------------------------- what is refused


async def test_bad_workers_are_refused(redis: Connection) -> None:
    for options, rule in (
        ({"concurrency": 0}, "concurrency 0"),
        ({"concurrency": 1.5}, "concurrency 1.5"),
        ({"worker_name": "a b"}, "worker name 'a b'"),
        ({"lock_duration": -1}, "lock_duration -1"),
    ):
        with pytest.raises(InvalidValue, match=rule):
            Worker(NAME, redis, **options)
    for limiter in ((0, 10), (1, 0)):
        with pytest.raises(InvalidValue, match="limiter"):
            Limiter(*limiter)
    with pytest.raises(InvalidValue, match="it has no handler"):
        await Worker(NAME, redis).start()
    worker = Worker(NAME, redis)
    worker.handler("a")(lambda job: None)  # noqa: ARG005
    with pytest.raises(InvalidValue, match="there is one for that name already"):
        worker.handler("a")
    with pytest.raises(InvalidValue, match="event 'never'"):
        worker.on("never")

    async def not_in_a_process(job: Job) -> None:
        pass

    for function, rule in (
        (not_in_a_process, "must not be asynchronous"),
        (lambda job: None, "at the top of a module"),  # noqa: ARG005
    ):
        with pytest.raises(InvalidValue, match=rule):
            worker.handler("b", in_process=True)(function)
    with pytest.raises(InvalidValue, match="it takes the job"):
        worker.handler("c")(lambda: None)
    with pytest.raises(InvalidValue, match="timeout"):
        worker.handler("d", timeout=0)(lambda job: None)  # noqa: ARG005


async def test_an_untagged_name_is_refused_on_a_cluster(server: Server | Cluster) -> None:
    async with connect(server.url) as redis:
        if not redis.clustered:
            Queue("plain", redis)
            return
        with pytest.raises(UntaggedName, match=r"use '\{plain\}'"):
            Queue("plain", redis)
        worker = Worker("plain", redis)
        worker.handler()(lambda job: None)  # noqa: ARG005
        with pytest.raises(UntaggedName, match=r"use '\{plain\}'"):
            await worker.start()
        Queue("plain", redis, prefix="{bull}")
