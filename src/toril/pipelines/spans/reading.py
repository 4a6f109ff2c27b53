"""What those who look at traces are told: by a server, and by a client of one."""

from __future__ import annotations

from typing import Any

import msgspec

from toril.pipelines.spans.span import Span
from toril.pipelines.spans.tables import SpanRow, TraceRow


class TraceSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in a list."""

    trace_id: str
    version: int
    """How many of its spans are in the summary."""
    summary: dict[str, Any]

    @classmethod
    def of(cls, row: TraceRow) -> TraceSeen:
        """What a row of the table says."""
        return cls(trace_id=row.trace_id, version=row.version, summary=row.summary)


class SpanSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A span of a trace."""

    record_id: str
    version: int
    """Its place among the spans of the trace, in the order in which they were recorded."""
    recorded_at: int
    span: Span

    @classmethod
    def of(cls, row: SpanRow) -> SpanSeen:
        """What a row of the table says."""
        return cls(record_id=row.record_id, version=row.version, recorded_at=row.recorded_at, span=row.span)

    def row(self, tenant: str) -> SpanRow:
        """The row that it was seen in: a recomputation starts from such."""
        return SpanRow(
            tenant=tenant,
            record_id=self.record_id,
            version=self.version,
            recorded_at=self.recorded_at,
            span=self.span,
        )


class TraceList(msgspec.Struct, frozen=True, kw_only=True):
    """Traces, in the order that was asked for."""

    traces: list[TraceSeen]


class TraceView(msgspec.Struct, frozen=True, kw_only=True):
    """One trace, with its spans."""

    trace_id: str
    version: int | None
    """How many of its spans are in the summary."""
    summary: dict[str, Any] | None
    """None where there are spans, and no summary yet."""
    spans: list[SpanSeen]
    """By start, then by id."""
    truncated: bool
    """Whether there are more spans than were asked for."""
