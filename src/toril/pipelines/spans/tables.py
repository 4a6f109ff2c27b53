"""Where spans and trace summaries are kept to be looked at: what such tables must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from toril.errors import InvalidValue
from toril.pipelines.spans.span import Span

TraceOrder = Literal["latest", "slowest", "dearest", "failing"]
"""By which traces are listed: the last begun first, the longest, the most expensive, the most errors."""


class SpanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A span that was recorded."""

    tenant: str
    record_id: str
    """The id of the event that recorded it. Of rows with the same, the smallest version counts."""
    version: int
    """Its place among the spans of its trace, in the order in which they were recorded."""
    recorded_at: int
    span: Span


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a trace, as it was at a version."""

    tenant: str
    trace_id: str
    version: int
    """How many span events are in it. Of two rows of a trace, the one with more counts."""
    summary: dict[str, Any]
    """``TraceSummary.as_dict()``."""


class SpanTable(Protocol):
    """Keeps spans. What :meth:`insert` has returned from is there after a crash of the process."""

    async def insert(self, rows: Sequence[SpanRow]) -> None:
        """Keep these; one that is there already changes nothing."""
        ...

    async def of_trace(self, tenant: str, trace_id: str, *, limit: int = 10_000) -> list[SpanRow]:
        """The spans of a trace, each once, by start and then by id."""
        ...

    async def count(self, tenant: str) -> int:
        """How many spans there are of a tenant, each counted once."""
        ...

    async def erase(self, tenant: str) -> int:
        """Remove all of a tenant; says how many spans."""
        ...


class TraceTable(Protocol):
    """Keeps the last summary of each trace."""

    async def insert(self, rows: Sequence[TraceRow]) -> None:
        """Keep these; one with a smaller version than what is there changes nothing."""
        ...

    async def get(self, tenant: str, trace_id: str) -> TraceRow | None:
        """The last summary of a trace."""
        ...

    async def find(
        self,
        tenant: str,
        *,
        order: TraceOrder = "latest",
        since: int | None = None,
        until: int | None = None,
        limit: int = 50,
    ) -> list[TraceRow]:
        """Traces that began from ``since`` (ns) to before ``until``; ``failing``: only those with errors."""
        ...

    async def count(self, tenant: str) -> int:
        """How many traces there are of a tenant."""
        ...

    async def erase(self, tenant: str) -> int:
        """Remove all of a tenant; says how many traces."""
        ...


def check_limit(limit: int) -> int:
    """The limit itself, or an :class:`InvalidValue`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidValue("limit", limit, "a whole number from 1")
    return limit
