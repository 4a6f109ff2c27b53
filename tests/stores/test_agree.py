"""Whatever is inserted, in whatever order and how often: ClickHouse answers as memory does, merged or not."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.conftest import SCALE
from tests.stores.places import emptied
from toril.aggregate import Aggregate
from toril.log import Frozen, MemoryColdStore
from toril.pipelines.contracts import LATEST, row, span, trace
from toril.pipelines.spans.clickhouse import ORDERS, ClickHouseSpanTable, ClickHouseTraceTable
from toril.pipelines.spans.memory import MemorySpanTable, MemoryTraceTable
from toril.pipelines.spans.tables import SpanRow, TraceRow
from toril.stores import ClickHouseColdStore, ClickHouseHistory, Database, MemoryHistory, Recorded

TENANTS = ("one", "two", "o'ne")
MONTH = 31 * 24 * 3600 * 10**9


class Pair:
    """The same store twice, and rows of chance for it."""

    def __init__(self, database: Database, rng: random.Random) -> None:
        self.rng = rng
        self.spans = ClickHouseSpanTable(database), MemorySpanTable()
        self.traces = ClickHouseTraceTable(database), MemoryTraceTable()
        self.cold = ClickHouseColdStore(database), MemoryColdStore()
        self.history = ClickHouseHistory(database), MemoryHistory()
        self._numbers = itertools.count(1)

    def some(self) -> range:
        return range(self.rng.choice([1, 1, 3, 30]))

    def when(self) -> int:
        return self.rng.choice([0, 5, self.rng.randrange(3) * MONTH, LATEST])

    def version(self) -> int:
        """One that nothing else has: a later or an earlier one than those before."""
        number = next(self._numbers)
        return self.rng.choice([number, 10**6 - number])

    def span(self) -> SpanRow:
        rng = self.rng
        made = span(
            rng.randrange(6), f"{rng.randrange(3):032x}", start=rng.randrange(4), name=f"{rng.random()}"
        )
        return row(made, self.version(), rng.choice(TENANTS), self.when())

    def trace(self) -> TraceRow:
        rng = self.rng
        return trace(
            rng.randrange(8),
            self.version(),
            rng.choice(TENANTS),
            started_at=rng.choice([None, rng.randrange(4), LATEST]),
            duration=rng.choice([None, 0, 1, LATEST]),
            cost=rng.choice([None, 0, 2**64 + rng.randrange(3)]),
            errors=rng.randrange(3),
        )

    def frozen(self) -> Frozen:
        rng = self.rng
        changes = rng.randrange(20)
        return Frozen(self.aggregate(), changes % 3, changes, b"%d" % changes)

    def recorded(self) -> Recorded:
        aggregate, version = self.aggregate(), self.rng.randrange(1, 9)
        return Recorded(aggregate, version, version // 4 * MONTH, b"%d" % version, f"{version}", "x")

    def aggregate(self) -> Aggregate:
        return Aggregate(self.rng.choice(TENANTS), self.rng.choice(["a", "b"]), f"{self.rng.randrange(3)}")

    async def act(self) -> None:
        """One change of both."""
        if self.rng.random() < 0.07:
            tenant = self.rng.choice(TENANTS)
            for pair in (self.spans, self.traces, self.cold, self.history):
                one, other = [await store.erase(tenant) for store in pair]
                assert one == other
            return
        spans, traces = [self.span() for _ in self.some()], [self.trace() for _ in self.some()]
        frozen, events = [self.frozen() for _ in self.some()], [self.recorded() for _ in self.some()]
        for span_table in self.spans:
            await span_table.insert(spans)
        for trace_table in self.traces:
            await trace_table.insert(traces)
        for cold in self.cold:
            await cold.put(frozen)
        for history in self.history:
            await history.write(events)

    async def compare(self) -> None:
        """Every answer of both."""
        for tenant in TENANTS:
            for number in range(3):
                one, other = [await table.of_trace(tenant, f"{number:032x}") for table in self.spans]
                assert one == other
                for kind in ("a", "b"):
                    aggregate = Aggregate(tenant, kind, f"{number}")
                    assert await self.cold[0].get(aggregate) == await self.cold[1].get(aggregate)
                    assert await self.history[0].read(aggregate, 2, 7) == await self.history[1].read(
                        aggregate, 2, 7
                    )
            for order in ORDERS:
                bounds: Any = {"since": self.rng.choice([None, 1]), "until": self.rng.choice([None, 3])}
                found = [await table.find(tenant, order=order, **bounds) for table in self.traces]
                assert found[0] == found[1], (order, bounds)
            for pair in (self.spans, self.traces, self.history):
                counts = [await table.count(tenant) for table in pair]
                assert counts[0] == counts[1]
        names = [{one async for one in store.aggregates()} for store in self.cold]
        assert names[0] == names[1]


@pytest.mark.promise
@pytest.mark.timeout(120 + 60 * SCALE)
async def test_clickhouse_answers_as_memory_does(place: str, rng: random.Random) -> None:
    for _ in range(max(1, int(SCALE))):
        async with emptied(place) as database:
            pair = Pair(database, rng)
            for step in range(12):
                await pair.act()
                if step % 4 == 3:
                    await pair.compare()
            for table in ("event_log", "frozen_aggregates", "stored_spans", "trace_summaries"):
                text = f"OPTIMIZE TABLE {database.name}.{table} FINAL"
                await database.run("merge", lambda client, text=text: client.command(text))  # type: ignore[misc]
            await pair.compare()
