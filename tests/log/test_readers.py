"""Readers: every event once and in order, from a floor that nothing is trimmed under."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.waiting import until, until_quiet
from toril import Connection, InvalidValue
from toril.aggregate import Aggregate
from toril.log import (
    Entry,
    GapFound,
    Log,
    Partition,
    Position,
    ReaderFenced,
    ReaderGone,
    Retention,
    WrongPosition,
)
from toril.log import reader as reading
from toril.log.store import PartitionStore


@pytest.fixture
async def log(redis: Connection) -> Log:
    return Log(redis, partitions=4)


def order(number: int) -> Aggregate:
    return Aggregate("acme", "order", str(number))


async def fill(log: Log, count: int, *, aggregates: int = 20) -> None:
    await asyncio.gather(
        *(log.append(order(number % aggregates), [str(number).encode()]) for number in range(count))
    )


async def lags(log: Log, reader: str) -> dict[Partition, int | None]:
    """What standard tools say: the lag of XINFO GROUPS."""
    found = {}
    for partition in (await log.layout()).partitions():
        keys = log.store(partition).keys
        for group in await log.redis.command("XINFO", "GROUPS", keys.entries):
            about = dict(zip(group[::2], group[1::2], strict=True))
            if about[b"name"] == reader.encode():
                found[partition] = about[b"lag"]
    return found


async def only_partition(redis: Connection) -> tuple[Log, PartitionStore]:
    log = Log(redis, partitions=1)
    return log, log.store((await log.layout()).partitions()[0])


async def test_a_reader_sees_every_event_in_order(log: Log) -> None:
    await fill(log, 500)
    seen: list[Entry] = []
    async with log.reader(page=37) as reader:
        async for batch in reader.until_now():
            seen += batch.entries
    assert len(seen) == 500
    for number in range(20):
        versions = [entry.version for entry in seen if entry.aggregate == order(number)]
        assert versions == list(range(1, 26))


async def test_a_named_reader_goes_on_where_it_was(log: Log) -> None:
    await fill(log, 100)
    async with log.reader("billing", page=10) as reader:
        taken = 0
        async for batch in reader.until_now():
            taken += len(batch.entries)
            await batch.done()
            if taken >= 40:
                break
    async with log.reader("billing") as reader:
        rest = [entry async for batch in reader.until_now() for entry in batch.entries]
    assert taken + len(rest) == 100
    # What was given out and not said to be done comes again.
    async with log.reader("billing") as reader:
        again = [entry async for batch in reader.until_now() for entry in batch.entries]
    assert len(again) == len(rest)


async def test_a_reader_hears_of_new_events(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LOOK_ANYWAY", 60.0)  # it would not find them by itself
    async with log.reader(start="tail") as reader:
        batches = aiter(reader)
        for number in range(10):
            first = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)  # it waits
            await log.append(order(number), [b"news"])
            batch = await asyncio.wait_for(first, 20)
            assert batch.entries[0].body == b"news"


async def test_a_reader_starts_where_it_is_told(log: Log) -> None:
    await fill(log, 100)
    async with log.reader() as reader:
        async for _ in reader.until_now():
            pass
        here = reader.positions
    await fill(log, 30)
    async with log.reader(start=here) as reader:
        assert sum([len(batch.entries) async for batch in reader.until_now()]) == 30
    async with log.reader(start="tail") as reader:
        assert [batch async for batch in reader.until_now()] == []
    with pytest.raises(InvalidValue, match="start"):
        log.reader(start="middle")  # type: ignore[arg-type]
    with pytest.raises(WrongPosition, match="past the last one"):
        async with log.reader(start={Partition(1, 0): Position(10**6, "5-5")}):
            pass


async def test_a_temporary_reader_takes_its_floor_away(log: Log) -> None:
    await fill(log, 10)
    async with log.reader() as reader:
        assert all(reader.name in standing.readers for standing in await log.standings())
    assert not any(standing.readers for standing in await log.standings())


async def test_a_temporary_reader_that_hears_nothing_stays_known(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However seldom partitions are looked at, it says in time that it is there."""
    monkeypatch.setattr(reading, "LOOK_ANYWAY", 600.0)

    async def expires() -> int:
        return min(its.expires_at for each in await log.standings() for its in each.readers.values())

    async with log.reader(silent=2) as reader:
        hearing = asyncio.ensure_future(anext(aiter(reader)))
        first = await expires()

        async def said_again() -> bool:
            return await expires() > first

        await until(said_again)
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


# ------------------------------------------------------------------------- positions


async def test_a_position_moves_only_forward_and_only_to_entries(redis: Connection) -> None:
    log, store = await only_partition(redis)
    done = [await log.append(order(1), [b"x"]) for _ in range(10)]
    await store.register("r")
    fence = (await store.claim("r")).fence
    await store.advance("r", fence, done[4].position)
    refused: list[tuple[Position, str]] = [
        (done[3].position, "BACKWARDS"),
        (Position(11, done[9].position.id), "PAST"),
        (Position(10**9, "99999999999999-0"), "PAST"),
        (Position(8, done[6].position.id), "NOPLACE"),
        (Position(8, "5-5"), "NOPLACE"),
    ]
    for position, code in refused:
        with pytest.raises(WrongPosition) as caught:
            await store.advance("r", fence, position)
        assert caught.value.code == code
    assert (await store.look()).readers["r"].position == done[4].position
    assert await lags(log, "r") == {store.partition: 5}
    assert await store.advance("r", fence, done[4].position) is False


