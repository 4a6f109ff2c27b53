"""Toril."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toril import connect
from toril.queue import AddJob, Job, Queue, Worker

from .player import QUEUE, Payload, Player, main


class Toril(Player):
    """See the module's text."""

    _queue: Queue
    _worker: Worker

    async def open_queue(self, url: str) -> None:
        self._queue = Queue(QUEUE, await connect(url))

    async def add(self, data: Payload) -> None:
        await self._queue.add("job", data)

    async def add_bulk(self, jobs: Sequence[Payload]) -> None:
        await self._queue.add_bulk(AddJob("job", data) for data in jobs)

    async def start_worker(self, url: str, concurrency: int) -> None:
        self._worker = Worker(QUEUE, url, concurrency=concurrency)

        @self._worker.handler()
        async def handle(job: Job) -> None:
            self.seen(job.data)

        @self._worker.on("completed")
        def completed(*_: Any) -> None:
            self.ended()

        await self._worker.start()


if __name__ == "__main__":
    main(Toril)
