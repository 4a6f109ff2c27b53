"""The bare loop on Toril's connection: XADD, XREADGROUP, XACK, a batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from toril import connect
from toril.connection import CommandRefused, Connection
from toril.keyspace import Key

from .player import QUEUE, Payload, Player, main

STREAM, GROUP, BLOCK = Key(QUEUE), "workers", 5.0


class Bare(Player):
    """See the module's text."""

    _redis: Connection

    async def open_queue(self, url: str) -> None:
        self._redis = await connect(url)
        with suppress(CommandRefused):  # it is there
            await self._redis.command("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")

    async def add(self, data: Payload) -> None:
        await self._redis.command("XADD", STREAM, "*", "data", msgspec.json.encode(data))

    async def add_bulk(self, jobs: Sequence[Payload]) -> None:
        encode, command = msgspec.json.encode, self._redis.command
        await asyncio.gather(*(command("XADD", STREAM, "*", "data", encode(data)) for data in jobs))

    async def start_worker(self, url: str, concurrency: int) -> None:
        await self.open_queue(url)
        self._running = asyncio.create_task(self._work(concurrency))

    async def _work(self, batch: int) -> None:
        decode = msgspec.json.decode
        block = str(int(BLOCK * 1000))
        read = ("XREADGROUP", "GROUP", GROUP, "one", "COUNT", batch, "BLOCK", block, "STREAMS", STREAM, ">")
        while True:
            for _, entries in await self._redis.command(*read, blocks_for=BLOCK) or ():
                for _, fields in entries:
                    await self._handle(decode(fields[1]))
                await self._redis.command("XACK", STREAM, GROUP, *[entry for entry, _ in entries])
                for _ in entries:
                    self.ended()

    async def _handle(self, data: Payload) -> None:
        self.seen(data)


if __name__ == "__main__":
    main(Bare)
