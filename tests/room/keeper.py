"""A process that lets people in until it is killed: ``python -m tests.room.keeper URL ROOM``."""

from __future__ import annotations

import asyncio
import sys

from toril import connect
from toril.room import Doorkeeper, Room


async def main(url: str, name: str) -> None:
    async with connect(url) as redis:
        print("here", flush=True)
        await Doorkeeper(Room(redis, name), every=0.02).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
