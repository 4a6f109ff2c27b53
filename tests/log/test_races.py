"""Things that happen at the wrong moment: between two steps of something else, or to one that stood still."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from tests.waiting import until_quiet
from toril import Connection, Durability, InvalidValue, connect
from toril.aggregate import Aggregate
from toril.connection import DurabilityNotReached
from toril.log import (
    Append,
    Entry,
    Frozen,
    Log,
    LogDiverged,
    MemoryColdStore,
    Partition,
    ReaderGone,
    Retention,
    WrongPosition,
)
from toril.log import resize as resizing
from toril.log.erase import Erased
from toril.log.resize import drop_epoch
from toril.log.store import PartitionStore
from toril.testing import cluster

QUIET = timedelta(milliseconds=300)


def order(number: int, tenant: str = "acme") -> Aggregate:
    return Aggregate(tenant, "order", f"{number:04d}")


async def until_cold(log: Log) -> int:
    await until_quiet(log)
    return await log.cool()


async def everything(log: Log) -> list[Entry]:
    async with log.reader() as reader:
        return [entry async for batch in reader.until_now() for entry in batch.entries]


# ------------------------------------------------------------------------- servers


async def test_gap_free_while_a_slot_is_half_moved(binary: Path | None) -> None:
    """The keys of a partition are on two servers: no script may work with half of them."""
    with cluster(masters=2, replicas=0, binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            log = Log(redis, partitions=1)
            first = await log.append(order(1), [b"a"])
            keys = log.store(first.partition).keys
            source = nodes.primary_of(keys.head)
            target = next(server for server in nodes.servers if server is not source)
            slot, where = keys.head.slot, target.address
            ids = {server: server.ask("CLUSTER", "MYID") for server in nodes.servers}
            for half in ([], [keys.head], [keys.aggregate(order(1).key)], [keys.entries]):
                target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
                source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
                if half:
                    source.ask("MIGRATE", where.host, where.port, "", 0, 5000, "KEYS", *half)
                calls = [
                    asyncio.create_task(log.append(order(1), [b"b"])),
                    asyncio.create_task(log.append(order(2), [b"b"])),
                    asyncio.create_task(log.read(order(1))),
                    asyncio.create_task(log.standings()),
                ]
                done, _ = await asyncio.wait(calls, timeout=0.3)
                assert not done, "a call went through while the partition was in two places"
                while left := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10):
                    source.ask("MIGRATE", where.host, where.port, "", 0, 5000, "KEYS", *left)
                for server in (target, source):
                    server.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
                await asyncio.gather(*calls)
                source, target, where = target, source, source.address
            entries = await everything(log)
            assert [entry.ordinal for entry in entries] == list(range(1, 10))
            assert [entry.version for entry in await log.read(order(1))] == [1, 2, 3, 4, 5]


async def test_gap_free_a_repeat_waits_for_the_replica_too(binary: Path | None) -> None:
    """WAIT counts what its own connection wrote, and a repeat writes nothing of its own."""
    with cluster(masters=1, replicas=1, binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            log = Log(redis, partitions=1)
            await log.append(order(1), [b"before"], durability="replicated")
            (replica,) = nodes.replicas_of(nodes.servers[0])
            replica.pause()
            try:
                first = await log.append(order(1), [b"x"], idempotency_key="k")
                soon = Durability("replicated", timeout=0.2)
                with pytest.raises(DurabilityNotReached) as caught:
                    await log.append(order(1), [b"x"], idempotency_key="k", durability=soon)
                again = caught.value.result
                assert getattr(again, "position", None) == first.position
            finally:
                replica.resume()
            again = await log.append(order(1), [b"x"], idempotency_key="k", durability="replicated")
            assert (again.repeated, again.position) == (True, first.position)
            assert await log.version(order(1)) == 2


@pytest.mark.parametrize("then", ["silence", "fewer", "more"])
@pytest.mark.parametrize("name", ["billing", None])
async def test_gap_free_a_diverged_log_is_recognised(then: str, name: str | None) -> None:
    """What a reader has seen was lost with the master: it is told, whatever was written since."""
    with cluster(masters=3, replicas=1) as nodes:
        async with connect(nodes.url) as redis:
            log = Log(redis, partitions=1)
            for number in range(5):
                await log.append(order(1), [f"kept {number}".encode()])
            async with log.reader(name) as reader:
                seen = [entry async for batch in reader.until_now() for entry in batch.entries]
                await log.append(order(1), [b"kept"], durability="replicated")
                keys = log.store(Partition(1, 0)).keys
                master = nodes.primary_of(keys.head)
                (replica,) = nodes.replicas_of(master)
                replica.pause()
                master.ask("CLIENT", "KILL", "TYPE", "replica")  # so that nothing is on its way to it
                for number in range(10):
                    await log.append(order(2), [f"lost {number}".encode()])
                async for batch in reader.until_now():
                    seen += batch.entries
                    await batch.done()
                assert [entry.ordinal for entry in seen] == list(range(1, 17))
                killing = asyncio.create_task(asyncio.to_thread(nodes.kill, master))
                while master.pid:
                    await asyncio.sleep(0.01)
                replica.resume()
                await killing
                for number in range({"silence": 0, "fewer": 3, "more": 30}[then]):
                    await log.append(order(3), [f"new {number}".encode()])
                with pytest.raises(LogDiverged, match="diverged"):
                    await asyncio.wait_for(anext(aiter(reader)), 20)
            # Who comes now reads what there is.
            there = await everything(log)
            assert [entry.ordinal for entry in there] == list(range(1, len(there) + 1))
            assert not any(entry.body.startswith(b"lost") for entry in there)


async def test_gap_free_a_diverged_log_is_recognised_by_a_clock_that_is_behind(redis: Connection) -> None:
    """The new master gives ids that are lower than those that were lost."""
    log = Log(redis, partitions=1)
    store = log.store((await log.layout()).partitions()[0])
    keys = store.keys
    for _ in range(5):
        await log.append(order(1), [b"kept"])
    async with log.reader("r") as reader:
        copies = {
            key: await redis.command("DUMP", key)
            for key in (keys.head, keys.entries, keys.readers, keys.aggregate(order(1).key))
        }
        ahead = (await store.look()).now + 3_600_000
        await redis.command("XSETID", keys.entries, f"{ahead}-0")
        for _ in range(5):
            await log.append(order(1), [b"lost"])
        assert sum([len(batch.entries) async for batch in reader.until_now()]) == 10
        for key, copy in copies.items():
            await redis.command("RESTORE", key, 0, copy, "REPLACE")
        for _ in range(5):
            await log.append(order(1), [b"new"])
        with pytest.raises(LogDiverged, match="diverged"):
            await asyncio.wait_for(anext(aiter(reader)), 10)
        with pytest.raises(WrongPosition):
            await reader.commit(store.partition, reader.positions[store.partition])


# ------------------------------------------------------------------------- epochs


async def test_gap_free_an_epoch_before_the_last_is_not_asked(redis: Connection) -> None:
    """Begun in the first epoch, cold since the second: the third must not take what the first one knew."""
    log = Log(redis, partitions=2, cold=MemoryColdStore(), quiet=QUIET)
    await log.append(order(1), [b"a"], idempotency_key="a")
    await log.resize(3)
    await log.append(order(1), [b"b"], idempotency_key="b")
    await until_cold(log)
    layout = await resizing._begin(log, await log.layout(), 4)  # cut off here
    assert layout.carrying
    assert await log.version(order(1)) == 2
    assert (await log.append(order(1), [b"b"], idempotency_key="b")).first_version == 2
    assert (await log.append(order(1), [b"c"])).version == 3
    await log.resize(4)
    assert [entry.body for entry in await log.read(order(1))] == [b"a", b"b", b"c"]


async def test_gap_free_what_was_carried_over_is_not_carried_again(
    redis: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off at the last step, and finished when aggregates have gone on and gone cold there."""
    log = Log(redis, partitions=2, cold=MemoryColdStore(), quiet=QUIET)
    await log.append_many([Append(order(number), [b"a"], None, "a") for number in range(10)])
    command = redis.command

    async def cut(*args: object, **how: object) -> object:
        if args[:2] == ("HDEL", log.keys.meta):
            raise ConnectionResetError("cut off")
        return await command(*args, **how)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(redis, "command", cut)
        with pytest.raises(ConnectionResetError):
            await log.resize(3)
    await log.append_many([Append(order(number), [b"b"], 1) for number in range(10)])
    await until_cold(log)
    assert [await log.version(order(number)) for number in range(5)] == [2] * 5
    done = await log.append_many([Append(order(number), [b"c"], 2) for number in range(5)])
    assert not [one for one in done if isinstance(one, BaseException)]
    await until_cold(log)
    await log.resize(3)
    done = await log.append_many(
        [Append(order(number), [b"d"], 3 if number < 5 else 2) for number in range(10)]
    )
    assert not [one for one in done if isinstance(one, BaseException)]


