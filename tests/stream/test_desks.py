"""Desks: jobs share tasks, and nothing else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from tests.waiting import until
from toril import Connection
from toril.stream import AddJob, StreamJob, StreamOptions, StreamQueue, StreamWorker
from toril.stream.worker.desks import LONGEST_TURN, Desks

Work = Callable[[], Awaitable[None]]

who: ContextVar[str] = ContextVar("who", default="nobody")


class Office:
    """Desks with a pile of work."""

    def __init__(self, count: int) -> None:
        self.pile: deque[Work] = deque()
        self.tasks: set[asyncio.Task[None]] = set()
        self.desks = Desks(count, self._next)

    def _next(self, task: asyncio.Task[None]) -> Awaitable[None] | None:
        if not self.pile:
            return None
        work = self.pile.popleft()
        self.tasks.add(task)
        self.desks.call(len(self.pile))
        return work()

    def add(self, *works: Work) -> None:
        for work in works:
            self.pile.append(work)
            self.desks.call(len(self.pile))


async def test_short_work_is_done_at_few_desks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toril.stream.worker.desks.LONGEST_TURN", 60.0)  # however slow the machine is
    office, done = Office(100), 0

    async def work() -> None:
        nonlocal done
        done += 1

    office.add(*[work] * 1000)
    await until(lambda: done == 1000)
    assert len(office.tasks) <= 2
    await office.desks.close()


async def test_work_that_waits_is_done_side_by_side_up_to_the_number_of_desks() -> None:
    office, running, most, gate = Office(50), 0, 0, asyncio.Event()

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    office.add(*[work] * 80)
    await until(lambda: running == 50)
    gate.set()
    await until(lambda: not office.pile and running == 0)
    assert most == 50
    office.add(*[work] * 80)  # and desks that were free are called again
    await until(lambda: not office.pile and running == 0)
    await office.desks.close()


async def test_work_that_comes_late_finds_a_desk_while_others_are_stuck() -> None:
    office, gate, done = Office(3), asyncio.Event(), asyncio.Event()

    async def stuck() -> None:
        await gate.wait()

    async def quick() -> None:
        done.set()

    office.add(stuck, stuck)
    await until(lambda: len(office.tasks) == 2)
    office.add(quick)
    await asyncio.wait_for(done.wait(), 5)
    gate.set()
    await office.desks.close()


async def test_the_rest_of_the_program_has_its_turn() -> None:
    office, turns, left = Office(1), 0, 20

    async def work() -> None:
        nonlocal left
        loop = asyncio.get_running_loop()
        until_then = loop.time() + LONGEST_TURN / 2
        while loop.time() < until_then:
            pass
        left -= 1

    async def count() -> None:
        nonlocal turns
        while left:
            turns += 1
            await asyncio.sleep(0)

    office.add(*[work] * 20)
    await count()
    assert turns >= 5
    await office.desks.close()


async def test_context_variables_do_not_pass_from_job_to_job(redis: Connection) -> None:
    seen: list[str] = []
    queue, worker = StreamQueue("desks", redis, schema=None), StreamWorker("desks", redis)

    @worker.handler()
    async def handle(job: StreamJob) -> None:
        seen.append(who.get())
        who.set(job.id)

    await queue.add_bulk([AddJob(data=number) for number in range(20)])
    async with worker:
        await until(lambda: len(seen) == 20)
    assert seen == ["nobody"] * 20


async def test_a_cancelled_job_does_not_disturb_the_next_one_at_its_desk(redis: Connection) -> None:
    queue, worker = StreamQueue("desks", redis, schema=None), StreamWorker("desks", redis)

    @worker.handler("hang")
    async def hang(job: StreamJob) -> None:  # noqa: ARG001 - a handler takes it
        await asyncio.sleep(60)

    @worker.handler("next")
    async def following(job: StreamJob) -> int:  # noqa: ARG001
        await asyncio.sleep(0.01)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async with worker:
        job = await queue.add({}, name="hang")

        async def runs() -> bool:
            return await job.state() == "running"

        await until(runs)
        assert await job.cancel() == "asked"
        assert await (await queue.add({}, name="next", result_ttl=60)).result(timeout=20) == 0


async def test_a_worker_that_is_closed_keeps_nothing(redis: Connection) -> None:
    """What runs is handed back, and the worker that hands it back does not take it again."""
    queue = StreamQueue("desks", redis, schema=None, options=StreamOptions(retries=0))
    jobs = await queue.add_bulk([AddJob(data=number, key=str(number % 5)) for number in range(20)])
    worker, begun = StreamWorker("desks", redis, concurrency=4, prefetch=4), 0

    @worker.handler()
    async def handle(job: StreamJob) -> None:  # noqa: ARG001
        nonlocal begun
        begun += 1
        await asyncio.sleep(60)

    await worker.start()
    await until(lambda: begun == 4)
    async with asyncio.timeout(20):
        await worker.close(grace=0.01)
    its = (await queue.metrics()).total
    assert (begun, its.pending, its.backlog, its.dead, its.retried_total) == (4, 0, 20, 0, 0)
    assert {await job.state() for job in jobs} == {"ready", "waiting"}
