"""The bare loop on redis-py: XADD, XREADGROUP, XACK, a batch at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from .player import QUEUE, Payload, Player, main

peer: Any = import_module("redis.asyncio")
errors: Any = import_module("redis.exceptions")

GROUP, BLOCK = "workers", 5000


class RedisPy(Player):
    """See the module's text."""

    async def open_queue(self, url: str) -> None:
        self._redis = peer.Redis.from_url(url)
        with suppress(errors.ResponseError):  # it is there
            await self._redis.xgroup_create(QUEUE, GROUP, "0", mkstream=True)

    async def add(self, data: Payload) -> None:
        await self._redis.xadd(QUEUE, {"data": json.dumps(data)})

    async def add_bulk(self, jobs: Sequence[Payload]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for data in jobs:
                pipe.xadd(QUEUE, {"data": json.dumps(data)})
            await pipe.execute()

    async def start_worker(self, url: str, concurrency: int) -> None:
        await self.open_queue(url)
        self._running = asyncio.create_task(self._work(concurrency))

    async def _work(self, batch: int) -> None:
        while True:
            found = await self._redis.xreadgroup(GROUP, "one", {QUEUE: ">"}, count=batch, block=BLOCK)
            for _, entries in found or ():
                for _, fields in entries:
                    await self._handle(json.loads(fields[b"data"]))
                await self._redis.xack(QUEUE, GROUP, *[entry for entry, _ in entries])
                for _ in entries:
                    self.ended()

    async def _handle(self, data: Payload) -> None:
        self.seen(data)


if __name__ == "__main__":
    main(RedisPy)
