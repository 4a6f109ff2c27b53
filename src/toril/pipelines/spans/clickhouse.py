"""Spans and trace summaries in ClickHouse. Columns are for looking; rows are restored from the body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from toril.errors import InvalidValue
from toril.events.errors import StoreError, ValidationError
from toril.pipelines.spans.span import Ai, Span
from toril.pipelines.spans.tables import SpanRow, TraceOrder, TraceRow, check_limit
from toril.stores.clickhouse import MOMENT, Database, Row, Table, moment, whole

LAST_VERSION = 2**64 - 1

LABEL = "LowCardinality(String)"
MAP = "Map(LowCardinality(String), String)"

SPANS = Table(
    "stored_spans",
    (
        ("TenantId", "String"),
        ("TraceId", "String"),
        ("RecordId", "String"),
        ("Version", "UInt64"),
        ("Precedence", "UInt64"),
        ("RecordedAt", MOMENT),
        ("SpanId", "String"),
        ("ParentSpanId", "Nullable(String)"),
        ("SpanName", "String"),
        ("SpanKind", "UInt8"),
        ("StartTime", MOMENT),
        ("EndTime", MOMENT),
        ("Duration", "Int64"),
        ("StatusCode", "UInt8"),
        ("StatusMessage", "String"),
        ("ServiceName", LABEL),
        ("ScopeName", LABEL),
        ("ScopeVersion", LABEL),
        ("SpanAttributes", MAP),
        ("ResourceAttributes", MAP),
        ("AiKind", LABEL),
        ("Provider", LABEL),
        ("Model", LABEL),
        ("InputTokens", "Nullable(Int64)"),
        ("OutputTokens", "Nullable(Int64)"),
        ("FirstToken", "Nullable(Int64)"),
        ("Cost", "Nullable(Int64)"),
        ("Body", "String"),
    ),
)

_encode = msgspec.json.Encoder().encode
_span_of = msgspec.json.Decoder(Span).decode
_no_ai = Ai()


class ClickHouseSpanTable:
    """A :class:`~toril.pipelines.spans.tables.SpanTable` in ClickHouse."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = database.writer(SPANS)

    async def insert(self, rows: Sequence[SpanRow]) -> None:
        """As :meth:`SpanTable.insert`, together with what others insert at the same time."""
        await self._writer.add([_span_values(row) for row in rows])

    async def of_trace(self, tenant: str, trace_id: str, *, limit: int = 10_000) -> list[SpanRow]:
        """As :meth:`SpanTable.of_trace`."""
        found = await self._database.query(
            "SELECT RecordId, Version, RecordedAt, Body FROM {database}.stored_spans FINAL"
            " WHERE TenantId = {tenant:String} AND TraceId = {trace:String}"
            " ORDER BY StartTime, SpanId, RecordId LIMIT {limit:UInt64}",
            {"tenant": tenant, "trace": trace_id, "limit": check_limit(limit)},
            formats={"RecordedAt": "int", "Body": "bytes"},
        )
        return [
            SpanRow(
                tenant=tenant,
                record_id=record_id,
                version=version,
                recorded_at=recorded_at,
                span=_restored(_span_of, body, "stored_spans"),
            )
            for record_id, version, recorded_at, body in found
        ]

    async def count(self, tenant: str) -> int:
        """As :meth:`SpanTable.count`."""
        return await self._database.count(SPANS, tenant)

    async def erase(self, tenant: str) -> int:
        """As :meth:`SpanTable.erase`."""
        return await self._database.erase(SPANS, tenant)


def _span_values(row: SpanRow) -> Row:
    span, ai = row.span, row.span.ai or _no_ai
    service = span.resource.attributes.get("service.name")
    return (
        row.tenant,
        span.trace_id,
        row.record_id,
        row.version,
        LAST_VERSION - row.version,
        moment(row.recorded_at),
        span.span_id,
        span.parent_span_id,
        span.name,
        span.kind,
        moment(span.start),
        moment(span.end),
        whole(span.end - span.start),
        span.status,
        span.status_message,
        service if isinstance(service, str) else "",
        span.scope.name,
        span.scope.version,
        _texts(span.attributes),
        _texts(span.resource.attributes),
        ai.kind or "",
        ai.provider or "",
        ai.response_model or ai.request_model or "",
        _maybe(whole, ai.input_tokens),
        _maybe(whole, ai.output_tokens),
        _maybe(whole, ai.first_token),
        _maybe(whole, ai.cost),
        _body(span),
    )


