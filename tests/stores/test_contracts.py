"""The stores of this room do what their contracts say: in memory, embedded, over HTTP, on a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.stores.places import EMBEDDED, HTTP, REAL, REAL_URL, emptied
from toril.log import MemoryColdStore
from toril.pipelines.contracts import SpanTableContract, TraceTableContract
from toril.pipelines.spans.clickhouse import ClickHouseSpanTable, ClickHouseTraceTable
from toril.pipelines.spans.memory import MemorySpanTable, MemoryTraceTable
from toril.stores import ClickHouseColdStore, ClickHouseHistory, MemoryHistory, SqliteColdStore
from toril.stores.contracts import ColdStoreContract, HistoryContract


class Clickhouse:
    """Opens a store on empty tables."""

    place: str
    store: type[Any]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        async with emptied(self.place) as database:
            yield self.store(database)


class Memory:
    store: type[Any]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        yield self.store()


class Embedded(Clickhouse):
    place = EMBEDDED


class Http(Clickhouse):
    place = HTTP


class Real(Clickhouse):
    place = REAL


class Cold:
    store = ClickHouseColdStore


class TestColdStoreInMemory(Memory, ColdStoreContract):
    store = MemoryColdStore


class TestColdStoreInSqlite(ColdStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[SqliteColdStore]:
        with TemporaryDirectory() as directory:
            store = SqliteColdStore(Path(directory) / "cold.db")
            yield store
            store.close()


class TestColdStoreEmbedded(Cold, Embedded, ColdStoreContract): ...


class TestColdStoreOverHttp(Cold, Http, ColdStoreContract): ...


class Events:
    store = ClickHouseHistory


class TestHistoryInMemory(Memory, HistoryContract):
    store = MemoryHistory


class TestHistoryEmbedded(Events, Embedded, HistoryContract): ...


class TestHistoryOverHttp(Events, Http, HistoryContract): ...


class Spans:
    store = ClickHouseSpanTable


class TestSpansInMemory(Memory, SpanTableContract):
    store = MemorySpanTable


class TestSpansEmbedded(Spans, Embedded, SpanTableContract): ...


class TestSpansOverHttp(Spans, Http, SpanTableContract): ...


class Traces:
    store = ClickHouseTraceTable


class TestTracesInMemory(Memory, TraceTableContract):
    store = MemoryTraceTable


class TestTracesEmbedded(Traces, Embedded, TraceTableContract): ...


class TestTracesOverHttp(Traces, Http, TraceTableContract): ...


if REAL_URL:

    class TestColdStoreOnAServer(Cold, Real, ColdStoreContract): ...

    class TestHistoryOnAServer(Events, Real, HistoryContract): ...

    class TestSpansOnAServer(Spans, Real, SpanTableContract): ...

    class TestTracesOnAServer(Traces, Real, TraceTableContract): ...
