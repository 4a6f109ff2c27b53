"""Reading one aggregate: whatever lies between its entries, all of them come, in order, and no other."""

from __future__ import annotations

import asyncio
import random

import pytest

from toril import Connection
from toril.aggregate import Aggregate
from toril.log import GapFound, HistoryTrimmed, Log, Retention

MINE = Aggregate("acme", "order", "1")
OTHER = Aggregate("acme", "invoice", "1")  # in the same partition: that is chosen by tenant and id


async def fill(log: Log, rng: random.Random, appends: int) -> list[bytes]:
    """Appends of many sizes, alone or with others between; the bodies."""
    bodies: list[bytes] = []
    size = 1
    for _ in range(appends):
        if rng.random() < 0.3:
            size = rng.choice([1, 1, 2, 5, 10, 40])
        some = [f"{len(bodies) + place}".encode() for place in range(size)]
        await log.append(MINE, some)
        bodies += some
        if rng.random() < 0.3:
            await log.append(OTHER, [b"other"] * rng.randint(1, 5))
    return bodies


@pytest.mark.parametrize("seed", range(6))
async def test_any_part_of_any_aggregate(redis: Connection, seed: int) -> None:
    rng = random.Random(seed)
    log = Log(redis, partitions=1)
    bodies = await fill(log, rng, 120)
    for _ in range(60):
        first = rng.randint(1, len(bodies) + 1)
        most = rng.choice([None, 0, 1, 31, 33, 200, 10_000])
        page = rng.choice([1, 7, 50, 500]) if most is not None else rng.choice([50, 500])
        read = await log.read(MINE, first, most=most, page=page)
        wanted = bodies[first - 1 :] if most is None else bodies[first - 1 :][:most]
        assert [entry.body for entry in read] == wanted
        assert [entry.version for entry in read] == list(range(first, first + len(wanted)))


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_trimmed_is_not_read(redis: Connection, seed: int) -> None:
    rng = random.Random(seed)
    log = Log(redis, partitions=1)
    await log.choose_retention(Retention.archived_by("lake"))
    bodies = await fill(log, rng, 100)
    async with log.reader("lake", start="tail"):
        pass
    bodies += [f"{len(bodies) + place}".encode() for place in range(300)]
    await log.append(MINE, bodies[-300:])
    assert (await log.trim()).removed
    with pytest.raises(HistoryTrimmed) as caught:
        await log.read(MINE)
    for first in range(caught.value.first, len(bodies), 17):
        assert [entry.body for entry in await log.read(MINE, first)] == bodies[first - 1 :]


async def test_reading_beside_trimming(redis: Connection) -> None:
    log = Log(redis, partitions=1)
    await log.choose_retention(Retention.archived_by("lake"))
    store = log.store((await log.layout()).partitions()[0])
    await store.register("lake")
    fence = (await store.claim("lake")).fence
    bodies: list[bytes] = []

    async def write() -> None:
        for number in range(60):
            some = [f"{number}.{place}".encode() for place in range(20)]
            done = await log.append(MINE, some)
            bodies.extend(some)
            await log.append(OTHER, [b"other"])
            await store.advance("lake", fence, done.position)
            await log.trim()

    writing = asyncio.create_task(write())
    reads = refused = 0
    while not writing.done():
        try:
            read = await log.read(MINE, max(1, len(bodies) - 150))
        except HistoryTrimmed:
            refused += 1
        else:
            first = read[0].version if read else 1
            await asyncio.sleep(0)
            assert [entry.version for entry in read] == list(range(first, first + len(read)))
            reads += 1
        await asyncio.sleep(0)
    await writing
    assert reads + refused > 10
    assert reads > 0


async def test_an_entry_that_somebody_deleted_is_missed(redis: Connection) -> None:
    log = Log(redis, partitions=1)
    for _ in range(50):
        await log.append(MINE, [b"x"] * 10)
        await log.append(OTHER, [b"other"])
    entries = await log.read(MINE)
    store = log.store((await log.layout()).partitions()[0])
    await redis.command("XDEL", store.keys.entries, entries[7].id, repeatable=True)
    with pytest.raises(GapFound):
        await log.read(MINE, most=20)
    with pytest.raises(GapFound):
        await log.read(MINE)
