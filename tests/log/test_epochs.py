"""Another number of partitions, while the log is written to and read."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from tests.waiting import until, until_quiet
from toril import Connection, InvalidValue, connect
from toril.aggregate import Aggregate
from toril.log import Append, Appended, Entry, Log, MemoryColdStore, Partition, Retention
from toril.log import resize as resizing
from toril.testing import Cluster, Server

QUIET = timedelta(milliseconds=300)


def order(number: int) -> Aggregate:
    return Aggregate("acme", "order", f"{number:04d}")


async def everything(log: Log) -> list[Entry]:
    async with log.reader() as reader:
        return [entry async for batch in reader.until_now() for entry in batch.entries]


def assert_in_order(entries: list[Entry]) -> None:
    versions: dict[str, int] = {}
    for entry in entries:
        assert entry.version == versions.get(entry.key, 0) + 1, entry
        versions[entry.key] = entry.version


async def test_versions_and_keys_go_on_in_the_new_epoch(redis: Connection) -> None:
    log = Log(redis, partitions=2)
    first = await log.append(order(1), [b"a", b"b"], idempotency_key="k")
    await log.append(order(2), [b"x"])
    epoch = await log.resize(5)
    assert (epoch.number, epoch.partitions) == (2, 5)
    again = await log.append(order(1), [b"a", b"b"], idempotency_key="k")
    assert again.repeated
    assert (again.partition, again.first_version, again.position) == (first.partition, 1, first.position)
    third = await log.append(order(1), [b"c"], expected_version=2)
    assert third.version == 3
    assert third.partition.epoch == 2
    assert [entry.body for entry in await log.read(order(1))] == [b"a", b"b", b"c"]
    assert [entry.body for entry in await log.read(order(1), 2)] == [b"b", b"c"]
    assert [entry.body for entry in await log.read(order(2))] == [b"x"]
    assert await log.version(order(2)) == 1
    assert_in_order(await everything(log))


async def test_a_writer_that_did_not_know_is_told(redis: Connection) -> None:
    knows, other = Log(redis, partitions=2), Log(redis)
    await knows.layout()
    await other.append(order(1), [b"a"])
    await knows.resize(3)
    assert (await other.append(order(1), [b"b"])).version == 2
    assert (await other.layout()).current.number == 2


async def test_who_only_reads_is_told_as_well(redis: Connection) -> None:
    log = Log(redis, partitions=2)
    others = [Log(redis) for _ in range(3)]
    await log.append(order(1), [b"a"], idempotency_key="k")
    for other in others:
        assert len(await other.read(order(1))) == 1
    await log.resize(3)
    await log.append(order(1), [b"b"], idempotency_key="l")
    assert len(await others[0].read(order(1))) == 2
    assert await others[1].version(order(1)) == 2
    assert await others[2].find_append(order(1), "l") is not None


async def test_live_change_of_the_number_of_partitions(
    redis: Connection, server: Server | Cluster, rng: random.Random
) -> None:
    """gap_free and order while writers write, readers read, aggregates go cold, and the log grows twice."""
    cold = MemoryColdStore()

    def make(connection: Connection) -> Log:
        return Log(connection, cold=cold, quiet=QUIET)

    await Log(redis, partitions=2).layout()
    acknowledged: dict[Aggregate, list[int]] = {order(number): [] for number in range(30)}
    stop = asyncio.Event()

    async def write(seed: int) -> None:
        own = random.Random(seed)
        async with connect(server.url) as connection:
            log = make(connection)
            while not stop.is_set():
                one = order(own.randrange(30))
                done = await log.append(one, [b"x"] * own.randint(1, 3))
                acknowledged[one] += range(done.first_version, done.version + 1)
                await asyncio.sleep(own.random() * 0.01)

    async def cool() -> None:
        async with connect(server.url) as connection:
            log = make(connection)
            while not stop.is_set():
                await log.cool()
                await asyncio.sleep(0.1)

    seen: list[Entry] = []

    async def read() -> None:
        async with connect(server.url) as connection, make(connection).reader("all") as reader:
            async for batch in reader:
                seen.extend(batch.entries)
                await batch.done()

    writers = [asyncio.create_task(write(rng.randrange(2**32))) for n in range(4)]
    cooler, reader = asyncio.create_task(cool()), asyncio.create_task(read())
    log = make(redis)

    async def some_more() -> None:
        """Until the writers have written on, where the log is now."""
        already = sum(map(len, acknowledged.values()))
        await until(lambda: sum(map(len, acknowledged.values())) >= already + 200)

    await some_more()
    await log.resize(5)
    await some_more()
    await log.resize(3)
    await some_more()
    stop.set()
    await asyncio.gather(*writers, cooler)
    total = sum(map(len, acknowledged.values()))
    await until(lambda: len(seen) >= total)
    assert not reader.done()
    reader.cancel()
    assert len(seen) == total > 100
    assert_in_order(seen)
    assert {entry.partition.epoch for entry in seen} == {1, 2, 3}
    for one, versions in acknowledged.items():
        assert sorted(versions) == list(range(1, len(versions) + 1))
        assert [entry.version for entry in await log.read(one)] == sorted(versions)


async def test_a_change_that_was_cut_off_is_finished_by_another_run(
    redis: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = MemoryColdStore()
    log = Log(redis, partitions=2, cold=cold, quiet=QUIET)
    await log.append_many([Append(order(number), [b"x"]) for number in range(40)])
    await until_quiet(log)
    await log.cool()
    await log.append_many([Append(order(number), [b"y"]) for number in range(20)])
    steps = ["_copy_readers", "_carry", "_chill"]
    for number, step in enumerate(steps):
        with monkeypatch.context() as patch:

            async def cut(*_: object) -> None:
                raise ConnectionResetError("cut off")

            patch.setattr(resizing, step, cut)
            with pytest.raises(ConnectionResetError):
                await log.resize(5)
        # Whatever was done so far, appends go on.
        some = [Append(order(one), [b"z"], 2 + number) for one in range(20)]
        assert all(isinstance(one, Appended) for one in await log.append_many(some))
    with pytest.raises(InvalidValue, match="change to 5 was begun"):
        await log.resize(6)
    await log.resize(5)
    assert not any(standing.carry for standing in await log.standings())
    late = await log.append_many([Append(order(number), [b"late"]) for number in range(40)])
    assert [one.version for one in late if isinstance(one, Appended)] == [6] * 20 + [2] * 20
    assert_in_order(await everything(log))


async def test_nothing_is_copied_from_a_partition_that_is_still_written_to(redis: Connection) -> None:
    """The new epoch is known and the old not sealed yet: one aggregate, a writer in each."""
    log, behind = Log(redis, partitions=2), Log(redis)
    layout = await log.layout()
    await behind.append(order(1), [b"a"])
    await resizing._begin(log, layout, 4)
    assert (await log.append(order(1), [b"b"])).version == 2  # seals the old partition itself
    assert (await behind.append(order(1), [b"c"])).version == 3
    assert [entry.body for entry in await log.read(order(1))] == [b"a", b"b", b"c"]


async def test_readers_of_some_partitions_wait_for_the_others(redis: Connection) -> None:
    """Two processes share a reader's partitions; none begins the new epoch before both ended the old."""
    log = Log(redis, partitions=2)
    await log.append_many([Append(order(number), [b"x"]) for number in range(40)])
    new = [Partition(2, number) for number in range(3)]
    async with (
        log.reader("shared", partitions=[Partition(1, 0), *new]) as one,
        log.reader("shared", partitions=[Partition(1, 1)]) as two,
    ):
        await log.resize(3)
        await log.append_many([Append(order(number), [b"y"]) for number in range(40)])
        batches = [batch async for batch in one.until_now()]
        assert {batch.partition for batch in batches} == {Partition(1, 0)}
        for batch in batches:
            await batch.done()
        async for batch in two.until_now():
            await batch.done()
        rest = [batch async for batch in one.until_now()]
        assert {batch.partition for batch in rest} == set(new)


