"""A process that buys seats until it is killed: ``python -m tests.room.buyer URL EVENT NAME``."""

from __future__ import annotations

import asyncio
import random
import sys
from datetime import timedelta

from toril import connect
from toril.room.seats import HoldGone, Seats, SeatsTaken


async def main(url: str, event: str, name: str) -> None:
    async with connect(url) as redis:
        seats = Seats(redis, event, hold_for=timedelta(milliseconds=300))
        names = sorted([seat async for seat in seats.names()])
        print("ready", flush=True)
        while True:
            wanted = random.sample(names, random.randrange(1, 4))
            try:
                hold = await seats.hold(name, wanted)
                if random.random() < 0.7:
                    await seats.confirm(name, hold.epoch)
                    await seats.refund(name, hold.epoch)  # or it would soon be sold out
                elif random.random() < 0.5:
                    await seats.release(name, hold.epoch)
            except (SeatsTaken, HoldGone):
                pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
