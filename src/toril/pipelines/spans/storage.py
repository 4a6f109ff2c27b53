"""Recorded spans and settled summaries go into the tables that people look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toril.events import BatchEventHandler, Event, HandlerContext
from toril.pipelines.spans.aggregation import TRACE_SETTLED
from toril.pipelines.spans.recording import SPAN_RECORDED, span_of
from toril.pipelines.spans.tables import SpanRow, SpanTable, TraceRow, TraceTable


class SpanStorage(BatchEventHandler[Any]):
    """Puts recorded spans into a table. Put there again, a span is the same row."""

    event_types = frozenset({SPAN_RECORDED})

    def __init__(self, table: SpanTable) -> None:
        self._table = table

    async def handle_many(self, events: Sequence[Event[Any]], context: HandlerContext) -> None:
        await self._table.insert(
            [
                SpanRow(
                    tenant=context.tenant,
                    record_id=event.id,
                    version=event.version,
                    recorded_at=event.recorded_at,
                    span=span_of(event.data),
                )
                for event in events
            ]
        )


class TraceStorage(BatchEventHandler[Any]):
    """Puts the last settled summary of a trace into a table."""

    event_types = frozenset({TRACE_SETTLED})

    def __init__(self, table: TraceTable) -> None:
        self._table = table

    async def handle_many(self, events: Sequence[Event[Any]], context: HandlerContext) -> None:
        last = max(events, key=lambda event: int(event.data["version"]))
        await self._table.insert(
            [
                TraceRow(
                    tenant=context.tenant,
                    trace_id=last.aggregate_id,
                    version=last.data["version"],
                    summary=last.data["summary"],
                )
            ]
        )
