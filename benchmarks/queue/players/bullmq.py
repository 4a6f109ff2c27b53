"""BullMQ's own port to Python."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .player import QUEUE, Payload, Player, main

peer: Any = import_module("bullmq")


class BullMQ(Player):
    """See the module's text."""

    async def open_queue(self, url: str) -> None:
        self._queue = peer.Queue(QUEUE, {"connection": url})

    async def add(self, data: Payload) -> None:
        await self._queue.add("job", data)

    async def add_bulk(self, jobs: Sequence[Payload]) -> None:
        await self._queue.addBulk([{"name": "job", "data": data} for data in jobs])

    async def start_worker(self, url: str, concurrency: int) -> None:
        async def handle(job: Any, _: str) -> None:
            self.seen(job.data)

        self._worker = peer.Worker(QUEUE, handle, {"connection": url, "concurrency": concurrency})
        self._worker.on("completed", lambda *_: self.ended())


if __name__ == "__main__":
    main(BullMQ)
