"""Quiet aggregates leave Redis, and come back as if they had never left."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta

import pytest

from tests.conftest import SCALE
from tests.waiting import until_quiet
from toril import Connection
from toril.aggregate import Aggregate
from toril.keyspace import Key
from toril.log import (
    Append,
    Appended,
    ColdStore,
    Frozen,
    HistoryTrimmed,
    Log,
    MemoryColdStore,
    Retention,
    VersionConflict,
)

QUIET = timedelta(milliseconds=300)


def order(number: int) -> Aggregate:
    return Aggregate("acme", "order", f"{number:08d}")


def make(redis: Connection, cold: ColdStore | None, **more: object) -> Log:
    return Log(redis, partitions=2, cold=cold, quiet=QUIET, **more)  # type: ignore[arg-type]


async def until_cold(log: Log) -> int:
    await until_quiet(log)
    return await log.cool()


async def in_redis(log: Log, aggregate: Aggregate) -> bool:
    store = log.store((await log.layout()).current.of(aggregate))
    return bool(await log.redis.command("EXISTS", store.keys.aggregate(aggregate.key)))


async def test_a_late_event_finds_the_version_and_a_repeat_the_first_answer(redis: Connection) -> None:
    log = make(redis, MemoryColdStore())
    first = await log.append(order(1), [b"placed", b"paid"], idempotency_key="checkout")
    assert await until_cold(log) == 1
    assert not await in_redis(log, order(1))
    late = await log.append(order(1), [b"sent"])
    assert late.first_version == 3
    again = await log.append(order(1), [b"placed", b"paid"], idempotency_key="checkout")
    assert again.repeated
    assert (again.first_version, again.position) == (1, first.position)
    assert [entry.body for entry in await log.read(order(1))] == [b"placed", b"paid", b"sent"]


async def test_a_repeat_alone_brings_the_first_answer_back(redis: Connection) -> None:
    log = make(redis, MemoryColdStore())
    first = await log.append(order(1), [b"placed"], idempotency_key="k")
    await until_cold(log)
    assert (await log.append(order(1), [b"placed"], idempotency_key="k")).position == first.position
    await until_cold(log)
    with pytest.raises(VersionConflict, match="at version 1"):
        await log.append(order(1), [b"x"], expected_version=0)


async def test_its_state_is_that_of_one_that_never_went_cold(redis: Connection, rng: random.Random) -> None:
    """The same appends to two aggregates, one of which goes cold between any two."""
    cold = make(redis, MemoryColdStore(), idempotency_window=timedelta(hours=1))
    hot = Log(redis, "hot", partitions=1)
    for number in range(12):
        appends = [b"x"] * rng.randint(1, 3)
        key = f"key {rng.randint(0, number)}"
        ours = await cold.append(order(1), appends, idempotency_key=key)
        theirs = await hot.append(order(1), appends, idempotency_key=key)
        assert (ours.first_version, ours.count, ours.repeated) == (
            theirs.first_version,
            theirs.count,
            theirs.repeated,
        )
        if rng.random() < 0.4:
            await until_cold(cold)
            assert not await in_redis(cold, order(1))
    await cold.append(order(1), [b"last"], idempotency_key="last")
    await hot.append(order(1), [b"last"], idempotency_key="last")
    assert await comparable(cold) == await comparable(hot)


async def comparable(log: Log) -> dict[bytes, bytes]:
    """An aggregate's hash without what cannot be equal: times, and the count of changes."""
    store = log.store((await log.layout()).current.of(order(1)))
    flat = await store.fields(order(1))
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    for name, value in fields.items():
        if name.isdigit():
            count, ordinal, _, key = value.split(b" ", 3)
            fields[name] = b" ".join((count, ordinal, key))
    return {name: value for name, value in fields.items() if name not in (b"t", b"c")}


async def test_a_cold_aggregate_can_be_read(redis: Connection) -> None:
    log = make(redis, MemoryColdStore())
    for number in range(7):
        await log.append(order(1), [f"{number}a".encode(), f"{number}b".encode()])
    await until_cold(log)
    assert await log.version(order(1)) == 14
    assert [entry.version for entry in await log.read(order(1))] == list(range(1, 15))
    assert [entry.body for entry in await log.read(order(1), 6, most=3)] == [b"2b", b"3a", b"3b"]
    assert not await in_redis(log, order(1))
    assert await log.read(order(2)) == []