def _huge(number: int) -> int:
    """A sum in a column of 128 bits."""
    return min(max(number, -(2**127)), 2**127 - 1)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _encode(value).decode()


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Text as it is, everything else as JSON."""
    return {
        name: value if isinstance(value, str) else _encode(value).decode() for name, value in values.items()
    }


def _list(values: Any) -> list[str]:
    return [_text(value) for value in values or ()]


def _maybe(change: Callable[[int], int], value: int | None) -> int | None:
    return None if value is None else change(value)


FIELDS: tuple[tuple[str, str, str, Callable[[Any], Any]], ...] = (
    ("TraceName", "trace_name", "String", _text),
    ("RootSpanId", "root_span_id", "String", _text),
    ("HasRoot", "has_root", "Bool", bool),
    ("ServiceName", "service", LABEL, _text),
    ("Spans", "spans", "Int64", lambda value: whole(value or 0)),
    ("StartedAt", "started_at", f"Nullable({MOMENT})", lambda value: _maybe(moment, value)),
    ("EndedAt", "ended_at", f"Nullable({MOMENT})", lambda value: _maybe(moment, value)),
    ("Duration", "duration", "Nullable(Int64)", lambda value: _maybe(whole, value)),
    ("FirstToken", "first_token", "Nullable(Int64)", lambda value: _maybe(whole, value)),
    ("LastToken", "last_token", "Nullable(Int64)", lambda value: _maybe(whole, value)),
    ("InputTokens", "input_tokens", "Nullable(Int128)", lambda value: _maybe(_huge, value)),
    ("OutputTokens", "output_tokens", "Nullable(Int128)", lambda value: _maybe(_huge, value)),
    ("CacheReadTokens", "cache_read_tokens", "Nullable(Int128)", lambda value: _maybe(_huge, value)),
    ("CacheWriteTokens", "cache_write_tokens", "Nullable(Int128)", lambda value: _maybe(_huge, value)),
    ("ReasoningTokens", "reasoning_tokens", "Nullable(Int128)", lambda value: _maybe(_huge, value)),
    ("TokensEstimated", "tokens_estimated", "Bool", bool),
    ("TokensPerSecond", "tokens_per_second", "Nullable(Int128)", lambda value: _maybe(_huge, value)),
    ("Models", "models", f"Array({LABEL})", _list),
    ("Cost", "cost", "Nullable(Int128)", lambda value: _maybe(_huge, value)),
    ("Failed", "failed", "Bool", bool),
    ("Ok", "ok", "Bool", bool),
    ("Errors", "errors", "Int64", lambda value: whole(value or 0)),
    ("ErrorMessage", "error_message", "String", _text),
    ("Conversation", "conversation", "String", _text),
    ("UserId", "user", "String", _text),
    ("Customer", "customer", "String", _text),
    ("Labels", "labels", f"Array({LABEL})", _list),
    ("Topic", "topic", LABEL, _text),
    ("Subtopic", "subtopic", LABEL, _text),
    ("Annotated", "annotated", "Bool", bool),
    ("Attributes", "attributes", MAP, lambda value: _texts(value or {})),
    ("CreatedAt", "created_at", f"Nullable({MOMENT})", lambda value: _maybe(moment, value)),
    ("UpdatedAt", "updated_at", f"Nullable({MOMENT})", lambda value: _maybe(moment, value)),
)
"""Columns of summaries: name, field of :class:`TraceSummary`, type, and how the field becomes a value."""

TRACES = Table(
    "trace_summaries",
    (
        ("TenantId", "String"),
        ("TraceId", "String"),
        ("Version", "UInt64"),
        *((name, kind) for name, _, kind, _ in FIELDS),
        ("Body", "String"),
    ),
)

ORDERS: Mapping[TraceOrder, tuple[str, str]] = {
    "latest": ("", "StartedAt DESC NULLS LAST, TraceId"),
    "slowest": ("", "Duration DESC NULLS LAST, StartedAt DESC NULLS LAST, TraceId"),
    "dearest": ("", "Cost DESC NULLS LAST, StartedAt DESC NULLS LAST, TraceId"),
    "failing": (" AND Errors > 0", "Errors DESC, StartedAt DESC NULLS LAST, TraceId"),
}
"""For each order: which traces are left out, and by what the others stand."""


class ClickHouseTraceTable:
    """A :class:`~toril.pipelines.spans.tables.TraceTable` in ClickHouse."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = database.writer(TRACES)

    async def insert(self, rows: Sequence[TraceRow]) -> None:
        """As :meth:`TraceTable.insert`, together with what others insert at the same time."""
        await self._writer.add([_trace_values(row) for row in rows])

    async def get(self, tenant: str, trace_id: str) -> TraceRow | None:
        """As :meth:`TraceTable.get`."""
        found = await self._read(
            "SELECT TraceId, Version, Body FROM {database}.trace_summaries FINAL"
            " WHERE TenantId = {tenant:String} AND TraceId = {trace:String}",
            {"tenant": tenant, "trace": trace_id},
        )
        return found[0] if found else None

    async def find(
        self,
        tenant: str,
        *,
        order: TraceOrder = "latest",
        since: int | None = None,
        until: int | None = None,
        limit: int = 50,
    ) -> list[TraceRow]:
        """As :meth:`TraceTable.find`. Bodies are read only of those that are listed."""
        if order not in ORDERS:
            raise InvalidValue("order", order, f"one of {', '.join(ORDERS)}")
        where, by = ORDERS[order]
        bounds: dict[str, Any] = {"tenant": tenant, "limit": check_limit(limit)}
        if since is not None:
            where += " AND toUnixTimestamp64Nano(StartedAt) >= {since:Int128}"
            bounds["since"] = since
        if until is not None:
            where += " AND toUnixTimestamp64Nano(StartedAt) < {until:Int128}"
            bounds["until"] = until
        return await self._read(
            "SELECT TraceId, Version, Body FROM {database}.trace_summaries FINAL"  # noqa: S608 - parts of our own
            " WHERE TenantId = {tenant:String} AND TraceId IN"
            " (SELECT TraceId FROM {database}.trace_summaries FINAL WHERE TenantId = {tenant:String}"
            f"{where} ORDER BY {by} LIMIT {{limit:UInt64}}) ORDER BY {by}",
            bounds,
        )

    async def count(self, tenant: str) -> int:
        """As :meth:`TraceTable.count`."""
        return await self._database.count(TRACES, tenant)

    async def erase(self, tenant: str) -> int:
        """As :meth:`TraceTable.erase`."""
        return await self._database.erase(TRACES, tenant)

    async def _read(self, statement: str, parameters: Mapping[str, Any]) -> list[TraceRow]:
        found = await self._database.query(statement, parameters, formats={"Body": "bytes"})
        return [
            TraceRow(
                tenant=parameters["tenant"],
                trace_id=trace_id,
                version=version,
                summary=_restored(msgspec.json.decode, body, "trace_summaries"),
            )
            for trace_id, version, body in found
        ]


def _trace_values(row: TraceRow) -> Row:
    summary = row.summary
    columns = (value(summary.get(field)) for _, field, _, value in FIELDS)
    return (row.tenant, row.trace_id, row.version, *columns, _body(summary))


def _body(value: Any) -> bytes:
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError) as problem:
        raise ValidationError(
            "body", type(value).__name__, f"it must be JSON: {type(problem).__name__}"
        ) from None


def _restored(decode: Callable[[bytes], Any], body: bytes, table: str) -> Any:
    """A body that cannot be read is an error, never an empty row."""
    try:
        return decode(body)
    except msgspec.MsgspecError as problem:
        raise StoreError(
            f"a body in {table} cannot be read: {type(problem).__name__}", retryable=False
        ) from None
