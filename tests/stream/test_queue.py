"""Adding jobs, looking at them, and deciding about them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.conftest import Servers, emptied
from tests.stream.parts import FAST, NAME, Gate, make_queue, total, until_dead, until_empty, working
from tests.waiting import until
from toril import Connection, Durability, InvalidValue, connect
from toril.connection import DurabilityNotReached
from toril.stream import (
    AddJob,
    BacklogFull,
    BulkFailed,
    JobCancelled,
    JobDead,
    JobMissing,
    ResultNotKept,
    ResultTimeout,
    Route,
    StepJob,
    StreamJob,
    StreamOptions,
    StreamQueue,
    StreamWorker,
    UnfitPayload,
    UnrecoverableError,
    partition_of,
    stream_queues,
)

STEP = {
    "run_id": "run-1",
    "step_id": "step-1",
    "step_type": "llm",
    "input": {"prompt": "¿qué?"},
    "tenant_id": "acme",
    "agent_id": "agent-7",
    "priority": 1,
}


async def echo(job: StreamJob) -> Any:
    return job.data


async def test_a_step_is_what_a_queue_carries_by_default(redis: Connection) -> None:
    queue = StreamQueue(NAME, redis)
    worker = StreamWorker(NAME, redis)
    seen: list[tuple[StreamJob, StepJob]] = []

    @worker.handler("llm")
    async def think(job: StreamJob, step: StepJob) -> dict[str, Any]:
        seen.append((job, step))
        return {"answer": step.input["prompt"]}

    async with worker:
        by_type = await queue.add(msgspec.convert(STEP, StepJob), result_ttl=10)
        by_fields = await queue.add({**STEP, "step_id": "step-2"}, result_ttl=10)
        assert await by_type.result(10) == {"answer": "¿qué?"}
        assert await by_fields.result(10) == {"answer": "¿qué?"}
    job, step = seen[0]
    assert (job.name, job.key, job.tenant, job.priority) == ("llm", "run-1", "acme", 1)
    assert step == msgspec.convert(STEP, StepJob)
    with pytest.raises(UnfitPayload, match=r"step_type"):
        await queue.add({**STEP, "step_type": "magic"})
    assert (await total(queue)).added_total == 2
    assert await stream_queues(redis) == [NAME]


async def test_bad_input_names_the_field_and_changes_nothing(redis: Connection) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, largest=100))
    for wrong, field in (
        ({"key": ""}, "key"),
        ({"key": "k" * 257}, "key"),
        ({"tenant": "a\nb"}, "tenant"),
        ({"name": 3}, "name"),
        ({"priority": -1}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"delay": -1}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"result_ttl": "x"}, "result_ttl"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"unique": ""}, "unique"),
        ({"unique_for": 0}, "unique_for"),
    ):
        with pytest.raises(InvalidValue, match=f"^{field} "):
            await queue.add({}, **wrong)
    with pytest.raises(InvalidValue, match="^data "):
        await queue.add(object())
    with pytest.raises(InvalidValue, match="^data "):
        await queue.add("x" * 100)
    for options in (
        {"levels": 0},
        {"weights": (1,)},
        {"backlog": 0},
        {"dead_head": "x"},
        {"partitions": 101},
    ):
        with pytest.raises(InvalidValue, match=f"^{next(iter(options))} "):
            StreamOptions(**options)
    for name in ("", "{x}", "a:7", "a b"):
        with pytest.raises(InvalidValue, match="stream name"):
            StreamQueue(name, redis)
    assert (await total(queue)).added_total == 0
    with pytest.raises(InvalidValue, match="job id"):
        await queue.look("nonsense")
    with pytest.raises(JobMissing):
        await queue.look("1-1")


async def test_options_are_kept_in_redis_and_shared(redis: Connection) -> None:
    await make_queue(redis, StreamOptions(backlog=7, levels=2))
    assert (await (await make_queue(redis, None)).options()).backlog == 7
    await make_queue(redis, StreamOptions(backlog=8, levels=3))
    assert (await StreamQueue(NAME, redis).options()).backlog == 8
    with pytest.raises(InvalidValue, match="partitions"):
        await make_queue(redis, StreamOptions(partitions=2))
    with pytest.raises(InvalidValue, match="levels"):
        await make_queue(redis, StreamOptions(levels=1))


async def test_a_full_backlog_refuses_and_adds_nothing(redis: Connection) -> None:
    queue = await make_queue(redis, StreamOptions(backlog=3))
    await queue.add_bulk([AddJob(data=1), AddJob(data=2, key="k")])
    with pytest.raises(BacklogFull, match="2 jobs of at most 3"):
        await queue.add_bulk([AddJob(data=3), AddJob(data=4)])
    assert (await total(queue)).backlog == 2
    await queue.add(3, unique="u")
    assert not (await queue.add(3, unique="u")).is_new, "a job that is there already is not refused"
    with pytest.raises(BacklogFull):
        await queue.add(4, delay=5)
    async with working(redis, echo):
        await until_empty(queue)
    assert (await total(queue)).backlog_bytes == 0
    await queue.add(5)

    small = await make_queue(redis, StreamOptions(backlog_bytes=10), name="small")
    await small.add("12345678")
    with pytest.raises(BacklogFull, match="10 bytes of at most 10"):
        await small.add(1)


async def test_a_large_bulk_is_added_in_steps_or_refused_whole(redis: Connection) -> None:
    queue = await make_queue(redis, StreamOptions(backlog=1500))
    with pytest.raises(BacklogFull):
        await queue.add_bulk([AddJob(data=n) for n in range(1501)])
    assert (await total(queue)).backlog == 0
    added = await queue.add_bulk([AddJob(data=n, key="k" if n % 3 else None) for n in range(1500)])
    assert len({job.id for job in added}) == 1500
    assert (await total(queue)).backlog == 1500

    split = await make_queue(redis, StreamOptions(backlog=10, partitions=2), name="split")
    here, there = (next(key for key in "abcdefgh" if partition_of(key, 2) == number) for number in (0, 1))
    with pytest.raises(BulkFailed) as failed:
        await split.add_bulk([AddJob(data=n, key=here if n < 11 else there) for n in range(16)])
    kept = [job for job in failed.value.ids if job]
    assert len(kept) == 5, "one partition had room for its part, the other not"
    assert isinstance(failed.value.problem, BacklogFull)
    assert (await total(split)).backlog == 5


async def test_what_was_added_and_not_replicated_in_time_is_said(servers: Servers) -> None:
    """Without a replica, nothing is ever replicated; but the jobs are there, and are named."""
    made = emptied(servers.get("valkey-standalone"))
    async with connect(made.url) as redis:
        queue = await make_queue(redis)
        durability = Durability("replicated", timeout=0.05)
        with pytest.raises(BulkFailed) as failed:
            await queue.add_bulk([AddJob(data=1), AddJob(data=2)], durability=durability)
        assert isinstance(failed.value.problem, DurabilityNotReached)
        assert [(await queue.look(job or "")).data for job in failed.value.ids] == [1, 2]
        with pytest.raises(DurabilityNotReached):
            await queue.add(3, durability=durability)


async def test_a_unique_name_gives_the_same_job(redis: Connection) -> None:
    queue = await make_queue(redis)
    first = await queue.add(1, unique="order-17")
    names = ("order-17", "x", "x")
    again = await queue.add_bulk([AddJob(data=2, unique=name) for name in names])
    assert first.is_new
    assert [job.is_new for job in again] == [False, True, False]
    assert again[0].id == first.id
    assert again[1].id == again[2].id
    assert (await total(queue)).backlog == 2
    brief = await queue.add(1, unique="brief", unique_for=0.05)

    async def another() -> bool:
        return (await queue.add(1, unique="brief")).id != brief.id

    await until(another)


async def test_results_are_kept_for_those_who_want_them(redis: Connection) -> None:
    queue = await make_queue(redis)

    async def run(job: StreamJob) -> Any:
        if job.data == "bad":
            raise UnrecoverableError("no good")
        return {"was": job.data}

    waiting = await queue.add("later", delay=0.1, result_ttl=10)
    with pytest.raises(ResultTimeout):
        await waiting.result(0.01)
    with pytest.raises(ResultNotKept):
        await (await queue.add("not kept", delay=60)).result(5)
    async with working(redis, run):
        assert await waiting.result(10) == {"was": "later"}
        many = await queue.add_bulk([AddJob(data=n, result_ttl=10) for n in range(50)])
        assert await asyncio.gather(*(job.result(10) for job in many)) == [{"was": n} for n in range(50)]
        bad = await queue.add("bad", result_ttl=10)
        with pytest.raises(JobDead, match="no good") as dead:
            await bad.result(10)
        assert dead.value.reason == "permanent"
    assert (await many[0].look()).state == "completed"
    assert (await bad.look()).reason == "permanent"
    with pytest.raises(JobMissing):
        await queue.job("17-1").result(1)


@pytest.mark.parametrize("key", ["", "k"])
async def test_every_state_of_a_job_can_be_seen(redis: Connection, key: str) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, claim_idle=60))
    gate = Gate()
    more: dict[str, Any] = {"key": key} if key else {}
    delayed = await queue.add("delayed", delay=60, **more)
    first = await queue.add("first", **more)
    second = await queue.add("second", **more)
    assert (await first.state(), await second.state()) == ("ready", "waiting" if key else "ready")
    seen = await delayed.look()
    assert seen.state == "delayed"
    assert seen.due is not None
    async with working(redis, gate.run) as worker:
        await gate.until_came(1)
        seen = await first.look()
        assert (seen.state, seen.consumer, seen.deliveries) == ("running", worker.consumer, 1)
        pending = {job.id: job.consumer for job in await queue.pending()}
        assert pending[first.id] == worker.consumer
        (alive,) = await queue.workers()
        assert (alive.consumer, alive.alive) == (worker.consumer, True)
        gate.opened.set()
        await until(lambda: len(gate.came) == 2)
    assert await delayed.state() == "delayed"
    with pytest.raises(JobMissing):
        await first.look()


@pytest.mark.parametrize("more", [{}, {"key": "k"}, {"tenant": "t"}])
async def test_a_waiting_job_is_cancelled_and_never_runs(redis: Connection, more: dict[str, Any]) -> None:
    queue = await make_queue(redis)
    jobs = await queue.add_bulk([AddJob(data=n, result_ttl=10, **more) for n in range(3)])
    late = await queue.add("late", delay=60, **more)
    for job in (jobs[0], jobs[1], late):
        assert await job.cancel() == "removed"
    with pytest.raises(JobCancelled):
        await jobs[0].result(5)
    gate = Gate()
    gate.opened.set()
    async with working(redis, gate.run):
        assert await jobs[2].result(10) == 2
        await until_empty(queue)
    assert gate.came == [2]
    metrics = await total(queue)
    assert (metrics.cancelled_total, metrics.backlog_bytes, metrics.lag) == (3, 0, 0)
    with pytest.raises(JobMissing):
        await queue.cancel("17-1")


@pytest.mark.parametrize("more", [{}, {"key": "k"}])
async def test_a_running_job_is_stopped_when_it_is_cancelled(redis: Connection, more: dict[str, Any]) -> None:
    queue = await make_queue(
        redis, msgspec.structs.replace(FAST, claim_idle=60)
    )  # the next renewal is 5 s away
    gate = Gate()
    async with working(redis, gate.run):
        job = await queue.add("endless", result_ttl=10, **more)
        after = await queue.add("after", result_ttl=10, **more)
        await gate.until_came(1)
        assert await job.cancel() == "asked"
        with pytest.raises(JobCancelled):
            await job.result(4)
        assert gate.stopped == ["endless"]
        gate.opened.set()
        assert await after.result(10) == "after"


async def test_a_paused_queue_gives_nothing_out(redis: Connection) -> None:
    queue = await make_queue(redis)
    gate = Gate()
    gate.opened.set()
    async with working(redis, gate.run):
        await queue.pause()
        job = await queue.add(1, result_ttl=10)
        with pytest.raises(ResultTimeout):
            await job.result(0.7)  # longer than an idle worker waits before it looks
        assert (await total(queue)).paused
        assert not gate.came
        await queue.resume()
        assert await job.result(10) == 1


async def test_data_says_what_else_is_known_of_a_job(redis: Connection) -> None:
    queue = StreamQueue("orders", redis, schema=None, route=Route(key="order", tenant="shop"))
    await queue.add({"order": "o1", "shop": "s", "name": "ignored"})
    job = await (await queue.add({"order": "o1", "shop": "s"}, tenant="other", name="n")).look()
    assert (job.key, job.tenant, job.name, job.state) == ("o1", "other", "n", "waiting")
    with pytest.raises(InvalidValue, match="key"):
        await queue.add({"order": 17})


async def test_partitions_share_the_jobs_and_keep_keys_together(redis: Connection) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, partitions=4))
    order: dict[str, list[int]] = {}

    async def run(job: StreamJob) -> Any:
        order.setdefault(job.key, []).append(job.data)
        await asyncio.sleep(0)
        return job.id

    jobs = await queue.add_bulk([AddJob(data=n, key=f"k{n % 7}") for n in range(70)])
    jobs += await queue.add_bulk([AddJob(data=n, result_ttl=10) for n in range(8)])
    assert {job.id[-3:] for job in jobs[70:]} == {"-00", "-01", "-02", "-03"}
    later = await queue.add("later", delay=60)
    assert await later.cancel() == "removed"
    async with working(redis, run, concurrency=5):
        assert [await job.result(10) for job in jobs[70:]] == [job.id for job in jobs[70:]]
        await until_empty(queue)
    assert {key: order[key] for key in order if key} == {f"k{k}": list(range(k, 70, 7)) for k in range(7)}
    metrics = await queue.metrics()
    assert metrics.total.done_total == 78
    assert all(part.done_total > 0 for part in metrics.partitions)


async def test_a_flushed_server_is_no_end(redis: Connection) -> None:
    queue = await make_queue(redis)
    async with working(redis, echo):
        assert await (await queue.add(1, result_ttl=10)).result(10) == 1
        await redis.each_primary("FLUSHALL")
        assert await (await queue.add(2, result_ttl=10)).result(10) == 2
        assert await (await queue.add(3, key="k", result_ttl=10)).result(10) == 3
    await until_dead(queue, 0)
