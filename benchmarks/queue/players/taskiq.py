"""taskiq on Redis Streams: the broker of taskiq-redis that acknowledges."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from .player import QUEUE, Payload, Player, main

receiving: Any = import_module("taskiq.receiver")
api: Any = import_module("taskiq.api.receiver")
brokers: Any = import_module("taskiq_redis")


class Taskiq(Player):
    """See the module's text."""

    async def open_queue(self, url: str) -> None:
        self._broker = brokers.RedisStreamBroker(url, queue_name=QUEUE, consumer_id="0")

        async def handle(data: Payload) -> None:
            self.seen(data)

        self._task = self._broker.task(task_name="handle")(handle)
        await self._broker.startup()

    async def add(self, data: Payload) -> None:
        await self._task.kiq(data)

    async def start_worker(self, url: str, concurrency: int) -> None:
        ended = self

        class Counting(receiving.Receiver):  # type: ignore[misc]
            async def callback(self, *args: Any, **kwargs: Any) -> None:
                await super().callback(*args, **kwargs)
                ended.ended()

        await self.open_queue(url)
        work = api.run_receiver_task(
            self._broker, receiver_cls=Counting, max_async_tasks=concurrency, max_prefetch=concurrency
        )
        self._running = asyncio.create_task(work)


if __name__ == "__main__":
    main(Taskiq)
