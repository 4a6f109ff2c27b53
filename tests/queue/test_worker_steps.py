"""How much one step of a worker carries: many jobs when many wait, and no room for nothing when few do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.waiting import until
from toril import Connection
from toril.queue import AddJob, JobOptions, Queue, Worker
from toril.queue.worker.worker import FIRST_STEP, LARGEST_STEP, STEPS_AT_ONCE

NAME = "{steps}"


@pytest.fixture
def queue(redis: Connection) -> Queue:
    return Queue(NAME, redis)


class Watched:
    """A worker whose steps are written down: how many jobs each gave up, asked for and brought."""

    def __init__(self, queue: Queue, concurrency: int, jobs: int) -> None:
        self.steps: list[tuple[int, int, int]] = []
        self.under_way, self.most_under_way = 0, 0
        self.worker = Worker(queue.name, queue.store.redis, concurrency=concurrency)
        self._left = jobs
        self.over = asyncio.Event()

        @self.worker.handler()
        async def handle(_: Any) -> None:
            pass

        @self.worker.on("completed")
        def completed(*_: Any) -> None:
            self._left -= 1
            if self._left == 0:
                self.over.set()

    async def start(self) -> None:
        await self.worker.start()  # its first step is made when this task waits
        steps = self.worker._steps
        step = steps.step

        async def watched(ended: Sequence[Any], tokens: Sequence[str]) -> Any:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            result = await step(ended, tokens)
            self.under_way -= 1
            self.steps.append((len(ended), len(tokens), len(result.jobs)))
            return result

        steps.step = watched  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("concurrency", [1, 7, 100, 1000])
async def test_a_backlog_is_worked_on_in_two_steps_at_once(queue: Queue, concurrency: int) -> None:
    jobs = 100 if concurrency == 1 else 1200
    await queue.add_bulk(AddJob("job", number) for number in range(jobs))
    watched = Watched(queue, concurrency, jobs)
    await watched.start()
    async with asyncio.timeout(30):
        await watched.over.wait()
    await watched.worker.close()
    largest = min(LARGEST_STEP, -(-concurrency // STEPS_AT_ONCE))
    assert max(gave for gave, _, _ in watched.steps) <= largest
    assert max(asked for _, asked, _ in watched.steps) == largest
    assert watched.most_under_way <= STEPS_AT_ONCE
    assert await queue.counts("completed") == {"completed": jobs}


async def waits_for_the_marker(queue: Queue) -> bool:
    clients: bytes = await queue.store.redis.command("CLIENT", "LIST", near=queue.keys.meta)
    return b" cmd=bzpopmin " in clients


async def test_an_idle_worker_asks_for_few_jobs_and_with_one_step(queue: Queue) -> None:
    watched = Watched(queue, concurrency=200, jobs=1)
    await watched.start()
    await until(lambda: waits_for_the_marker(queue))
    watched.steps.clear()
    await queue.add("job", 1)
    async with asyncio.timeout(10):
        await watched.over.wait()
    await watched.worker.close()
    asking = [step for step in watched.steps if step[1]]
    assert asking[0] == (0, FIRST_STEP, 1)
    assert asking[1] == (1, FIRST_STEP, 0)
    assert all(asked <= FIRST_STEP for _, asked, _ in asking)


async def test_jobs_of_a_bulk_keep_their_own_options(queue: Queue) -> None:
    """What jobs with the same options have in common is made once: it must not reach their neighbours."""
    late, often = JobOptions(delay=60_000), JobOptions(attempts=3, priority=2)
    options = [None, late, late, often, None, late, JobOptions(job_id="mine", attempts=3)]
    added = await queue.add_bulk(AddJob(f"job {place}", place, each) for place, each in enumerate(options))
    for place, (each, job) in enumerate(zip(options, added, strict=True)):
        found = await queue.job(job.id)
        assert found is not None
        assert (found.name, found.data) == (f"job {place}", place)
        assert found.fields == job.fields
        wanted = each or JobOptions()
        assert found.delay == (wanted.delay or 0)
        assert found.priority == (wanted.priority or 0)
        assert found.opts["attempts"] == (wanted.attempts or 0)
    assert [job.id for job in added[-2:]] == ["6", "mine"]
