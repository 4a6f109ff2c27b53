"""The summary of a trace, declared as mergeable fields: what its spans say, in whatever order they come.

Applying a span takes the same time whether it is the second of its trace or the millionth, and the state
has a size that does not depend on how many there were. docs/trace-summaries.md says why each rule is what
it is.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from toril.events import (
    AnyEvent,
    Count,
    DeclaredProjection,
    Derived,
    Event,
    FirstBy,
    FirstPerKey,
    Flag,
    LastBy,
    Maximum,
    Minimum,
    SetOf,
    Sum,
    first_of,
    fold,
    members,
    path,
    quotient,
    size,
    text,
)
from toril.events.expressions import Path
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.tables import SpanRow

SPAN_AGGREGATE = "span"
"""The type of the aggregates that spans are events of; the id of one is the trace's."""

PREVIEW = 4096
"""How many bytes of an input and of an output are in a summary. All of it is in the span."""

MESSAGE = 1024
"""How many bytes of an error's message are."""

WORD = 256
"""How many bytes of names, ids, models, labels and attributes are."""

MANY = 64
"""How many models, labels and attributes are, each the smallest of theirs."""

IS_CHILD = path("data.parent_span_id").exists()
IS_JUDGE = path("data.ai.kind").is_in("evaluation", "guardrail")
HAS_INPUT = path("data.ai.input").exists()
HAS_OUTPUT = path("data.ai.output").exists()
IS_ERROR = path("data.status").equals(2)

ROOT_FIRST = (IS_CHILD, "data.start", "data.span_id")
ROOT_FIRST_KINDS = (bool, int, str)


def _attribute(name: str) -> Path:
    return path("data", "attributes", name)


def _resource(name: str) -> Path:
    return path("data", "resource", "attributes", name)


INPUT = first_of(
    "data.ai.input",
    _attribute("url.full"),
    _attribute("http.url"),
    _attribute("url.path"),
    _attribute("http.target"),
)
INPUT_ORDER = (~HAS_INPUT, IS_CHILD, "data.start", "data.span_id")
INPUT_OF = ~IS_JUDGE & (HAS_INPUT | ~IS_CHILD)

OUTPUT = first_of("data.ai.output", _attribute("http.response.status_code"), _attribute("http.status_code"))
OUTPUT_ORDER = (HAS_OUTPUT, ~IS_CHILD, "data.end", "data.span_id")
OUTPUT_OF = ~IS_JUDGE & (HAS_OUTPUT | ~IS_CHILD)
IO_KINDS = (bool, bool, int, str)


