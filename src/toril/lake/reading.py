"""Events read as spans, an Arrow batch at a time: each is a span in columns, or has a reason why it is none.

A reason names the field and the rule. It says nothing of what a tenant has sent: it may end in a log.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from toril.errors import InvalidValue
from toril.events import Upcasters
from toril.events.errors import SchemaTooNew, SchemaUnknown, StoreError
from toril.events.event import restore_event
from toril.lake.source.rows import Header
from toril.pipelines.spans.recording import SPAN_RECORDED, span_of
from toril.pipelines.spans.span import Ai, Link, Resource, Scope, Span, SpanEvent, check_span
from toril.pipelines.spans.summary import SPAN_AGGREGATE

_TEXTS = pa.map_(pa.string(), pa.string())

PASSED_ON = (
    *("log_epoch", "log_partition", "ordinal", "entry_id", "tenant", "aggregate_type", "aggregate_id"),
    *("version", "recorded_at", "event_id", "event_type", "schema_version", "occurred_at"),
)
"""What stays as the log has it."""

MADE = pa.schema(
    [
        ("span_id", pa.string()),
        ("parent_span_id", pa.string()),
        ("name", pa.string()),
        ("kind", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("duration", pa.int64()),
        ("status", pa.int32()),
        ("status_message", pa.string()),
        ("attributes", _TEXTS),
        ("resource", _TEXTS),
        ("scope_name", pa.string()),
        ("scope_version", pa.string()),
        ("events", pa.string()),
        ("links", pa.string()),
        ("ai_kind", pa.string()),
        ("operation", pa.string()),
        ("provider", pa.string()),
        ("request_model", pa.string()),
        ("response_model", pa.string()),
        ("input_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("cache_read_tokens", pa.int64()),
        ("cache_write_tokens", pa.int64()),
        ("reasoning_tokens", pa.int64()),
        ("tokens_estimated", pa.bool_()),
        ("first_token", pa.int64()),
        ("last_token", pa.int64()),
        ("input", pa.string()),
        ("output", pa.string()),
        ("tool", pa.string()),
        ("agent", pa.string()),
        ("conversation", pa.string()),
        ("user", pa.string()),
        ("customer", pa.string()),
        ("labels", pa.list_(pa.string())),
        ("cost", pa.int64()),
        ("cost_from", pa.string()),
        ("rules", pa.list_(pa.string())),
        ("said_empty", pa.list_(pa.string())),
    ]
)
"""What is made of an event's data, in the order of :func:`columns_of`. All of it is null where it is none."""

LEFT_OUT = ("status_message", "scope.name", "scope.version", "ai.labels", "rules")
"""What a span that is written by Toril leaves out where it is empty; another program may say it."""

WHOLE = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
"""Of the AI columns, those that JSON may have larger than a bigint; and these:"""
WHOLE_TOO = ("first_token", "last_token", "cost")

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_NOTHING: tuple[Any, ...] = (None,) * len(MADE)
_NO_AI = Ai()
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"^Object missing required field `(\w+)`")

_SUSPECT = (b'"status_message"', b'"scope"', b'"labels"', b'"rules"', b"\\u")
"""One of these is in each body that says something empty, in this order of what is looked for."""

_read_header = msgspec.json.Decoder(Header).decode
_canonical = msgspec.json.Encoder(order="deterministic")


class Unreadable(Exception):
    """An event is no span. Its text is the reason."""


class Read(NamedTuple):
    """What became of an event: either is None."""

    span: Span | None
    reason: str | None


# Of what these have no field for, live's decoder reads the value all the same: it may be no JSON.


class _Event(SpanEvent, frozen=True, forbid_unknown_fields=True):
    pass


class _Link(Link, frozen=True, forbid_unknown_fields=True):
    pass


class _Resource(Resource, frozen=True, forbid_unknown_fields=True):
    pass


class _Scope(Scope, frozen=True, forbid_unknown_fields=True):
    pass


class _Ai(Ai, frozen=True, forbid_unknown_fields=True):
    pass


class _Span(Span, frozen=True, kw_only=True, forbid_unknown_fields=True):
    events: list[_Event] = msgspec.field(default_factory=list)  # type: ignore[assignment]
    links: list[_Link] = msgspec.field(default_factory=list)  # type: ignore[assignment]
    resource: _Resource = _Resource()
    scope: _Scope = _Scope()
    ai: _Ai | None = None


