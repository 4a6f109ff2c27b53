"""SAQ."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from .player import QUEUE, Payload, Player, main

peer: Any = import_module("saq")


class Saq(Player):
    """See the module's text."""

    async def open_queue(self, url: str) -> None:
        self._queue = peer.Queue.from_url(url, name=QUEUE)
        await self._queue.connect()

    async def add(self, data: Payload) -> None:
        await self._queue.enqueue("handle", data=data)

    async def start_worker(self, url: str, concurrency: int) -> None:
        async def handle(_: Any, *, data: Payload) -> None:
            self.seen(data)

        async def after(_: Any) -> None:
            self.ended()

        await self.open_queue(url)
        worker = peer.Worker(self._queue, [("handle", handle)], concurrency=concurrency, after_process=after)
        self._running = asyncio.create_task(worker.start())


if __name__ == "__main__":
    main(Saq)
