"""What tests of stream queues have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.waiting import until
from toril import Connection
from toril.stream import Backoff, PartitionMetrics, StreamJob, StreamOptions, StreamQueue, StreamWorker
from toril.stream.worker.lane import Lane

NAME = "fd:step_queue"

FAST = StreamOptions(backoff=Backoff(first=0.01, jitter=0), claim_idle=0.4, block=0.5)
"""Options of a queue whose times are short."""

Run = Callable[[StreamJob], Awaitable[Any]]


async def make_queue(
    redis: Connection, options: StreamOptions | None = FAST, name: str = NAME
) -> StreamQueue:
    """A queue for any JSON, opened: workers that come have its options."""
    queue = StreamQueue(name, redis, schema=None, options=options)
    await queue.open()
    return queue


@asynccontextmanager
async def working(
    redis: Connection, run: Run, name: str = NAME, **options: Any
) -> AsyncIterator[StreamWorker]:
    """A worker with one handler for all jobs."""
    worker = StreamWorker(name, redis, **{"concurrency": 10, **options})
    worker.handler()(run)
    async with worker:
        yield worker


async def total(queue: StreamQueue) -> PartitionMetrics:
    """The queue's metrics, summed."""
    return (await queue.metrics()).total


async def until_empty(queue: StreamQueue, seconds: float = 20.0) -> None:
    """Until no job waits or runs."""

    async def empty() -> bool:
        metrics = await total(queue)
        return metrics.backlog == 0 and metrics.inlet == 0

    await until(empty, seconds)


async def until_dead(queue: StreamQueue, letters: int) -> None:
    """Until there are so many dead letters."""

    async def there() -> bool:
        return (await total(queue)).dead == letters

    await until(there)


class Gate:
    """A handler that waits to be let go, and notes who came."""

    def __init__(self) -> None:
        self.came: list[Any] = []
        self.opened = asyncio.Event()
        self.stopped: list[Any] = []

    async def run(self, job: StreamJob) -> Any:
        self.came.append(job.data)
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.stopped.append(job.data)
            raise
        return job.data

    async def until_came(self, count: int) -> None:
        await until(lambda: len(self.came) >= count)


async def forsake(worker: StreamWorker) -> None:
    """Let a worker vanish as a killed process does: it says nothing more to anybody, and does no more."""
    lanes: list[Lane] = worker._lanes
    for lane in lanes:
        for task in lane._tasks:
            task.cancel()
    assert worker._redis is not None
    if worker._listening is not None:
        worker._listening.cancel()
    await worker._redis.close()
    for running in list(worker._running.values()):
        running.stopped = "lost"
        running.task.cancel()
    worker._over.set()
