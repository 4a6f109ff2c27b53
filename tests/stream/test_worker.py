"""Running handlers: failures and their classes, dead letters, leases, effects, lost workers."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import msgspec
import pytest

from tests.stream.parts import FAST, NAME, Gate, forsake, make_queue, total, until_dead, until_empty, working
from tests.waiting import until
from toril import Connection, InvalidValue
from toril.stream import (
    AddJob,
    Backoff,
    BudgetExceeded,
    JobDead,
    PolicyDenied,
    StreamJob,
    StreamOptions,
    StreamWorker,
    TransientError,
    UnrecoverableError,
)
from toril.stream.worker.verdict import verdict_on
from toril.testing import Cluster, Server


class Failing:
    """A handler that raises what it is told to, as often as it is told to."""

    def __init__(self) -> None:
        self.runs: list[tuple[Any, int]] = []
        self.plan: dict[Any, list[BaseException]] = {}

    async def run(self, job: StreamJob) -> Any:
        self.runs.append((job.data, job.attempts_made))
        if self.plan.get(job.data):
            raise self.plan[job.data].pop(0)
        return job.data


@pytest.mark.parametrize("more", [{}, {"key": "k"}])
async def test_a_failed_job_is_tried_again_and_keeps_its_id(redis: Connection, more: dict[str, Any]) -> None:
    queue = await make_queue(redis)
    failing = Failing()
    failing.plan["twice"] = [ValueError("one"), TransientError("two", retry_after=0.02)]
    async with working(redis, failing.run):
        job = await queue.add("twice", result_ttl=10, **more)
        assert await job.result(10) == "twice"
        await until_empty(queue)
    assert failing.runs == [("twice", 0), ("twice", 1), ("twice", 2)]
    metrics = await total(queue)
    assert (metrics.retried_total, metrics.done_total, metrics.dead_total) == (2, 1, 0)


async def test_each_class_of_failure_ends_as_it_should(redis: Connection) -> None:
    queue = await make_queue(redis)
    failing = Failing()
    failing.plan |= {
        "policy": [PolicyDenied("not you")],
        "budget": [BudgetExceeded("spent")],
        "permanent": [UnrecoverableError("never")],
        "exhausted": [ValueError(f"try {n}") for n in range(9)],
        "own": [ValueError("once")],
    }
    worker = StreamWorker(NAME, redis, concurrency=5)
    worker.handler()(failing.run)

    @worker.handler("typed")
    async def typed(job: StreamJob, number: int) -> int:  # noqa: ARG001
        return number

    async with worker:
        for what in failing.plan:
            await queue.add(what, retries=0 if what == "own" else None, result_ttl=10)
        unfit = await queue.add("not a number", name="typed", result_ttl=10)
        with pytest.raises(JobDead, match="Expected `int`"):
            await unfit.result(10)
        await until_dead(queue, 6)
    letters = {letter.data: letter for letter in await queue.dead()}
    assert {data: (letter.reason, letter.attempts) for data, letter in letters.items()} == {
        "policy": ("policy", 1),
        "budget": ("budget", 1),
        "permanent": ("permanent", 1),
        "exhausted": ("exhausted", 4),
        "own": ("exhausted", 1),
        "not a number": ("unfit", 1),
    }
    exhausted = letters["exhausted"]
    assert (exhausted.first_error, exhausted.last_error) == ("ValueError: try 0", "ValueError: try 3")
    assert exhausted.consumer == worker.consumer
    assert exhausted.deliveries == 1
    assert exhausted.origin.startswith("0 ")


async def test_a_name_without_a_handler_is_a_dead_letter(redis: Connection) -> None:
    queue = await make_queue(redis)
    worker = StreamWorker(NAME, redis)
    with pytest.raises(InvalidValue, match="has no handler"):
        await worker.start()
    worker.handler("known")(Failing().run)
    async with worker:
        await queue.add(1, name="unknown")
        await until_dead(queue, 1)
    (letter,) = await queue.dead()
    assert "no handler for jobs named 'unknown'" in letter.last_error


def test_waits_grow_up_to_a_bound_and_chance_shortens_them() -> None:
    plain = Backoff(first=1, factor=3, most=60, jitter=0)
    assert [plain.after(n) for n in (1, 2, 3, 4, 5, 500)] == [1000, 3000, 9000, 27000, 60000, 60000]
    half = {Backoff(first=1, jitter=0.5).after(1) for _ in range(200)}
    assert min(half) >= 500
    assert max(half) <= 1000
    assert len(half) > 50
    options = StreamOptions(backoff=plain)
    assert verdict_on(TransientError("x", retry_after=7), 0, None, options).delay == 7000
    assert verdict_on(TransientError("x"), 1, None, options).delay == 3000
    assert verdict_on(ValueError("x"), 3, None, options).delay is None


@pytest.mark.parametrize("more", [{}, {"key": "k"}])
async def test_a_dead_letter_is_redriven_as_the_job_it_was(redis: Connection, more: dict[str, Any]) -> None:
    queue = await make_queue(redis)
    failing = Failing()
    failing.plan["x"] = [UnrecoverableError("not yet")]
    async with working(redis, failing.run):
        job = await queue.add("x", result_ttl=10, **more)
        await until_dead(queue, 1)
        assert (await job.look()).state == "dead"
        assert await queue.redrive([job.id, "1-1"]) == [job.id]
        assert await queue.redrive([job.id]) == []
        assert await job.result(10) == "x"
        await until_empty(queue)
    assert failing.runs == [("x", 0), ("x", 0)]
    metrics = await total(queue)
    assert (metrics.dead, metrics.dead_total, metrics.redriven_total, metrics.backlog_bytes) == (0, 1, 1, 0)


@pytest.mark.parametrize(("policy", "ran"), [("block", [0]), ("skip", [0, 1, 2]), ("drop", [0])])
async def test_order_kept_behind_a_dead_head(redis: Connection, policy: Any, ran: list[int]) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, dead_head=policy))
    failing = Failing()
    failing.plan[0] = [UnrecoverableError("dead")]
    async with working(redis, failing.run):
        jobs = await queue.add_bulk([AddJob(data=n, key="k") for n in range(3)])
        await until_dead(queue, 3 if policy == "drop" else 1)
        await queue.add("neighbour", key="other", result_ttl=10)
        if policy == "skip":
            await until_empty(queue)
        assert [data for data, _ in failing.runs if data != "neighbour"] == ran
        if policy == "block":
            assert (await jobs[1].look()).state == "waiting"
            assert await queue.redrive([jobs[0].id]) == [jobs[0].id]
            await until_empty(queue)
            assert [data for data, _ in failing.runs if data != "neighbour"] == [0, 0, 1, 2]
        if policy == "drop":
            letters = {letter.data: letter.reason for letter in await queue.dead()}
            assert letters == {0: "permanent", 1: "dropped", 2: "dropped"}
            after = await queue.add("after", key="k", result_ttl=10)
            assert await after.result(10) == "after", "what comes later is not dropped"


async def test_a_discarded_head_lets_the_next_one_go(redis: Connection) -> None:
    queue = await make_queue(redis)
    failing = Failing()
    failing.plan[0] = [UnrecoverableError("dead")]
    async with working(redis, failing.run):
        head = await queue.add(0, key="k")
        after = await queue.add(1, key="k", result_ttl=10)
        await until_dead(queue, 1)
        assert await queue.discard([head.id]) == [head.id]
        assert await after.result(10) == 1
    assert (await total(queue)).dead == 0


async def test_many_followers_of_a_dead_head_are_dropped_in_steps(redis: Connection) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, dead_head="drop"))
    failing = Failing()
    failing.plan[0] = [UnrecoverableError("dead")]
    await queue.add_bulk([AddJob(data=n, key="k") for n in range(450)])
    async with working(redis, failing.run):
        await until_dead(queue, 450)
        assert await (await queue.add("after", key="k", result_ttl=10)).result(10) == "after"
    assert (await total(queue)).backlog == 0


async def test_effects_take_place_with_the_end_and_only_then(redis: Connection) -> None:
    queue = await make_queue(redis)

    async def run(job: StreamJob) -> None:
        counter = job.effect_key("counter")
        job.effect("INCRBY", counter, job.data)
        if job.data == 2 and not job.attempts_made:
            raise ValueError("once")
        if job.data == 3:
            job.effect("LPUSH", counter, "wrong type")
        if job.data == 4:
            job.effect("SET", redis_key, 1)

    redis_key: Any = "elsewhere"
    async with working(redis, run):
        await queue.add_bulk([AddJob(data=1), AddJob(data=2), AddJob(data=4, retries=0)])
        await until_empty(queue)
        assert await redis.command("GET", queue.effect_key("counter")) == b"3"
        await queue.add(3)
        await until_dead(queue, 2)
    assert {letter.data: letter.reason for letter in await queue.dead()} == {3: "permanent", 4: "exhausted"}
    assert "WRONGTYPE" in next(letter.last_error for letter in await queue.dead() if letter.data == 3)


async def test_a_run_that_takes_too_long_is_stopped(redis: Connection) -> None:
    queue = await make_queue(redis)
    gate = Gate()
    async with working(redis, gate.run):
        await queue.add("own", timeout=0.05, retries=0)
        await until_dead(queue, 1)
    assert gate.stopped == ["own"]
    (letter,) = await queue.dead()
    assert letter.last_error == "TimedOut: timed out after 0.05 s"


# ---------------------------------------------------------------------------- leases and lost workers


@pytest.mark.parametrize("more", [{}, {"key": "k"}])
async def test_no_job_lost_when_its_worker_vanishes(redis: Connection, more: dict[str, Any]) -> None:
    queue = await make_queue(redis)
    gone, heir = Gate(), Gate()
    heir.opened.set()
    worker = StreamWorker(NAME, redis, concurrency=10)
    worker.handler()(gone.run)
    await worker.start()
    jobs = await queue.add_bulk([AddJob(data=n, result_ttl=30, **more) for n in range(3)])
    await gone.until_came(1)
    await forsake(worker)
    reclaimed: list[str] = []
    async with working(redis, heir.run) as other:
        other.on("reclaimed")(reclaimed.append)
        assert [await job.result(20) for job in jobs] == [0, 1, 2]
        await until_empty(queue)

        async def forgotten() -> bool:
            return [each.consumer for each in await queue.workers()] == [other.consumer]

        await until(forgotten)
    assert sorted(reclaimed) == sorted(job.id for job in jobs[: 1 if more else 3])
    assert heir.came == sorted(heir.came)


async def test_a_worker_that_lost_its_lease_cannot_end_the_job(redis: Connection) -> None:
    """It was away for a while, as by SIGSTOP: another one has the job by then, and its end does not count."""
    queue = await make_queue(redis)
    slow, quick = Gate(), Gate()
    quick.opened.set()
    worker = StreamWorker(NAME, redis)
    worker.handler()(slow.run)
    await worker.start()
    job = await queue.add("x", result_ttl=30)
    await slow.until_came(1)
    (held,) = worker._lanes[0].held.values()
    await forsake(worker)
    async with working(redis, quick.run) as other:
        assert await job.result(20) == "x"
        store = other._lanes[0].store
        step = await store.step(worker.consumer, 0, 10, [(held, ["done", *held.words(), 0, b"", 0])])
        assert step.codes == [0], "not its own any more"
        assert (await store.step(worker.consumer, 0, 10, [(held, [])])).codes == [0]
    assert (await total(queue)).done_total == 1


async def test_an_earlier_delivery_to_the_same_worker_cannot_end_the_job(redis: Connection) -> None:
    """It lost the job, and has it again: the run that it began before is not the one that counts."""
    queue = await make_queue(redis)
    job = await queue.add("x")
    (store,) = (await queue.open()).stores
    (before,) = (await store.step("a", 1, 10, [])).jobs
    assert [each.entry for each in (await store.reclaim("b", 60_000, 10, 10, [])).jobs] == [before.entry]
    (again,) = (await store.reclaim("a", 60_000, 10, 10, [])).jobs
    assert (before.entry, before.delivery, again.delivery) == (again.entry, 1, 3)
    for given_up in ((before, []), (before, ["done", *before.words(), 0, b"", 0])):
        assert (await store.step("a", 0, 10, [given_up])).codes == [0]
    assert await job.state() == "running"
    assert (await store.step("a", 0, 10, [(again, ["done", *again.words(), 0, b"", 0])])).codes == [1]


async def test_leases_of_long_runs_are_renewed(redis: Connection) -> None:
    # A job is taken over that is idle for 4 s, or whose worker gave no sign of life for 3 s.
    queue = await make_queue(redis, msgspec.structs.replace(FAST, claim_idle=4))
    gate, other = Gate(), Gate()
    async with working(redis, gate.run):
        jobs = await queue.add_bulk([AddJob(data=n, result_ttl=10) for n in range(10)])
        await gate.until_came(10)
        async with working(redis, other.run):
            await asyncio.sleep(5.5)  # longer, and the other one has looked since
            gate.opened.set()
            assert [await job.result(10) for job in jobs] == list(range(10))
    assert other.came == []


async def test_partitions_that_are_asked_at_once_give_no_more_than_there_is_room_for(
    redis: Connection,
) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, partitions=8, claim_idle=60))
    await queue.add_bulk([AddJob(data=n, key=str(n)) for n in range(80)])
    waiting = [each.backlog for each in (await queue.metrics()).partitions]
    assert min(waiting) > 0
    gate = Gate()
    async with working(redis, gate.run, concurrency=2, prefetch=1):
        await gate.until_came(2)
        assert (await total(queue)).pending == 3, "those that run, and one that is fetched beforehand"
        gate.opened.set()
        await until_empty(queue)
    assert sorted(gate.came) == list(range(80))


async def test_what_is_not_done_at_the_end_is_handed_back(redis: Connection) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, claim_idle=60))
    gate, next_one = Gate(), Gate()
    next_one.opened.set()
    async with working(redis, gate.run, concurrency=2, prefetch=3, grace=0.01):
        await queue.add_bulk([AddJob(data=n) for n in range(4)] + [AddJob(data=n, key="k") for n in (4, 5)])
        await gate.until_came(2)
    assert (await total(queue)).pending == 0
    async with working(redis, next_one.run):
        await until_empty(queue, 5)
    assert sorted(next_one.came) == [0, 1, 2, 3, 4, 5]
    assert not await queue.dead()
    metrics = await total(queue)
    assert metrics.retried_total == 0


async def test_no_job_lost_when_entries_are_deleted_by_others_and_it_is_said(redis: Connection) -> None:
    queue = await make_queue(redis)
    gate = Gate()
    worker = StreamWorker(NAME, redis, concurrency=10)
    worker.handler()(gate.run)
    await worker.start()
    pending = await queue.add_bulk([AddJob(data=n) for n in range(2)])
    await queue.add("held", tenant="t", result_ttl=30)
    await gate.until_came(3)
    await forsake(worker)
    waiting = await queue.add("undelivered")
    await redis.command("XDEL", queue.home.level("0"), pending[0].id, waiting.id)
    for token in await redis.command("XRANGE", queue.home.level("0"), "-", "+"):
        if token[1][0] == b"h":
            await redis.command("XDEL", queue.home.level("0"), token[0])
    heir = Gate()
    heir.opened.set()
    lost: list[int] = []
    async with working(redis, heir.run) as other:
        other.on("lost")(lambda _entries, count: lost.append(count))

        async def alarmed() -> bool:
            return (await total(queue)).lost_total == 2

        await until(alarmed)
        await until_empty(queue)
        await until(lambda: sum(lost) == 2)
    assert sorted(map(str, heir.came)) == ["1", "held"], "what had a record of its own is not lost"


async def test_connections_that_break_lose_and_repeat_nothing(
    server: Server | Cluster, redis: Connection
) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, claim_idle=30))
    primary = server.primary_of(queue.home.meta) if isinstance(server, Cluster) else server
    runs: dict[Any, int] = {}

    async def run(job: StreamJob) -> None:
        runs[job.data] = runs.get(job.data, 0) + 1
        await asyncio.sleep(0.002)

    await queue.add_bulk([AddJob(data=n, key=f"k{n}" if n % 2 else None) for n in range(600)])
    breaks = 0
    async with working(redis, run, concurrency=20):
        while (await total(queue)).backlog:
            await asyncio.to_thread(primary.ask, "CLIENT", "KILL", "TYPE", "normal")
            breaks += 1
            await asyncio.sleep(0.02)
    assert len(runs) == 600
    assert {data: times for data, times in runs.items() if times > 1} == {}
    assert breaks > 3


# ---------------------------------------------------------------------------- poison


def explode(job: Any) -> Any:
    """Kill the process that it runs in, where the job asks for it."""
    if job.data == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    return job.data


async def test_a_handler_process_that_dies_is_a_failure_of_its_job(redis: Connection) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, retries=1), "poison")
    worker = StreamWorker("poison", redis, concurrency=2)
    worker.handler(in_process=True)(explode)
    async with worker:
        fine = await queue.add_bulk([AddJob(data=n, result_ttl=30) for n in range(3)])
        await queue.add("poison")
        assert [await job.result(20) for job in fine] == [0, 1, 2]
        await until_dead(queue, 1)
    (letter,) = await queue.dead()
    assert (letter.reason, letter.attempts) == ("exhausted", 2)
    assert "process is gone" in letter.last_error