@pytest.mark.parametrize("what", ["settle", "erase"])
async def test_gap_free_all_is_carried_over_while_others_are_at_it(
    redis: Connection, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Aggregates change their places while they are gone through one by one."""
    monkeypatch.setattr(resizing, "PAGE", 10)
    log = Log(redis, partitions=1, quiet=QUIET, idempotency_window=QUIET)
    some = [order(number, tenant) for number in range(200) for tenant in ("acme", "other")]
    await log.append_many([Append(one, [b"x"]) for one in some])
    await until_quiet(log)
    old = log.store(Partition(1, 0))
    look, interfered = PartitionStore.fields, False

    async def interfere(store: PartitionStore, aggregate: Aggregate) -> list[bytes]:
        nonlocal interfered
        fields = await look(store, aggregate)
        if not interfered:
            interfered = True
            if what == "settle":
                await old.settle(150)
            else:
                await old.forget("acme", [order(number).key for number in range(200)])
        return fields

    with monkeypatch.context() as patch:
        patch.setattr(PartitionStore, "fields", interfere)
        await log.resize(2)
    assert interfered
    for number in range(200):
        assert await log.version(order(number, "other")) == 1, number


async def test_gap_free_a_writer_that_slept_through_an_epoch_is_told(redis: Connection) -> None:
    """It wakes up when the epoch it knows has been dropped."""
    log, asleep = Log(redis, partitions=2), Log(redis)
    await log.choose_retention(Retention.archived_by("lake"))
    await asleep.append(order(1), [b"a"])
    await log.resize(3)
    async with log.reader("lake") as reader:
        async for batch in reader.until_now():
            await batch.done()
    for standing in await log.standings():  # trimming takes whole nodes of a stream
        await redis.command("XTRIM", log.store(standing.partition).keys.entries, "MAXLEN", 0)
    assert await drop_epoch(log) is not None
    assert (await asleep.append(order(1), [b"b"])).version == 2
    assert (await log.append(order(1), [b"c"])).version == 3
    asleep = Log(redis)
    assert await asleep.version(order(1)) == 3


async def test_gap_free_two_changes_of_the_number_at_once(redis: Connection) -> None:
    """Two people have the same thought, and another number in mind."""
    log = Log(redis, partitions=2)
    await log.append_many([Append(order(number), [b"a"]) for number in range(20)])
    results = await asyncio.gather(
        *(Log(redis).resize(count) for count in (3, 5, 4, 5)), return_exceptions=True
    )
    assert all(isinstance(one, InvalidValue) for one in results if isinstance(one, BaseException)), results
    layout = await log.layout(anew=True)
    assert not layout.carrying
    for one in results:
        if isinstance(one, BaseException):
            assert isinstance(one, InvalidValue)
        else:
            assert layout.epoch(one.number) == one
    done = await log.append_many([Append(order(number), [b"b"], 1) for number in range(20)])
    assert not [one for one in done if isinstance(one, BaseException)]
    assert not any(standing.carry for standing in await log.standings())


async def test_retention_safe_a_subscription_crosses_into_an_epoch_without_a_gap(redis: Connection) -> None:
    """From the tail means from here on: also for what comes in an epoch that begins later."""
    log = Log(redis, partitions=2)
    await log.choose_retention(Retention.archived_by("lake"))
    await log.append_many([Append(order(number), [b"old"]) for number in range(10)])
    async with log.reader("lake") as lake, log.reader(start="tail") as tail:
        await log.append_many([Append(order(number), [b"new"]) for number in range(10)])
        await log.resize(3)
        for _ in range(100):
            await log.append_many([Append(order(number), [b"new"]) for number in range(10)])
        async for batch in lake.until_now():
            await batch.done()
        await log.trim()
        seen = [entry async for batch in tail.until_now() for entry in batch.entries]
        assert len(seen) == 1010
        assert {entry.body for entry in seen} == {b"new"}


async def test_a_reader_that_was_retired_is_told_so_where_entries_are_gone(redis: Connection) -> None:
    """Nothing was kept for it: that is no gap in the log."""
    log = Log(redis, partitions=1)
    await log.choose_retention(Retention.archived_by("lake"))
    await log.append_many([Append(order(number), [b"x"]) for number in range(500)])
    async with log.reader("lake", start="tail"), log.reader("slow", page=10) as slow:
        batches = slow.until_now()
        await anext(batches)
        await log.retire("slow")
        assert (await log.trim()).removed
        await log.append(order(1), [b"y"])
        with pytest.raises(ReaderGone):
            await anext(batches)


async def test_a_reader_of_some_partitions_waits_for_one_that_nobody_reads(redis: Connection) -> None:
    log = Log(redis, partitions=2)
    await log.append_many([Append(order(number), [b"x"]) for number in range(40)])
    async with log.reader("shared", partitions=[Partition(1, 0), Partition(2, 0)]) as reader:
        await log.resize(3)
        await log.layout(anew=True)
        batches = [batch async for batch in reader.until_now()]
    assert {batch.partition for batch in batches} == {Partition(1, 0)}


# ------------------------------------------------------------------------- erasing


async def test_tenant_walls_two_tenants_are_erased_at_once(redis: Connection) -> None:
    """Both rewrite the same partition: nothing of a third one is lost, and nothing of theirs is left."""
    log = Log(redis, partitions=1)
    tenants = ("acme", "other", "third")
    for _ in range(20):
        await log.append_many(
            [Append(order(number % 50, tenants[number % 3]), [b"x"]) for number in range(300)]
        )
    erasing = [log.erase_tenant("acme"), log.erase_tenant("other"), log.erase_tenant("acme")]
    reports = await asyncio.gather(*erasing)
    assert [report.events for report in reports][1] == 2000
    assert sum(report.events for report in reports) == 4000
    entries = await everything(log)
    assert len(entries) == 2000
    assert {entry.aggregate.tenant for entry in entries} == {"third"}


async def test_tenant_walls_what_was_on_its_way_back_when_its_tenant_was_erased(redis: Connection) -> None:
    """Asked for in the cold store, then erased, and only then brought back."""
    cold = MemoryColdStore()
    log = Log(redis, partitions=1, cold=cold, quiet=timedelta(seconds=30))
    store = log.store(Partition(1, 0))
    await log.append(order(1), [b"secret"], idempotency_key="k")
    fields = await store.fields(order(1))
    await cold.put([Frozen.of(order(1).key, 1, fields)])
    assert await store.freeze("journey", {order(1).key: 1}) == 1
    asked = (await store.look()).now
    found = await log.whereabouts(order(1))
    assert found == fields
    for partition in (await log.layout()).partitions():
        await log.store(partition).wall("acme", up=True)
    assert await store.thaw(order(1), asked, found) is False
    await log.erase_tenant("acme")
    assert await store.thaw(order(1), asked, found) is False
    assert await log.version(order(1)) == 0
    again = await log.append(order(1), [b"new"], idempotency_key="k")
    assert (again.version, again.repeated) == (1, False)


async def test_tenant_walls_what_was_leaving_when_its_tenant_was_erased(redis: Connection) -> None:
    """Read while it was quiet, and put into the cold store only after the tenant was erased."""

    class Slow(MemoryColdStore):
        async def put(self, batch: Sequence[Frozen]) -> None:
            erasing.append(asyncio.create_task(log.erase_tenant("acme")))
            await asyncio.wait(erasing, timeout=0.5)
            await super().put(batch)

    cold = Slow()
    erasing: list[asyncio.Task[Erased]] = []
    log = Log(redis, partitions=1, cold=cold, quiet=QUIET)
    await log.append_many([Append(order(1), [b"secret"]), Append(order(1, "other"), [b"x"])])
    await until_cold(log)
    for task in erasing:
        await task
    assert await cold.get(order(1)) is None
    assert await cold.get(order(1, "other")) is not None
    assert (await log.append(order(1), [b"new"])).version == 1
    assert (await log.append(order(1, "other"), [b"x"])).version == 2


async def test_tenant_walls_erasing_while_the_number_of_partitions_changes(redis: Connection) -> None:
    log = Log(redis, partitions=2)
    await log.append_many([Append(order(n % 40, ("acme", "other")[n % 2]), [b"x"]) for n in range(2000)])
    await asyncio.gather(log.resize(3), Log(redis).erase_tenant("acme"))
    assert [await log.version(order(number)) for number in range(0, 40, 2)] == [0] * 20
    assert [await log.version(order(number, "other")) for number in range(1, 40, 2)] == [50] * 20
    async for key in redis.scan("*"):
        assert b"acme:" not in key


# ------------------------------------------------------------------------- upkeep


async def test_upkeep_goes_on_when_the_cold_store_comes_back(
    redis: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    class Down(MemoryColdStore):
        async def put(self, batch: Sequence[Frozen]) -> None:
            if failures:
                raise OSError(failures.pop())
            await super().put(batch)

    failures = ["the disk is full"] * 3
    log = Log(redis, partitions=2, cold=Down(), quiet=QUIET)
    with caplog.at_level(logging.WARNING, logger="toril.log"):
        await log.append_many([Append(order(number), [b"x"]) for number in range(10)])
        async with log.upkeep(every=0.05), asyncio.timeout(10):
            while any(standing.hot for standing in await log.standings()):
                await asyncio.sleep(0.05)
    assert "the disk is full" in caplog.text


async def test_trimming_and_cooling_do_all_there_is_to_do(redis: Connection) -> None:
    """Whatever a step is bounded by, all steps that are needed are made."""
    log = Log(redis, partitions=1, cold=MemoryColdStore(), quiet=QUIET)
    await log.choose_retention(Retention.archived_by("lake"))
    for key in range(30):
        await log.append_many(
            [Append(order(number), [b"x"] * 2, None, f"{key}".zfill(250)) for number in range(100)]
        )
    async with log.reader("lake", start="tail"):
        pass
    report = await log.trim(at_once=250)
    assert report.removed >= 5900
    await until_quiet(log)
    assert await log.cool() == 100  # some megabytes
