"""The event store on the log, and the cold store in a file, keep what every such store must keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import MATRIX, Servers, emptied
from toril import Connection, connect
from toril.aggregate import Aggregate
from toril.events import NewEvent, StoreError, Upcasters, UpcastingEventStore
from toril.events.contracts import EventStoreContract
from toril.events.contracts.parts import TRACE
from toril.events.stores import EventStore
from toril.log import Append, ColdStore, Frozen, Log, MemoryColdStore, Retention
from toril.stores import LogEventStore, SqliteColdStore


class TestLogEventStore(EventStoreContract):
    @pytest.fixture(autouse=True, params=MATRIX)
    def _server(self, request: pytest.FixtureRequest, servers: Servers) -> None:
        self.server = emptied(servers.get(request.param))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[EventStore]:
        async with connect(self.server.url) as redis, Log(redis, partitions=3) as log:
            yield LogEventStore(log)

    async def test_durability_is_asked_for_per_append_or_per_log(self) -> None:
        async with connect(self.server.url) as redis:
            log = Log(redis, partitions=1, durability="fsync")
            with pytest.raises(Exception, match="fsync"):
                await LogEventStore(log).append(TRACE, [NewEvent(type="a", data=1)])
            done = await LogEventStore(log).append(TRACE, [NewEvent(type="a", data=1)], durability="memory")
            assert done.last_version == 1


class TestUpcastingLogEventStore(EventStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, servers: Servers) -> None:
        self.server = emptied(servers.get("valkey-standalone"))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[EventStore]:
        upcasters = Upcasters()
        upcasters.declare("contract.second", 3)
        async with connect(self.server.url) as redis, Log(redis, partitions=3) as log:
            yield UpcastingEventStore(LogEventStore(log), upcasters)


class TestLogEventStoreOfColdAggregates(EventStoreContract):
    """The same, with aggregates that leave Redis all the time."""

    @pytest.fixture(autouse=True)
    def _server(self, servers: Servers) -> None:
        self.server = emptied(servers.get("valkey-cluster"))

    def open(self) -> AbstractAsyncContextManager[EventStore]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[EventStore]:
        async with connect(self.server.url) as redis:
            log = Log(redis, partitions=3, cold=MemoryColdStore(), quiet=timedelta(milliseconds=20))
            async with log.upkeep(every=0.01):
                yield LogEventStore(log)


async def test_trimmed_events_are_an_error_that_says_so(redis: Connection) -> None:
    log = Log(redis, partitions=1)
    store = LogEventStore(log)
    await log.choose_retention(Retention.archived_by("lake"))
    await log.append_many([Append(TRACE, [NewEvent(type="a", data=1).to_bytes()]) for _ in range(300)])
    async with log.reader("lake", start="tail"):
        pass
    await log.trim()
    with pytest.raises(StoreError, match="no longer in the log") as caught:
        await store.read(TRACE)
    assert not caught.value.retryable


# ------------------------------------------------------------------------- cold stores


@pytest.fixture(params=["memory", "sqlite"])
def cold(request: pytest.FixtureRequest, tmp_path: Path) -> ColdStore:
    return MemoryColdStore() if request.param == "memory" else SqliteColdStore(tmp_path / "cold.db")


def frozen(tenant: str, number: int, changes: int) -> Frozen:
    aggregate = Aggregate(tenant, "order", str(number))
    return Frozen.of(aggregate.key, 1, [b"v", b"1", b"c", str(changes).encode(), b"k:\xff\x00", b"bytes"])


async def test_a_cold_store_keeps_the_later_snapshot(cold: ColdStore) -> None:
    assert await cold.get(Aggregate("acme", "order", "1")) is None
    await cold.put([frozen("acme", 1, 5), frozen("acme", 2, 1)])
    await cold.put([frozen("acme", 1, 3), frozen("acme", 2, 2)])
    kept = [await cold.get(Aggregate("acme", "order", str(number))) for number in (1, 2)]
    assert [one.changes for one in kept if one] == [5, 2]
    assert kept[0] == frozen("acme", 1, 5)


async def test_a_cold_store_lists_and_erases(cold: ColdStore) -> None:
    await cold.put([frozen(tenant, number, 1) for tenant in ("a", "b") for number in range(1500)])
    assert len({one async for one in cold.aggregates()}) == 3000
    assert await cold.erase("a") == 1500
    assert {one.tenant async for one in cold.aggregates()} == {"b"}
    assert await cold.get(Aggregate("a", "order", "1")) is None


async def test_a_file_is_shared_and_outlives_who_wrote_it(tmp_path: Path) -> None:
    one, two = SqliteColdStore(tmp_path / "cold.db"), SqliteColdStore(tmp_path / "cold.db")
    await asyncio.gather(
        *(store.put([frozen("acme", n, n % 7 + 1)]) for n in range(100) for store in (one, two))
    )
    one.close()
    two.close()
    again = SqliteColdStore(tmp_path / "cold.db")
    assert len([one async for one in again.aggregates()]) == 100
    again.close()
