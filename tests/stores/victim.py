"""A process that inserts until it is killed, and says what was acknowledged: ``kind number`` per line."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from toril.aggregate import Aggregate
from toril.log import Frozen
from toril.pipelines.contracts import row, span, trace
from toril.pipelines.spans.clickhouse import ClickHouseSpanTable, ClickHouseTraceTable
from toril.stores import ClickHouseColdStore, ClickHouseHistory, Database, Recorded

TENANT = "tenant-one"
CALLERS = 8

Insert = Callable[[int], Awaitable[None]]


def inserts(database: Database) -> dict[str, Insert]:
    """How number n is inserted, for every kind of row."""
    cold, history = ClickHouseColdStore(database), ClickHouseHistory(database)
    spans, traces = ClickHouseSpanTable(database), ClickHouseTraceTable(database)

    def of(n: int) -> Aggregate:
        return Aggregate(TENANT, "order", f"{n}")

    return {
        "cold": lambda n: cold.put([Frozen(of(n), 1, 1, b"%d" % n)]),
        "event": lambda n: history.write([Recorded(of(n), 1, n, b"%d" % n, f"{n}", "x")]),
        "span": lambda n: spans.insert([row(span(n, f"{n:032x}"))]),
        "trace": lambda n: traces.insert([trace(n, started_at=n)]),
    }


STORED = {
    "cold": ("SELECT AggregateId, count() FROM {database}.frozen_aggregates FINAL GROUP BY 1", 10),
    "event": ("SELECT AggregateId, count() FROM {database}.event_log FINAL GROUP BY 1", 10),
    "span": ("SELECT SpanId, count() FROM {database}.spans GROUP BY 1", 16),
    "trace": ("SELECT TraceId, count() FROM {database}.traces GROUP BY 1", 16),
}
"""Which numbers are there and how often each, and the base in which they are written."""


async def insert_until_killed(directory: Path, first: int) -> None:
    async with await Database.open(directory=directory) as database:
        numbers = itertools.count(first)

        async def caller(kind: str, insert: Insert) -> None:
            while True:
                n = next(numbers)
                await insert(n)
                sys.stdout.write(f"{kind} {n}\n")
                sys.stdout.flush()

        calls = [caller(kind, insert) for kind, insert in inserts(database).items()]
        more = [
            caller(kind, insert) for kind, insert in inserts(database).items() for _ in range(CALLERS - 1)
        ]
        await asyncio.gather(*calls, *more)


if __name__ == "__main__":
    asyncio.run(insert_until_killed(Path(sys.argv[1]), int(sys.argv[2])))