@pytest.mark.parametrize("name", ["named", None])
async def test_a_reader_that_has_not_crossed_yet_goes_on_when_the_old_epoch_was_removed(
    redis: Connection, name: str | None
) -> None:
    log, other = Log(redis, partitions=2), Log(redis)
    await log.choose_retention(Retention.keep_for(timedelta(milliseconds=1)))
    seen: list[int] = []

    async def read() -> None:
        async with other.reader(name, silent=6) as reader:
            async for batch in reader:
                seen.extend(entry.version for entry in batch.entries)
                await batch.done()

    async def all_read() -> bool:
        """Whether there is a reader in every partition, and it has come to its end."""
        found = await log.standings()
        return all(each.readers and not any(map(each.backlog, each.readers)) for each in found)

    async def until_seen(versions: list[int]) -> None:
        await until(lambda: reading.done() or seen == versions)
        assert not reading.done()

    reading = asyncio.create_task(read())
    await until(all_read)
    await log.append(order(1), [b"a"])
    await until_seen([1])
    await until(all_read)
    await log.resize(3)
    await log.trim()
    assert await log.drop_epoch() is not None
    await log.append(order(1), [b"b"])
    await until_seen([1, 2])
    await until(all_read)
    ends = max(its.expires_at for each in await log.standings() for its in each.readers.values())

    async def is_known_on() -> bool:
        """Whether it has said since that it is there, in each partition; one with a name need not."""
        its = [state for each in await log.standings() for state in each.readers.values()]
        return len(its) == 3 and all(name or state.expires_at > ends for state in its)

    await until(is_known_on)
    await log.append(order(1), [b"c"])
    await until_seen([1, 2, 3])
    reading.cancel()
    await asyncio.wait([reading])