async def test_a_zombie_cannot_move_a_position(redis: Connection) -> None:
    log, store = await only_partition(redis)
    done = [await log.append(order(1), [b"x"]) for _ in range(5)]
    async with log.reader("r") as zombie:
        batch = await anext(zombie.until_now())
        async with log.reader("r", page=2) as owner:
            taken = await anext(owner.until_now())
            await taken.done()
            with pytest.raises(ReaderFenced):
                await batch.done()
    assert (await store.look()).readers["r"].position == done[1].position


async def test_a_retired_reader_is_gone(redis: Connection) -> None:
    log, store = await only_partition(redis)
    done = await log.append(order(1), [b"x"])
    async with log.reader("r") as reader:
        assert [await log.keep_in("r", copy) for copy in ("first", "second")] == ["first", "first"]
        assert await log.retire("r") is True
        assert await log.kept_in("r") is None
        assert await log.retire("r") is False
        with pytest.raises(ReaderGone):
            await reader.commit(store.partition, done.position)
    assert await lags(log, "r") == {}


async def test_a_gap_stops_a_reader(redis: Connection) -> None:
    log, store = await only_partition(redis)
    for _ in range(10):
        await log.append(order(1), [b"x"])
    async with log.reader("r", page=4) as reader:
        batches = reader.until_now()
        await anext(batches)
        ids = [entry.id for entry in await store.page("0-0", 10)]
        await redis.command("XDEL", store.keys.entries, ids[6])  # what nobody may do
        with pytest.raises(GapFound, match="entry 7 is missing"):
            await anext(batches)


async def test_a_reader_notices_that_all_it_had_not_read_is_gone(redis: Connection) -> None:
    log, store = await only_partition(redis)
    await log.append(order(1), [b"x"])
    async with log.reader("r") as reader:
        batches = aiter(reader)
        await anext(batches)
        await redis.command("XTRIM", store.keys.entries, "MAXLEN", 0)
        await redis.command("HSET", store.keys.head, "ordinal", 5, "trimmed", 1)
        with pytest.raises(GapFound, match="nothing after it is there"):
            await asyncio.wait_for(anext(batches), 10)


# ------------------------------------------------------------------------- retention


async def test_nothing_is_trimmed_until_somebody_chooses(log: Log) -> None:
    await fill(log, 1000)
    async with log.reader("r") as reader:
        async for batch in reader.until_now():
            await batch.done()
    assert (await log.layout()).retention is None
    assert (await log.trim()).removed == 0
    await log.choose_retention(Retention.keep_all())
    assert (await log.trim()).removed == 0


async def test_nothing_is_trimmed_where_no_reader_is_registered(log: Log) -> None:
    await fill(log, 1000)
    await log.choose_retention(Retention.keep_for(timedelta(milliseconds=1)))
    await until_quiet(log, timedelta(milliseconds=2))
    assert (await log.trim()).removed == 0
    # … nor where the one that archives is not.
    async with log.reader("r", start="tail"):
        pass
    await log.choose_retention(Retention.archived_by("lake"))
    assert (await log.trim()).removed == 0
    async with log.reader("lake", start="tail"):
        pass
    assert (await log.trim()).removed >= 400


async def test_what_is_young_is_kept(log: Log) -> None:
    await fill(log, 1000)
    async with log.reader("r", start="tail"):
        pass
    await log.choose_retention(Retention.keep_for(timedelta(hours=1)))
    assert (await log.trim()).removed == 0


async def test_trimming_names_who_holds_it_up(log: Log) -> None:
    await fill(log, 2000)
    async with log.reader("slow", page=300) as slow, log.reader("fast", start="tail"):
        await log.choose_retention(Retention.archived_by("fast"))
        report = await log.trim()
        assert report.removed == 0
        assert {name for names in report.holding.values() for name in names} == {"slow"}
        assert {name for standing in await log.standings() for name in standing.holding} == {"slow"}
        async for batch in slow.until_now():
            await batch.done()
        assert (await log.trim()).removed >= 1600
        for standing in await log.standings():
            assert standing.length == standing.ordinal - standing.trimmed
            assert standing.backlog("slow") == 0


async def test_bodies_outside_the_stream_go_with_their_entries(redis: Connection) -> None:
    log = Log(redis, partitions=1, inline=10)
    store = log.store((await log.layout()).partitions()[0])
    for number in range(300):
        await log.append(order(1), [b"large" * 100 if number % 3 == 0 else b"small"])
    async with log.reader("r", start="tail"):
        pass
    await log.choose_retention(Retention.archived_by("r"))
    await log.trim()
    standing = await store.look()
    assert standing.trimmed >= 200
    left = [int(ordinal) for ordinal in await redis.command("ZRANGE", store.keys.blobs, 0, -1)]
    assert left == [one for one in range(1, 301) if one > standing.trimmed and one % 3 == 1]
    found = [key async for key in redis.scan(f"{store.keys.base}b:*")]
    assert len(found) == len(left)


async def test_lag_in_standard_tools_is_the_true_backlog(log: Log) -> None:
    """Before, between and after trimming; also for one that comes when much is gone already."""
    await log.choose_retention(Retention.archived_by("r"))
    async with log.reader("r", page=50) as reader:
        batches = reader.until_now()
        for _ in range(8):
            await fill(log, 200)
            for _ in range(3):
                await (await anext(batches)).done()
            await log.trim()
            for standing in await log.standings():
                assert (await lags(log, "r"))[standing.partition] == standing.backlog("r")
        assert any(standing.trimmed for standing in await log.standings())
        async with log.reader("late"):
            late = await lags(log, "late")
            for standing in await log.standings():
                assert late[standing.partition] == standing.length
