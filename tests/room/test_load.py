"""Admission that follows what is behind the room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from tests.room.clock import Clock
from tests.waiting import until
from toril import Connection, InvalidValue
from toril.keyspace import Key
from toril.room import Doorkeeper, Follow, LaneSettings, Load, Room, Settings, check_room
from toril.room.store import Scripts


class Fixed:
    """A load that a test sets."""

    def __init__(self, lag: int = 0, throughput: float = 0.0) -> None:
        self.now = Load(lag, throughput)
        self.asked = 0

    async def load(self) -> Load:
        self.asked += 1
        return self.now


class Workers:
    """A queue in Redis, and workers that take from it as fast as a test says."""

    def __init__(self, redis: Connection, speed: float) -> None:
        self.redis = redis
        self.speed = speed
        self.queue = Key("toril:{work}:list")
        self._owed = 0.0
        self._done: deque[int] = deque(maxlen=8)
        """What was done in the last two seconds, by quarters."""

    async def put(self, count: int) -> None:
        if count:
            await self.redis.command("RPUSH", self.queue, *range(count))

    async def work(self) -> int:
        """What they get done in a quarter of a second; says what is left."""
        self._owed = min(self._owed + self.speed / 4, self.speed)
        took = await self.redis.command("LPOP", self.queue, int(self._owed)) if self._owed >= 1 else None
        done = len(took or ())
        self._owed -= done
        self._done.append(done)
        return int(await self.redis.command("LLEN", self.queue))

    async def load(self) -> Load:
        lag = int(await self.redis.command("LLEN", self.queue))
        return Load(lag=lag, throughput=sum(self._done) / 2)


def test_the_rule_by_which_the_rate_follows() -> None:
    follow = Follow(signal=Fixed(), least=2, most=50, target=1, settle=2)
    assert follow.rate(Load(lag=20, throughput=20)) == 20  # as much as is being finished, and no more
    assert follow.rate(Load(lag=0, throughput=20)) == 30  # nobody may be idle
    assert follow.rate(Load(lag=60, throughput=20)) == 2  # never nothing
    assert follow.rate(Load(lag=0, throughput=90)) == 50
    assert follow.rate(Load(lag=0, throughput=10, oldest_age=3)) == 2  # long waits count as many waiting
    for wrong, field in (({"least": 0.0}, "least"), ({"settle": 0.0}, "settle"), ({"every": -1.0}, "every")):
        with pytest.raises(InvalidValue, match=field):
            Follow(signal=Fixed(), **wrong)  # type: ignore[arg-type]


async def test_room_fair_admission_follows_the_workers(redis: Connection, clocked: Scripts) -> None:
    """Capacity falls from 100 to 20 a second, and comes back: admission is there in ten seconds."""
    room, clock = Room(redis, "load", scripts=clocked), Clock(redis, "load")
    await clock.advance()
    day = timedelta(days=1)
    await room.create(Settings(main=LaneSettings(rate=1), patience=day))
    await asyncio.gather(*(room.join() for _ in range(6000)))
    workers = Workers(redis, 100)
    follow = Follow(signal=workers, least=5, most=500)
    came: list[int] = []
    backlog: list[int] = []

    async def seconds(count: int) -> None:
        for at in range(count * 4):
            await clock.advance(250)
            if at % 2 == 0:  # as a doorkeeper does, by the room's clock
                await room.set_rate(follow.rate(await follow.signal.load()))
            admitted = (await room.tick()).admitted
            await workers.put(admitted)
            came.append(admitted)
            backlog.append(await workers.work())

    def per_second(first: float, last: float) -> float:
        part = came[round(first * 4) : round(last * 4)]
        return sum(part) / len(part) * 4

    await seconds(20)
    assert 80 <= per_second(15, 20) <= 120
    workers.speed = 20
    await seconds(20)
    assert 16 <= per_second(28, 32) <= 24  # around the tenth second after it
    for at in range(30, 38):
        assert 16 <= per_second(at, at + 2) <= 24
    assert max(backlog) < 300  # three seconds of what came in before
    assert backlog[-1] < 60
    workers.speed = 100
    await seconds(20)
    assert 80 <= per_second(55, 60) <= 120
    found = await check_room(room)
    assert found.ok, found.violations


async def test_one_of_several_doorkeepers_sets_the_rate_and_another_takes_over(redis: Connection) -> None:
    room = Room(redis, "led")
    await room.create(Settings(main=LaneSettings(rate=1)))
    signals = [Fixed(throughput=30, lag=15), Fixed(throughput=60, lag=30)]
    first, second = (
        Doorkeeper(room, every=0.02, follow=Follow(signal=signal, every=1.0)) for signal in signals
    )

    async def rate() -> float:
        return (await room.settings()).main.rate

    async with second:
        async with first:
            await until(lambda: _both(first, second))
            led = await rate()
            assert led in (30, 60)
            assert 0 in (signals[0].asked, signals[1].asked)
            leader, other = (0, 1) if led == 30 else (1, 0)
            signals[leader].now = Load(lag=5, throughput=10)
            await until(lambda: _is(rate, 10))
        if leader == 0:  # it has just ended; the other one notices
            await until(lambda: _is(rate, 60))
            assert signals[other].asked
    ticket = await room.join()
    async with Doorkeeper(room, every=0.02):
        await until(lambda: _ready(room, str(ticket.token)))


async def _both(*doorkeepers: Doorkeeper) -> bool:
    return all(one.ticks > 3 for one in doorkeepers)


async def _is(what: Callable[[], Awaitable[float]], value: float) -> bool:
    return await what() == value


async def _ready(room: Room, token: str) -> bool:
    return (await room.status(token)).ready