async def test_upkeep_removes_epochs_that_are_over(redis: Connection) -> None:
    log = Log(redis, partitions=2)
    await log.choose_retention(Retention.keep_for(timedelta(milliseconds=1)))
    await log.append(order(1), [b"a"])
    async with log.reader("all") as reader:
        async for batch in reader.until_now():
            await batch.done()
    await log.resize(3)

    async def removed() -> bool:
        return (await log.layout(anew=True)).oldest == 2

    async with log.upkeep(0.05):
        await until(removed)
    assert [epoch.number for epoch in (await log.layout(anew=True)).epochs] == [2]


async def test_an_epoch_that_everyone_has_crossed_can_go(redis: Connection) -> None:
    log = Log(redis, partitions=2)
    await log.choose_retention(Retention.archived_by("lake"))
    await log.append_many([Append(order(number % 10), [b"x"]) for number in range(500)])
    async with log.reader("lake") as reader:
        await log.resize(3)
        assert await log.drop_epoch() is None
        async for batch in reader.until_now():
            await batch.done()
        await log.trim()
        waiting = log.store(Partition(1, 0)).keys.waiting("lake")
        await redis.command("ZADD", waiting, 0, order(1).key)
        assert await log.drop_epoch() is None  # what a reader has parked there is not handed on yet
        await redis.command("DEL", waiting)
        dropped = await log.drop_epoch()
    assert dropped is not None
    assert dropped.number == 1
    (ends,) = (await log.layout()).ends.values()
    assert sum(ends) == 500, "where it ended stays known"
    # That its partitions are sealed is all that is left of it.
    left = sorted([key.decode() async for key in redis.scan("toril:{log:0*")])
    heads = [log.store(partition).keys.head for partition in dropped.all()]
    assert left == heads
    assert [await redis.command("HGETALL", head) for head in heads] == [[b"sealed", b"2"]] * 2
    assert (await log.append(order(1), [b"y"])).version == 51
    assert [entry.body for entry in await log.read(order(1), 51)] == [b"y"]


async def test_the_same_number_is_refused(redis: Connection) -> None:
    with pytest.raises(InvalidValue, match="as many already"):
        await Log(redis, partitions=2).resize(2)


def test_partitions_have_a_text_form() -> None:
    for partition in (Partition(1, 7), Partition(2, 7), Partition(3, 1234)):
        assert Partition.parse(str(partition)) == partition
    for wrong in ("", "x", "1:", ":1", "1:x", "²", "²:1"):
        with pytest.raises(InvalidValue, match="partition"):
            Partition.parse(wrong)
