"""Many tasks, few calls: nobody waits for a batch to fill, nobody is forgotten, errors are one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from toril import Connection
from toril.room import LaneSettings, Room, Settings, Snapshot, check_room
from toril.room.store import ShardStore
from toril.room.together import TOGETHER, UNDER_WAY, Together


class Far:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Semaphore(0)

    async def __call__(self, asked: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(asked))
        await self.go.acquire()
        for _ in range(3):  # no reply comes in the turn of the event loop in which it was asked for
            await asyncio.sleep(0)
        if 13 in asked:
            raise ConnectionError("nobody answers")
        return [ValueError("odd") if one % 2 else one * 10 for one in asked]


async def test_what_comes_meanwhile_goes_together() -> None:
    far = Far()
    together = Together(far)
    tasks = [asyncio.create_task(together.ask(number * 2)) for number in range(500)]
    while len(far.batches) < UNDER_WAY:
        await asyncio.sleep(0)
    for _ in range(20):
        far.go.release()
    assert await asyncio.gather(*tasks) == [number * 20 for number in range(500)]
    assert max(map(len, far.batches)) <= TOGETHER
    assert len(far.batches) <= UNDER_WAY + 500 // TOGETHER + 1
    assert sorted(one for batch in far.batches for one in batch) == [number * 2 for number in range(500)]


async def test_many_who_ask_at_once_are_divided_among_the_calls() -> None:
    """While the server works on one call, there is something to do here: the answers to the other."""
    far = Far()
    together = Together(far)
    tasks = [asyncio.create_task(together.ask(number * 2)) for number in range(100)]
    while len(far.batches) < UNDER_WAY:
        await asyncio.sleep(0)
    assert [len(batch) for batch in far.batches] == [50, 50]
    for _ in range(2):
        far.go.release()
    await asyncio.gather(*tasks)


async def test_an_error_is_ones_own_and_a_broken_call_is_everybodys() -> None:
    far = Far()
    together = Together(far)
    for _ in range(20):
        far.go.release()
    found = await asyncio.gather(*(together.ask(n) for n in (2, 3, 4)), return_exceptions=True)
    assert [type(one) for one in found] == [int, ValueError, int]
    with pytest.raises(ConnectionError):
        await together.ask(13)
    assert await together.ask(6) == 60


async def test_nobody_is_forgotten_however_they_come_and_go() -> None:
    far = Far()
    for _ in range(10_000):
        far.go.release()
    together = Together(far)

    async def one(number: int) -> int:
        for _ in range(number % 7):
            await asyncio.sleep(0)
        return await together.ask(number * 2 + 100)

    for _ in range(20):
        tasks = [asyncio.create_task(one(number)) for number in range(50)]
        for gone in tasks[::9]:
            gone.cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_many_who_ask_at_once_read_the_snapshot_once(
    redis: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new snapshot is news to all who ask at the same time; reading it grows with how many wait."""
    room = Room(redis, "evt")
    await room.create(Settings(main=LaneSettings(rate=1, max_active=0)))
    tickets = await asyncio.gather(*(room.join() for _ in range(50)))
    read, readings = ShardStore.snapshot, 0

    async def counted(store: ShardStore) -> Snapshot | None:
        nonlocal readings
        readings += 1
        return await read(store)

    monkeypatch.setattr(ShardStore, "snapshot", counted)
    for _ in range(3):
        await room.tick()
        readings = 0
        found = await asyncio.gather(*(room.status(str(ticket.token)) for ticket in tickets))
        assert sorted(one.position or 0 for one in found) == list(range(1, 51))
        assert readings <= 2


async def test_people_who_join_in_one_call_are_counted_one_by_one(redis: Connection) -> None:
    room = Room(redis, "evt")
    await room.create(Settings(main=LaneSettings(rate=1, max_active=0)))
    await asyncio.gather(*(room.join() for _ in range(50)))
    found = await check_room(room)
    assert (found.waiting, found.violations) == (50, ())
