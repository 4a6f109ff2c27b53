"""Toril's stream queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toril import connect
from toril.stream import AddJob, StreamJob, StreamOptions, StreamQueue, StreamWorker

from .player import Payload, Player, main

NAME = "bench"
OPTIONS = StreamOptions(backlog=1_000_000)


class Toril(Player):
    """See the module's text."""

    _queue: StreamQueue
    _worker: StreamWorker

    async def open_queue(self, url: str) -> None:
        self._queue = StreamQueue(NAME, await connect(url), options=OPTIONS, schema=None)

    async def add(self, data: Payload) -> None:
        await self._queue.add(data)

    async def add_bulk(self, jobs: Sequence[Payload]) -> None:
        await self._queue.add_bulk([AddJob(data=data) for data in jobs])

    async def start_worker(self, url: str, concurrency: int) -> None:
        self._worker = StreamWorker(NAME, url, concurrency=concurrency, options=OPTIONS)

        @self._worker.handler()
        async def handle(job: StreamJob) -> None:
            self.seen(job.data)

        @self._worker.on("completed")
        def completed(*_: Any) -> None:
            self.ended()

        await self._worker.start()


if __name__ == "__main__":
    main(Toril)