async def test_an_aggregate_that_is_changed_while_it_leaves_stays(redis: Connection) -> None:
    class SlowStore(MemoryColdStore):
        async def put(self, batch: Sequence[Frozen]) -> None:
            await log.append(order(1), [b"meanwhile"])
            await super().put(batch)

    log = make(redis, SlowStore())
    await log.append(order(1), [b"x"])
    await until_cold(log)
    assert await in_redis(log, order(1))
    assert await log.version(order(1)) == 2


async def test_an_old_snapshot_never_replaces_a_later_one(redis: Connection) -> None:
    """A process that read an aggregate and then stood still for long."""
    held: list[Sequence[Frozen]] = []

    class Paused(MemoryColdStore):
        async def put(self, batch: Sequence[Frozen]) -> None:
            held.append(batch)

    cold = MemoryColdStore()
    slow, log = make(redis, Paused()), make(redis, cold)
    await log.append(order(1), [b"x"])
    await until_quiet(log)
    store = slow.store((await slow.layout()).current.of(order(1)))
    quiet = await store.quiet(10, "journey")
    held.append([Frozen.of(key, 1, fields) for key, fields in quiet])
    await log.append(order(1), [b"y"])
    await until_cold(log)
    await cold.put(held[0])
    assert (await log.append(order(1), [b"z"])).version == 3


async def test_what_the_cold_store_said_long_ago_is_asked_again(redis: Connection) -> None:
    """Not found, then begun and gone cold by others, and only then let begin: it must not begin again."""
    log = make(redis, MemoryColdStore())
    store = log.store((await log.layout()).current.of(order(1)))
    asked = (await store.look()).now
    await log.append(order(1), [b"x"])
    await until_cold(log)
    assert await store.thaw(order(1), asked) is False
    assert (await log.append(order(1), [b"y"])).version == 2


async def test_many_cold_ones_and_none_is_taken_for_new(redis: Connection) -> None:
    """The filter has no false negatives, over several of its levels."""
    cold = MemoryColdStore()
    log = make(redis, cold)
    count = round(9_000 * SCALE)
    for first in range(0, count, 1000):
        appends = [Append(order(number), [b"x"]) for number in range(first, first + 1000)]
        await log.append_many(appends)
    while await until_cold(log):
        pass
    standings = await log.standings()
    assert [standing.hot for standing in standings] == [0, 0]
    assert all(standing.filter_levels >= 2 for standing in standings)
    for first in range(0, count, 1000):
        late = await log.append_many(
            [Append(order(number), [b"y"], 1) for number in range(first, first + 1000)]
        )
        assert [one.version for one in late if isinstance(one, Appended)] == [2] * 1000
    # New ones are rarely looked for in the cold store.
    asked: list[Aggregate] = []

    class Counting(MemoryColdStore):
        async def get(self, aggregate: Aggregate) -> Frozen | None:
            asked.append(aggregate)
            return await cold.get(aggregate)

    new = make(redis, Counting())
    await new.append_many([Append(Aggregate("acme", "new", str(one)), [b"x"]) for one in range(2000)])
    assert len(asked) < 100


async def test_memory_is_flat_over_ever_new_aggregates(redis: Connection) -> None:
    log = make(redis, MemoryColdStore())
    await log.choose_retention(Retention.archived_by("lake"))
    sizes = []
    async with log.reader("lake") as reader:
        for round_ in range(round(6 * max(SCALE, 1))):
            await log.append_many([Append(order(round_ * 1000 + n), [b"x" * 200]) for n in range(1000)])
            async for batch in reader.until_now():
                await batch.done()
            await log.trim()
            await until_cold(log)
            sizes.append(await used(log))
    assert all(standing.hot == 0 for standing in await log.standings())
    assert sizes[-1] < sizes[1] + 60_000  # the next level of a filter may be begun


async def used(log: Log) -> int:
    """Bytes of all keys of the log."""
    sizes = [
        await log.redis.command("MEMORY", "USAGE", Key(key.decode()), "SAMPLES", 0)
        async for key in log.redis.scan("toril:*")
    ]
    return sum(size or 0 for size in sizes)