class TraceSummary(DeclaredProjection):
    """What the spans of a trace come to. Times are nanoseconds, money is nano-USD; None: no span says."""

    name = "trace_summary"
    event_types = frozenset({SPAN_RECORDED})

    spans = Count()
    has_root = Flag(where=~IS_CHILD)
    root_span_id = FirstBy(
        "data.span_id", str, order=("data.start", "data.span_id"), order_kind=(int, str), where=~IS_CHILD
    )
    trace_name = FirstBy(text("data.name", WORD), str, order=ROOT_FIRST, order_kind=ROOT_FIRST_KINDS)
    service = FirstBy(
        text(_resource("service.name"), WORD), str, order=ROOT_FIRST, order_kind=ROOT_FIRST_KINDS
    )

    started_at = Minimum("data.start", int, where=path("data.start") > 0)
    ended_at = Maximum(
        members("data.start", "data.end"), int, where=(path("data.start") > 0) | (path("data.end") > 0)
    )
    duration = Derived(path("ended_at") - path("started_at"), int)
    first_token = Minimum("data.ai.first_token", int)
    last_token = Maximum("data.ai.last_token", int)

    input_tokens = Sum("data.ai.input_tokens", default=None)
    output_tokens = Sum("data.ai.output_tokens", default=None)
    cache_read_tokens = Sum("data.ai.cache_read_tokens", default=None)
    cache_write_tokens = Sum("data.ai.cache_write_tokens", default=None)
    reasoning_tokens = Sum("data.ai.reasoning_tokens", default=None)
    tokens_estimated = Flag(where=path("data.ai.tokens_estimated").equals(True))
    tokens_per_second = Derived(
        quotient("output_tokens", path("ended_at") - path("started_at"), times=1_000_000_000), int
    )
    models = SetOf(members("data.ai.response_model", "data.ai.request_model", most=WORD), str, limit=MANY)
    cost = Sum("data.ai.cost", default=None)

    failed = Flag(where=IS_ERROR)
    ok = Flag(where=path("data.status").equals(1))
    errors = Count(where=IS_ERROR)
    error_message = FirstBy(
        text(
            first_of(
                "data.status_message",
                _attribute("exception.message"),
                _attribute("error.message"),
                _attribute("error.type"),
            ),
            MESSAGE,
        ),
        str,
        order=(IS_CHILD, "data.end", "data.span_id"),
        order_kind=(bool, int, str),
        where=IS_ERROR,
    )

    input = FirstBy(text(INPUT, PREVIEW), str, order=INPUT_ORDER, order_kind=IO_KINDS, where=INPUT_OF)
    input_bytes = FirstBy(size(INPUT), int, order=INPUT_ORDER, order_kind=IO_KINDS, where=INPUT_OF)
    output = LastBy(text(OUTPUT, PREVIEW), str, order=OUTPUT_ORDER, order_kind=IO_KINDS, where=OUTPUT_OF)
    output_bytes = LastBy(size(OUTPUT), int, order=OUTPUT_ORDER, order_kind=IO_KINDS, where=OUTPUT_OF)

    conversation = FirstBy(
        text("data.ai.conversation", WORD), str, order=ROOT_FIRST, order_kind=ROOT_FIRST_KINDS
    )
    user = FirstBy(text("data.ai.user", WORD), str, order=ROOT_FIRST, order_kind=ROOT_FIRST_KINDS)
    customer = FirstBy(text("data.ai.customer", WORD), str, order=ROOT_FIRST, order_kind=ROOT_FIRST_KINDS)
    labels = SetOf(members("data.ai.labels", most=WORD), str, limit=MANY)
    topic = FirstBy(
        text(_attribute("langwatch.topic_id"), WORD), str, order=ROOT_FIRST, order_kind=ROOT_FIRST_KINDS
    )
    subtopic = FirstBy(
        text(_attribute("langwatch.subtopic_id"), WORD), str, order=ROOT_FIRST, order_kind=ROOT_FIRST_KINDS
    )
    annotated = Flag(where=_attribute("langwatch.annotated").equals(True))
    attributes = FirstPerKey(
        {
            "sdk.name": _resource("telemetry.sdk.name"),
            "sdk.language": _resource("telemetry.sdk.language"),
            "sdk.version": _resource("telemetry.sdk.version"),
            "service.name": _resource("service.name"),
            "gen_ai.conversation.id": "data.ai.conversation",
            "langwatch.user_id": "data.ai.user",
            "langwatch.customer_id": "data.ai.customer",
            "langwatch.labels": "data.ai.labels",
            "langgraph.thread_id": _attribute("langgraph.thread_id"),
            "metadata": _attribute("metadata"),
        },
        prefixes={"metadata.": "data.attributes"},
        order=ROOT_FIRST,
        order_kind=ROOT_FIRST_KINDS,
        limit=MANY,
        most=WORD,
    )

    created_at = Minimum("recorded_at", int)
    updated_at = Maximum("recorded_at", int)


def recompute(rows: Iterable[SpanRow]) -> TraceSummary:
    """The summary once more, from the spans of a trace that are stored. Rows that are the same count once."""
    once = {row.record_id: row for row in rows}
    return fold(TraceSummary, map(_event_of, once.values()))


def _event_of(row: SpanRow) -> AnyEvent:
    """The event that recorded a span, as far as a summary looks at it."""
    return Event(
        id=row.record_id,
        tenant=row.tenant,
        aggregate_type=SPAN_AGGREGATE,
        aggregate_id=row.span.trace_id,
        version=row.version,
        type=SPAN_RECORDED,
        schema_version=1,
        occurred_at=row.recorded_at,
        recorded_at=row.recorded_at,
        data=msgspec.to_builtins(row.span),
    )