class Recorded(msgspec.Struct):
    """The body of an event that has recorded a span, in today's form, and with nothing else in it.

    Whatever it takes, live can read too; what it refuses is read the slow way.
    """

    id: str
    type: str
    data: _Span
    occurred_at: int
    schema_version: int = 1
    metadata: dict[str, Any] = {}


class Reader:
    """Reads events by the same upcasters as a live pipeline does. Make it where it is used: in the worker."""

    def __init__(self, upcasters: Upcasters | None = None) -> None:
        self._upcasters = upcasters or Upcasters()
        self._newest = self._upcasters.newest(SPAN_RECORDED)
        self._decoder = msgspec.json.Decoder(Recorded)

    def batch(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """A row for each event, in the same order: see :func:`schema`."""
        reasons: list[str | None] = []
        rows: list[tuple[Any, ...]] = []
        names = ("body", "tenant", "aggregate_type", "aggregate_id", "version", "recorded_at")
        given = (events.column(name).to_pylist() for name in (*names, "event_id", "schema_version"))
        for body, *whose, event_id, form in zip(*given, strict=True):
            try:
                span, empty = self._read(body, event_id, form, *whose)
                rows.append((*columns_of(checked(span, *whose[1:3])), empty))
                reasons.append(None)
            except Exception as problem:  # noqa: BLE001 - whatever it is, it goes to quarantine
                rows.append(_NOTHING)
                reasons.append(reason_of(problem))
        arrays = _arrays(rows, reasons)
        refused = pa.array(reasons, pa.string())
        passed = [events.column(name) for name in PASSED_ON]
        body = events.column("body")
        kept = pc.if_else(pc.is_valid(refused), body, pa.scalar(None, body.type))
        return pa.RecordBatch.from_arrays([*passed, kept, *arrays, refused], names=NAMES)

    def _read(
        self, body: bytes, event_id: str | None, form: int | None, *whose: Any
    ) -> tuple[Span, list[str] | None]:
        if event_id is None:
            _read_header(body)  # which says what is wrong with it
            raise Unreadable("body: its id, type and time were not read when it was archived")
        if form == self._newest:
            try:
                span = self._decoder.decode(body).data
            except msgspec.ValidationError:
                pass
            else:
                if not suspect(span, body):
                    return span, None
        return self._upcasted(body, *whose)

    def _upcasted(
        self, body: bytes, tenant: str, aggregate_type: str, aggregate_id: str, version: int, recorded_at: int
    ) -> tuple[Span, list[str] | None]:
        """As live reads it."""
        event = restore_event(
            body, f"{tenant}:{aggregate_type}:{aggregate_id}", version=version, recorded_at=recorded_at
        )
        try:
            data = self._upcasters.apply(event).data
            return span_of(data), said_empty(data)
        except msgspec.ValidationError as problem:
            raise Unreadable(_broken_rule(str(problem), "data")) from None


NAMES = (*PASSED_ON, "body", *MADE.names, "reason")


def read_batches(batches: Iterator[pa.RecordBatch], upcasters: Upcasters | None) -> Iterator[pa.RecordBatch]:
    """What a Spark task does."""
    reader = Reader(upcasters)
    for batch in batches:
        # Spans hold no cycles: looking for some after every few of them would take a third of the time.
        gc.disable()
        try:
            made = reader.batch(batch)
        finally:
            gc.enable()
        yield made


def checked(span: Span, aggregate_type: str, aggregate_id: str) -> Span:
    """A span that a row can hold, and that is where it says it is."""
    check_span(span)
    if aggregate_type != SPAN_AGGREGATE:
        raise Unreadable(f"aggregate_type: spans are events of {SPAN_AGGREGATE!r}")
    if span.trace_id != aggregate_id:
        raise Unreadable("data.trace_id: it must be the id of the aggregate")
    if span.ai is not None:
        for name in (*WHOLE, *WHOLE_TOO):
            value = getattr(span.ai, name)
            if value is not None and not _SMALLEST <= value <= _LARGEST:
                raise Unreadable(f"data.ai.{name}: a whole number from -2**63 to 2**63 - 1")
    return span


def suspect(span: Span, body: bytes) -> bool:
    """Whether a body may say something that is empty: a look at its bytes, which is almost always enough."""
    message, scope, labels, rules, escape = _SUSPECT
    return (
        (not span.status_message and message in body)
        or (not (span.scope.name and span.scope.version) and scope in body)
        or (span.ai is not None and not span.ai.labels and labels in body)
        or (not span.rules and rules in body)
        or escape in body  # a name may be written with one
    )


def said_empty(data: Any) -> list[str] | None:
    """Of :data:`LEFT_OUT`, what an event's data has, and has empty."""
    found = []
    for place in LEFT_OUT:
        inside = data
        for name in place.split("."):
            inside = inside.get(name) if isinstance(inside, dict) else None
        if inside == "" or inside == []:
            found.append(place)
    return found or None


def columns_of(span: Span) -> tuple[Any, ...]:
    """A span as :data:`MADE` has it, but for its last column."""
    ai = span.ai or _NO_AI
    return (
        span.span_id,
        span.parent_span_id,
        span.name,
        span.kind,
        span.start,
        span.end,
        span.duration,
        span.status,
        span.status_message,
        _texts(span.attributes),
        _texts(span.resource.attributes),
        span.scope.name,
        span.scope.version,
        as_json(span.events) if span.events else "[]",
        as_json(span.links) if span.links else "[]",
        ai.kind,
        ai.operation,
        ai.provider,
        ai.request_model,
        ai.response_model,
        ai.input_tokens,
        ai.output_tokens,
        ai.cache_read_tokens,
        ai.cache_write_tokens,
        ai.reasoning_tokens,
        ai.tokens_estimated,
        ai.first_token,
        ai.last_token,
        None if ai.input is None else as_json(ai.input),
        None if ai.output is None else as_json(ai.output),
        ai.tool,
        ai.agent,
        ai.conversation,
        ai.user,
        ai.customer,
        ai.labels,
        ai.cost,
        ai.cost_from,
        span.rules,
    )


def as_json(value: Any) -> str:
    """A value as JSON, always in the same words: text is quoted, so that "1" and 1 differ."""
    return _canonical.encode(value).decode()


def reason_of(problem: BaseException) -> str:
    """Why an event is no span: the field and the rule, without what it holds."""
    match problem:
        case Unreadable():
            return str(problem)
        case InvalidValue():
            return f"data.{problem.field}: {problem.rule}"
        case SchemaTooNew():
            return "schema_version: it is newer than this program knows"
        case SchemaUnknown() if problem.__cause__ is not None:
            return f"data: its upcaster failed with {type(problem.__cause__).__name__}"
        case SchemaUnknown():
            return "schema_version: it is older than this program knows"
        case StoreError() if problem.__cause__ is not None:
            return reason_of(problem.__cause__)
        case msgspec.ValidationError():
            return _broken_rule(str(problem))
        case msgspec.DecodeError() | UnicodeDecodeError():
            return "body: it must be JSON in UTF-8"
        case RecursionError():
            return "body: it is nested too deeply"
        case _:
            return f"data: it cannot be read ({type(problem).__name__})"


def _broken_rule(said: str, within: str = "") -> str:
    """A message of msgspec's without values: where one is none of a list, it would show it."""
    place, rule = _PLACE.search(said), _PLACE.sub("", said)
    field = ".".join(filter(None, (within, place and place[1])))
    if missing := _MISSING.match(rule):
        field, rule = ".".join(filter(None, (field, missing[1]))), "it is missing"
    elif rule == "Number out of range":
        rule = "its numbers must be ones that a double can hold"
    elif not rule.startswith("Expected "):
        rule = "it is none of the values that are known"
    return f"{field or 'body'}: {rule}"


def _texts(values: dict[str, Any]) -> list[tuple[str, str]]:
    encode = _canonical.encode  # of each attribute of each span: every call counts
    return [(name, encode(value).decode()) for name, value in values.items()]


def _arrays(rows: list[tuple[Any, ...]], reasons: list[str | None]) -> list[pa.Array]:
    """Columns of rows. A row that Arrow cannot hold (half a character, say) gets its reason instead."""
    try:
        return _columns(rows)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        for place, row in enumerate(rows):
            try:
                _columns([row])
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as problem:
                rows[place], reasons[place] = _NOTHING, reason_of(problem)
        return _columns(rows)


def _columns(rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    columns = zip(*rows, strict=True) if rows else ((),) * len(MADE)
    return [pa.array(values, field.type) for values, field in zip(columns, MADE, strict=True)]