# ------------------------------------------------------------------------- without a cold store


async def test_without_a_cold_store_versions_are_kept_and_keys_for_the_window(redis: Connection) -> None:
    log = make(redis, None, idempotency_window=timedelta(milliseconds=500))
    await log.choose_retention(Retention.archived_by("lake"))
    await log.append_many([Append(order(number), [b"x"], None, "k") for number in range(400)])
    async with log.reader("lake", start="tail"):
        pass
    assert (await log.append(order(7), [b"x"], idempotency_key="k")).repeated  # inside the window
    await log.trim()
    trimmed = {standing.partition: standing.trimmed for standing in await log.standings()}
    assert sum(trimmed.values()) >= 200
    await until_quiet(log, timedelta(milliseconds=500))
    await log.cool()
    gone = kept = 0
    for number in range(400):
        store = log.store((await log.layout()).current.of(order(number)))
        flat = await store.fields(order(number))
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        assert fields[b"v"] == b"1"
        gone += b"k:k" not in fields
        kept += b"k:k" in fields
    assert gone == sum(trimmed.values())
    assert kept == 400 - gone
    assert (await log.append(order(7), [b"y"])).version == 2


async def test_events_that_are_gone_are_said_to_be_gone(redis: Connection) -> None:
    log = make(redis, None)
    await log.choose_retention(Retention.archived_by("lake"))
    for _ in range(250):
        await log.append(order(1), [b"x"])
    async with log.reader("lake", start="tail"):
        pass
    await log.append(order(1), [b"unread"])
    await log.trim()
    with pytest.raises(HistoryTrimmed) as caught:
        await log.read(order(1))
    first = caught.value.first
    assert 1 < first <= 251
    assert [entry.version for entry in await log.read(order(1), first)] == list(range(first, 252))


async def test_what_was_trimmed_is_read_from_the_history(redis: Connection) -> None:
    class Archive:
        async def read(self, aggregate: Aggregate, first: int, last: int) -> list[tuple[int, int, bytes]]:
            assert aggregate == order(1)
            return [(version, 5_000_000, f"old {version}".encode()) for version in range(first, last + 1)]

    log = make(redis, MemoryColdStore(), history=Archive())
    await log.choose_retention(Retention.archived_by("lake"))
    for number in range(250):
        await log.append(order(1), [f"new {number + 1}".encode()])
    async with log.reader("lake", start="tail"):
        pass
    await log.append(order(1), [b"new 251"])
    await log.trim()
    for cold in (False, True):
        if cold:
            await until_cold(log)
        entries = await log.read(order(1), 5)
        assert [entry.version for entry in entries] == list(range(5, 252))
        assert entries[0].body == b"old 5"
        assert entries[-1].body == b"new 251"
        assert len(await log.read(order(1), 5, most=10)) == 10


async def test_one_that_is_never_quiet_does_not_grow_for_ever(redis: Connection) -> None:
    window = timedelta(milliseconds=50)
    log = make(redis, None, idempotency_window=window)
    await log.choose_retention(Retention.archived_by("lake"))
    store = log.store((await log.layout()).current.of(order(1)))
    sizes = []
    async with log.reader("lake") as reader:
        for _ in range(12):
            for _ in range(100):
                await log.append(order(1), [b"x"])
            async for batch in reader.until_now():
                await batch.done()
            await log.trim()
            await until_quiet(log, window)
            sizes.append(await redis.command("HLEN", store.keys.aggregate(order(1).key)))
    assert await log.version(order(1)) == 1200
    assert max(sizes) < 700


class Asked(MemoryColdStore):
    """A cold store that counts the questions."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0

    async def get(self, aggregate: Aggregate) -> Frozen | None:
        self.questions += 1
        return await super().get(aggregate)


async def test_a_cold_store_is_not_asked_for_what_was_never_there(redis: Connection) -> None:
    cold = Asked()
    async with Log(redis, "shop", partitions=2, cold=cold) as log:
        for number in range(20):
            new = Aggregate("acme", "order", str(number))
            assert await log.version(new) == 0
            assert await log.find_append(new, "key") is None
            assert await log.read(new) == []
            await log.append(new, [b"1"], idempotency_key="key")
            assert await log.version(new) == 1
    assert cold.questions == 0
