"""Appending: one script gives versions and ordinals, and remembers what it has done."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until
from toril import Connection, InvalidValue
from toril.aggregate import Aggregate
from toril.log import Append, Appended, Log, LogFull, VersionConflict
from toril.log.entry import LARGEST_BODY, MOST_EVENTS

ORDER = Aggregate("acme", "order", "17")


@pytest.fixture
async def log(redis: Connection) -> Log:
    return Log(redis, partitions=4)


async def test_versions_and_ordinals_begin_at_one_and_have_no_gap(log: Log) -> None:
    first = await log.append(ORDER, [b"placed"])
    more = await log.append(ORDER, [b"paid", b"sent", b"received"])
    assert (first.first_version, first.version, first.first_ordinal) == (1, 1, 1)
    assert (more.first_version, more.version, more.position.ordinal) == (2, 4, 4)
    entries = await log.read(ORDER)
    assert [entry.body for entry in entries] == [b"placed", b"paid", b"sent", b"received"]
    assert [entry.version for entry in entries] == [1, 2, 3, 4]
    assert entries[-1].position == more.position
    assert entries[0].recorded_at == first.recorded_at > 1_700_000_000 * 10**9
    assert {entry.aggregate for entry in entries} == {ORDER}


async def test_a_repeat_gets_the_first_answer_and_appends_nothing(log: Log) -> None:
    first = await log.append(ORDER, [b"placed", b"paid"], idempotency_key="checkout-1")
    await log.append(ORDER, [b"sent"])
    again = await log.append(ORDER, [b"something", b"else", b"now"], idempotency_key="checkout-1")
    assert again.repeated
    assert not first.repeated
    assert (again.first_version, again.count, again.position) == (1, 2, first.position)
    assert await log.version(ORDER) == 3


async def test_a_repeat_is_known_even_where_the_expected_version_has_passed(log: Log) -> None:
    first = await log.append(ORDER, [b"placed"], expected_version=0, idempotency_key="k")
    again = await log.append(ORDER, [b"placed"], expected_version=0, idempotency_key="k")
    assert again.position == first.position


async def test_another_version_than_expected_is_a_conflict(log: Log) -> None:
    await log.append(ORDER, [b"placed"], expected_version=0)
    with pytest.raises(VersionConflict, match="at version 1, not 0") as caught:
        await log.append(ORDER, [b"placed"], expected_version=0)
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    with pytest.raises(VersionConflict):
        await log.append(ORDER, [b"paid"], expected_version=7)
    assert (await log.append(ORDER, [b"paid"], expected_version=1)).version == 2


async def test_appends_of_many_tasks_travel_together(log: Log) -> None:
    aggregates = [Aggregate("acme", "order", str(number)) for number in range(50)]
    done = await asyncio.gather(*(log.append(one, [b"x"]) for one in aggregates for _ in range(20)))
    assert len(done) == 1000
    calls = log.redis.script_counts["log/append"].calls
    assert calls < 100
    for one in aggregates:
        assert [entry.version for entry in await log.read(one)] == list(range(1, 21))


async def test_each_append_of_many_stands_by_itself(log: Log) -> None:
    outcomes = await log.append_many(
        [
            Append(ORDER, [b"a"], 0),
            Append(ORDER, [b"b"], 0),
            Append(ORDER, [b"c"], 1),
            Append(Aggregate("acme", "order", "18"), [b"d"]),
        ]
    )
    versions = [one.version if isinstance(one, Appended) else type(one) for one in outcomes]
    assert versions == [1, VersionConflict, 2, 1]


async def test_types_of_one_id_share_a_partition_and_tenants_share_no_version(log: Log) -> None:
    layout = await log.layout()
    assert layout.current.of(ORDER) == layout.current.of(Aggregate("acme", "invoice", "17"))
    assert (await log.append(ORDER, [b"x"])).version == 1
    assert (await log.append(Aggregate("acme", "invoice", "17"), [b"x"])).version == 1
    assert (await log.append(Aggregate("other", "order", "17"), [b"x"])).version == 1


async def test_large_bodies_are_kept_outside_the_stream(redis: Connection) -> None:
    log = Log(redis, partitions=2, inline=1000)
    large = b"x" * 5000
    done = await log.append(ORDER, [b"small", large, b"y" * 1000, b"z" * 1001])
    keys = log.store(done.partition).keys
    assert await redis.command("ZRANGE", keys.blobs, 0, -1) == [b"2", b"4"]
    assert [len(entry.body) for entry in await log.read(ORDER)] == [5, 5000, 1000, 1001]
    async with log.reader() as reader:
        batches = [batch async for batch in reader.until_now()]
    assert batches[0].entries[1].body == large


async def test_a_full_partition_refuses_instead_of_losing(redis: Connection) -> None:
    log = Log(redis, partitions=1, most_entries=10, patience=0.2)
    for number in range(10):
        await log.append(ORDER, [str(number).encode()])
    with pytest.raises(LogFull, match="10 entries") as caught:
        await log.append(ORDER, [b"too many"])
    assert caught.value.retry_after > 0
    assert await log.version(ORDER) == 10


async def test_an_append_waits_out_a_full_partition(redis: Connection) -> None:
    log = Log(redis, partitions=1, most_entries=300, patience=20)
    store = log.store((await log.layout()).current.of(ORDER))
    await store.register("billing")
    done = await log.append(ORDER, [b"x"] * 300)
    waiting = asyncio.create_task(log.append(ORDER, [b"at last"]))
    # It was refused once, and waits.
    await until(lambda: log.redis.script_counts["log/append"].errors["FULL"] > 0)
    assert not waiting.done()
    state = await store.claim("billing")
    await store.advance("billing", state.fence, done.position)
    await store.trim("", 0, 1000)
    assert (await waiting).version == 301


async def test_ids_within_an_append_follow_each_other(log: Log) -> None:
    done = await log.append(ORDER, [b"x"] * MOST_EVENTS)
    entries = await log.read(ORDER)
    assert entries[0].id == done.first_id
    assert entries[-1].position == done.position


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"events": []}, "events"),
        ({"events": [b"x"] * (MOST_EVENTS + 1)}, "events"),
        ({"events": [b"x", b""]}, r"events\[1\]"),
        ({"events": ["text"]}, r"events\[0\]"),
        ({"events": [b"x" * (LARGEST_BODY + 1)]}, r"events\[0\] size"),
        ({"expected_version": -1}, "expected_version"),
        ({"expected_version": True}, "expected_version"),
        ({"expected_version": 1.0}, "expected_version"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "x" * 300}, "idempotency_key"),
        ({"idempotency_key": "a\nb"}, "idempotency_key"),
        ({"idempotency_key": 7}, "idempotency_key"),
    ],
)
async def test_bad_input_is_named_and_changes_nothing(log: Log, wrong: dict, field: str) -> None:  # type: ignore[type-arg]
    await log.layout()
    with pytest.raises(InvalidValue, match=field):
        await log.append(ORDER, **{"events": [b"x"], **wrong})
    assert await log.version(ORDER) == 0
    assert [standing.ordinal for standing in await log.standings()] == [0, 0, 0, 0]


async def test_the_number_of_partitions_is_not_changed_by_accident(redis: Connection) -> None:
    await Log(redis, partitions=4).layout()
    assert (await Log(redis).layout()).current.partitions == 4
    with pytest.raises(InvalidValue, match="toril log resize"):
        await Log(redis, partitions=8).layout()
    for wrong in (0, -1, True, 5000, "4"):
        with pytest.raises(InvalidValue, match="partitions"):
            Log(redis, partitions=wrong)  # type: ignore[arg-type]


async def test_logs_of_several_applications_know_nothing_of_each_other(redis: Connection) -> None:
    shop, bank = Log(redis, "shop", partitions=2), Log(redis, "bank", partitions=3)
    await shop.append(ORDER, [b"shop"])
    await bank.append(ORDER, [b"bank"])
    assert [entry.body for entry in await shop.read(ORDER)] == [b"shop"]
    assert [entry.body for entry in await bank.read(ORDER)] == [b"bank"]
