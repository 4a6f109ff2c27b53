"""tenant-walls: what belongs to a tenant can be removed, and nothing of another one is touched."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.waiting import until, until_quiet
from toril import Connection, InvalidValue
from toril.aggregate import Aggregate
from toril.log import Append, Entry, Log, MemoryColdStore, Retention, TenantErased


def order(tenant: str, number: int) -> Aggregate:
    return Aggregate(tenant, "order", str(number))


async def everything(log: Log) -> list[Entry]:
    async with log.reader() as reader:
        return [entry async for batch in reader.until_now() for entry in batch.entries]


async def test_tenant_walls_an_erased_tenant_leaves_nothing_behind(redis: Connection) -> None:
    cold = MemoryColdStore()
    log = Log(redis, partitions=3, cold=cold, quiet=timedelta(milliseconds=300), inline=100)
    for tenant in ("acme", "acme2", "other"):
        await log.append_many(
            [Append(order(tenant, number % 60), [tenant.encode() * 40]) for number in range(600)]
        )
    await until_quiet(log)
    await log.cool()
    await log.append_many([Append(order(tenant, 1), [b"again"]) for tenant in ("acme", "other")])
    async with log.reader("half", page=100) as reader:
        batches = reader.until_now()
        for _ in range(5):
            await (await anext(batches)).done()
    before = {one.partition: one for one in await log.standings()}
    report = await log.erase_tenant("acme")
    assert (report.events, report.aggregates, report.cold) == (601, 1, 60)
    assert report.partitions == 3
    kept = await everything(log)
    assert len(kept) == 1201
    assert {entry.aggregate.tenant for entry in kept} == {"acme2", "other"}
    async for key in redis.scan("*"):
        assert b"acme:" not in key
    for standing in await log.standings():
        old = before[standing.partition]
        assert (standing.ordinal, standing.length, standing.last_id) == (old.ordinal, old.length, old.last_id)
        assert standing.readers == old.readers
        about = await redis.command("XINFO", "GROUPS", log.store(standing.partition).keys.entries)
        (group,) = about
        said = dict(zip(group[::2], group[1::2], strict=True))
        assert said[b"lag"] == standing.backlog("half")
    # The tenant may begin anew; the others go on.
    assert (await log.append(order("acme", 1), [b"new"])).version == 1
    assert (await log.append(order("other", 1), [b"more"])).version == 12
    assert (await log.erase_tenant("nobody")).events == 0


async def test_tenant_walls_erasing_while_others_write_read_and_trim(redis: Connection) -> None:
    log = Log(redis, partitions=1)
    await log.choose_retention(Retention.archived_by("lake"))
    await log.append_many([Append(order(("acme", "other")[n % 2], n % 50), [b"x" * 50]) for n in range(4000)])
    written = 0
    stop = asyncio.Event()

    async def write() -> None:
        nonlocal written
        while not stop.is_set():
            await log.append(order("other", 100), [b"y"])
            written += 1

    async def read_and_trim() -> int:
        seen = 0
        async with log.reader("lake", page=50) as reader:
            while not stop.is_set():
                async for batch in reader.until_now():
                    seen += len(batch.entries)
                    await batch.done()
                    await log.trim()
                    await asyncio.sleep(0)
        async with log.reader("lake") as reader:
            async for batch in reader.until_now():
                seen += len(batch.entries)
                await batch.done()
        return seen

    writer, reader = asyncio.create_task(write()), asyncio.create_task(read_and_trim())
    await until(lambda: written >= 20)
    report = await log.erase_tenant("acme")
    after = written
    await until(lambda: written >= after + 20)
    stop.set()
    await writer
    seen = await reader
    # Those of the tenant that were read before it was erased are seen too; nothing else is missing.
    assert 2000 + written <= seen <= 4000 + written
    assert seen + report.events >= 4000 + written
    (standing,) = await log.standings()
    assert standing.backlog("lake") == 0
    assert (await log.append(order("other", 100), [b"z"])).version == written + 1


async def test_tenant_walls_its_appends_are_refused_meanwhile(redis: Connection) -> None:
    log = Log(redis, partitions=2)
    for store in [log.store(partition) for partition in (await log.layout()).partitions()]:
        await store.wall("acme", up=True)
    with pytest.raises(TenantErased) as caught:
        await log.append(order("acme", 1), [b"x"])
    assert "acme" not in str(caught.value)
    assert (await log.append(order("other", 1), [b"x"])).version == 1
    await log.erase_tenant("acme")  # finishes what was cut off
    assert (await log.append(order("acme", 1), [b"x"])).version == 1


async def test_tenant_walls_no_error_names_a_tenant(redis: Connection) -> None:
    log = Log(redis, partitions=2)
    for wrong in ("", " secret-tenant", "secret-tenant:x", "secret-tenant\n", "secret-tenant" * 50, 7):
        for attempt in (log.erase_tenant, lambda tenant: log.read(order(tenant, 1))):
            with pytest.raises(InvalidValue, match="tenant") as caught:
                await attempt(wrong)  # type: ignore[arg-type]
            assert "secret" not in str(caught.value)
