"""streaq."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .player import QUEUE, Payload, Player, main

peer: Any = import_module("streaq")


class Streaq(Player):
    """See the module's text."""

    async def open_queue(self, url: str) -> None:
        self._make(url, 1)
        await self._worker.__aenter__()

    def _make(self, url: str, concurrency: int) -> None:
        ended = self

        class Counting(peer.Worker):  # type: ignore[misc]
            async def finish_task(self, *args: Any, **kwargs: Any) -> None:
                await super().finish_task(*args, **kwargs)
                ended.ended()

        self._worker = Counting(url, queue_name=QUEUE, concurrency=concurrency, handle_signals=False)

        async def handle(data: Payload) -> None:
            self.seen(data)

        # Results are not asked for, so none are kept: that is quicker.
        self._task = self._worker.task(name="handle", silent=True, ttl=0)(handle)

    async def add(self, data: Payload) -> None:
        await self._task.enqueue(data)

    async def add_bulk(self, jobs: Sequence[Payload]) -> None:
        await self._worker.enqueue_many([self._task.enqueue(data) for data in jobs])

    async def start_worker(self, url: str, concurrency: int) -> None:
        self._make(url, concurrency)
        self._running = asyncio.create_task(self._worker.run_async())


if __name__ == "__main__":
    main(Streaq)
