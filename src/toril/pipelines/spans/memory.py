"""Spans and trace summaries in memory: for tests and trials, gone with the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toril.aggregate import check_tenant
from toril.errors import InvalidValue
from toril.pipelines.spans.tables import SpanRow, TraceOrder, TraceRow, check_limit


class MemorySpanTable:
    """A :class:`~toril.pipelines.spans.tables.SpanTable` in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, dict[str, SpanRow]]] = {}
        """By tenant, trace and record id."""

    async def insert(self, rows: Sequence[SpanRow]) -> None:
        """As :meth:`SpanTable.insert`."""
        for row in rows:
            kept = self._kept.setdefault(row.tenant, {}).setdefault(row.span.trace_id, {})
            there = kept.get(row.record_id)
            if there is None or row.version < there.version:
                kept[row.record_id] = row

    async def of_trace(self, tenant: str, trace_id: str, *, limit: int = 10_000) -> list[SpanRow]:
        """As :meth:`SpanTable.of_trace`."""
        found = list(self._kept.get(tenant, {}).get(trace_id, {}).values())
        found.sort(key=lambda row: (row.span.start, row.span.span_id, row.record_id))
        return found[: check_limit(limit)]

    async def count(self, tenant: str) -> int:
        """As :meth:`SpanTable.count`."""
        return sum(map(len, self._kept.get(check_tenant(tenant), {}).values()))

    async def erase(self, tenant: str) -> int:
        """As :meth:`SpanTable.erase`."""
        gone = await self.count(tenant)
        self._kept.pop(tenant, None)
        return gone


FIELDS: dict[TraceOrder, str] = {
    "latest": "started_at",
    "slowest": "duration",
    "dearest": "cost",
    "failing": "errors",
}


class MemoryTraceTable:
    """A :class:`~toril.pipelines.spans.tables.TraceTable` in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, TraceRow]] = {}

    async def insert(self, rows: Sequence[TraceRow]) -> None:
        """As :meth:`TraceTable.insert`."""
        for row in rows:
            kept = self._kept.setdefault(row.tenant, {})
            if row.trace_id not in kept or row.version >= kept[row.trace_id].version:
                kept[row.trace_id] = row

    async def get(self, tenant: str, trace_id: str) -> TraceRow | None:
        """As :meth:`TraceTable.get`."""
        return self._kept.get(tenant, {}).get(trace_id)

    async def find(
        self,
        tenant: str,
        *,
        order: TraceOrder = "latest",
        since: int | None = None,
        until: int | None = None,
        limit: int = 50,
    ) -> list[TraceRow]:
        """As :meth:`TraceTable.find`."""
        if order not in FIELDS:
            raise InvalidValue("order", order, f"one of {', '.join(FIELDS)}")

        def wanted(row: TraceRow) -> bool:
            began = row.summary.get("started_at")
            if since is not None and (began is None or began < since):
                return False
            if until is not None and (began is None or began >= until):
                return False
            return order != "failing" or bool(row.summary.get("errors"))

        found = [row for row in self._kept.get(tenant, {}).values() if wanted(row)]
        found.sort(key=lambda row: (*_greatest_first(row, FIELDS[order], "started_at"), row.trace_id))
        return found[: check_limit(limit)]

    async def count(self, tenant: str) -> int:
        """As :meth:`TraceTable.count`."""
        return len(self._kept.get(check_tenant(tenant), {}))

    async def erase(self, tenant: str) -> int:
        """As :meth:`TraceTable.erase`."""
        return len(self._kept.pop(check_tenant(tenant), {}))


def _greatest_first(row: TraceRow, *names: str) -> list[tuple[bool, Any]]:
    """To sort by: what a summary does not say comes last."""
    values = [row.summary.get(name) for name in names]
    return [(value is None, 0 if value is None else -value) for value in values]
