"""arq."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from .player import QUEUE, Payload, Player, main

peer: Any = import_module("arq")
connections: Any = import_module("arq.connections")
work: Any = import_module("arq.worker")


class Arq(Player):
    """See the module's text."""

    async def open_queue(self, url: str) -> None:
        settings = connections.RedisSettings.from_dsn(url)
        self._pool = await peer.create_pool(settings, default_queue_name=QUEUE)

    async def add(self, data: Payload) -> None:
        await self._pool.enqueue_job("handle", data)

    async def start_worker(self, url: str, concurrency: int) -> None:
        async def handle(_: Any, data: Payload) -> None:
            self.seen(data)

        async def after(_: Any) -> None:
            self.ended()

        await self.open_queue(url)
        worker = work.Worker(
            [work.func(handle, name="handle")],
            queue_name=QUEUE,
            redis_pool=self._pool,
            max_jobs=concurrency,
            after_job_end=after,
            handle_signals=False,
        )
        self._running = asyncio.create_task(worker.async_run())


if __name__ == "__main__":
    main(Arq)
