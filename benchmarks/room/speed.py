"""How fast things go: in turns, so that whatever else the machine does falls on all of them alike."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median

from toril import Connection
from toril.connection import load_script
from toril.keyspace import Key, RoomKeys
from toril.room import Doorkeeper, LaneSettings, Room, Settings

BARE = load_script("room/bare", Path(__file__).parent / "lua")
AT_ONCE = 100
"""Calls under way at a time: as many people at once."""

Act = Callable[[int], Awaitable[object]]


@dataclass
class Reading:
    """What one thing did, in several turns."""

    per_second: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    """Microseconds of the server's time for each."""

    @property
    def speed(self) -> float:
        """In the middle."""
        return median(self.per_second)

    @property
    def cost(self) -> float:
        """In the middle."""
        return median(self.server_us)


async def turn(redis: Connection, act: Act, seconds: float, reading: Reading) -> None:
    """Do it for a while, as often as it goes."""
    numbers, done = itertools.count(), 0
    end = time.perf_counter() + seconds

    async def one() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await act(next(numbers))
            done += 1

    cpu, began = await server_cpu(redis), time.perf_counter()
    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    took = time.perf_counter() - began
    reading.per_second.append(done / took)
    reading.server_us.append((await server_cpu(redis) - cpu) / done * 1e6)


async def server_cpu(redis: Connection) -> float:
    """Seconds of processor time that the server has had."""
    info = (await redis.command("INFO", "cpu")).decode()
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    return float(fields["used_cpu_user_main_thread"]) + float(fields["used_cpu_sys_main_thread"])


def settings() -> Settings:
    """A room in which everybody waits."""
    return Settings(main=LaneSettings(rate=1, max_active=0), patience=timedelta(hours=6))


async def joins(redis: Connection, rounds: int, seconds: float) -> dict[str, Reading]:
    """Joining, and the bare call, in turns."""
    keys = RoomKeys("bare")
    room = Room(redis, "joins")
    await room.create(settings())
    numbers = itertools.count()

    async def bare(_: int) -> object:
        return await redis.run(BARE, keys, repeatable=True)

    async def join(_: int) -> object:
        return await room.join()

    async def join_known(_: int) -> object:
        number = next(numbers)
        return await room.join(user=f"user-{number}", key=f"key-{number}")

    found = {"bare call": Reading(), "join": Reading(), "join with key and user": Reading()}
    acts: dict[str, Act] = {"bare call": bare, "join": join, "join with key and user": join_known}
    for _ in range(rounds):
        for name, act in acts.items():
            await turn(redis, act, seconds, found[name])
    return found


RECORD = '{"token": "evt.0.m1.ZkYAAAAAAAAAAAAAAAAAAA", "user": "", "joined": 1700000000, "state": "waiting"}'


def record(number: int) -> Key:
    """What the baseline knows of somebody who waits."""
    return Key(f"baseline:{{polls}}:record:{number}")


class Crowd:
    """So many who wait, in a room and, as the baseline has them, in a sorted set."""

    def __init__(self, redis: Connection) -> None:
        self._redis = redis
        self.room = Room(redis, "polls")
        self.line = Key("baseline:{polls}:line")
        self.tokens: list[str] = []

    async def grow_to(self, size: int) -> None:
        """More come."""
        if not self.tokens:
            await self.room.create(settings())
        first = len(self.tokens)
        left = iter(range(first, size))

        async def come() -> None:
            for _ in left:
                self.tokens.append(str((await self.room.join()).token))

        await asyncio.gather(*(come() for _ in range(4 * AT_ONCE)))
        for start in range(first, size, 1000):
            numbers = range(start, min(start + 1000, size))
            ranks = [part for number in numbers for part in (number, f"t{number}")]
            await self._redis.command("ZADD", self.line, *ranks, repeatable=True)
            records = [part for number in numbers for part in (record(number), RECORD)]
            await self._redis.command("MSET", *records, repeatable=True)
        await self.room.tick()

    async def poll(self, number: int) -> object:
        """Ask how far somebody is, who waits anywhere in the line: a stride that meets everybody."""
        return await self.room.status(self.tokens[number * 7_919 % len(self.tokens)])

    async def rank(self, number: int) -> object:
        """The same by a rank in the sorted set: read the record, renew the sign of life, ask for the rank."""
        who = number * 7_919 % len(self.tokens)
        beat = Key(f"baseline:{{polls}}:beat:{who}")
        await self._redis.command("GET", record(who))
        await self._redis.command("SET", beat, "alive", "EX", 300, repeatable=True)
        return await self._redis.command("ZRANK", self.line, f"t{who}")


async def polls(
    redis: Connection, sizes: list[int], rounds: int, seconds: float
) -> dict[int, dict[str, Reading]]:
    """Asking how far one is, with more and more who wait."""
    crowd, found = Crowd(redis), dict[int, dict[str, Reading]]()
    for size in sizes:
        await crowd.grow_to(size)
        found[size] = {"poll": Reading(), "rank": Reading()}
        async with Doorkeeper(crowd.room):
            for _ in range(rounds):
                await turn(redis, crowd.poll, seconds, found[size]["poll"])
                await turn(redis, crowd.rank, seconds, found[size]["rank"])
    return found
