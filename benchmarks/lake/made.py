"""Events as a collector records them, each made from its number alone.

So any part of history can be made anywhere, at any time, and is the same. Ten spans are a trace. Some have
one more that comes half a million events late, in the place of another's last one, so that a batch touches
the traces of now and a few old ones. A trace is in the partition of the log of its number, so that ordinals
follow from numbers too (a log would choose by a hash of its id).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from toril.events import NewEvent
from toril.lake.tables import LOG_COLUMNS
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.span import Ai, Resource, Scope, Span
from toril.pipelines.spans.summary import SPAN_AGGREGATE

SPANS = 10
"""Spans of a trace."""
PARTITIONS = 16
UNIT = SPANS * PARTITIONS
"""Events are made in multiples of this: then each partition has as many."""
EVERY = 50
LATE = 50_000
"""A late span comes so many traces later: a multiple of the partitions, so it is in its trace's one."""
BEGAN = 1_790_000_000_000_000_000
APART = 25_000_000
"""Nanoseconds from an event to the next: ten million are three days."""
SCATTER = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Ids of traces are as random as those of tracers; this number is odd, so no two of them are the same."""
TENANTS = ("acme", "globex", "initech", "umbrella")
MODELS = ("gpt-4o", "gpt-4o-mini", "claude-sonnet-4", "gemini-2.5-pro", "mistral-large")
PAGE = 5_000

_RESOURCES = tuple(
    Resource(attributes={"service.name": name, "telemetry.sdk.language": "python"})
    for name in ("checkout", "support", "search")
)
_SCOPE = Scope(name="opentelemetry.instrumentation.openai", version="0.50.1")
_TYPES = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
ARROW = pa.schema([(column.name, _TYPES[column.type]) for column in LOG_COLUMNS])
SCHEMA = ", ".join(f"`{column.name}` {column.type}" for column in LOG_COLUMNS)


def place_of(number: int) -> tuple[int, int]:
    """The trace that the event with a number (0, 1, 2 …) is of, and which of its spans."""
    trace, span = divmod(number, SPANS)
    # Of every second stretch, and so that batches after 1, 3 and 10 million events have some.
    if span == SPANS - 1 and trace % EVERY == 7 and trace >= LATE and trace // LATE % 2 == 0:
        return trace - LATE, SPANS
    return trace, span


def span_of(trace: int, number: int) -> tuple[str, Span]:
    """A span, and whose it is."""
    chance = (trace * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    chance ^= chance >> 29
    tenant = TENANTS[trace % 7 % len(TENANTS)]
    trace_id = f"{(trace + 1) * SCATTER % 2**128:032x}"
    start = BEGAN + trace * SPANS * APART + number * 20_000_000
    took = 1_000_000 << (chance % 12)
    failed = chance % 53 == 0
    ai = None
    if number % 3 == 1:
        model = MODELS[chance % len(MODELS)]
        tokens = chance >> 8 & 0xFFF
        ai = Ai(
            kind="llm",
            operation="chat",
            provider="openai",
            request_model=model,
            response_model=model,
            input_tokens=tokens,
            output_tokens=tokens >> 2,
            cache_read_tokens=tokens >> 3,
            first_token=took >> 3,
            last_token=took,
            input=[{"role": "user", "content": f"How is order {chance % 1_000_000} doing?"}],
            output="It left the warehouse this morning, and will be with you tomorrow.",
            conversation=f"thread-{trace % 9973}",
            user=f"user-{trace % 997}",
            cost=tokens * 2_500,
            cost_from="2026-11",
        )
    return tenant, Span(
        trace_id=trace_id,
        span_id=f"{trace << 8 | number + 1:016x}",
        parent_span_id=None if number == 0 else f"{trace << 8 | 1:016x}",
        name="chat" if ai else ("POST /answer" if number == 0 else f"step {number}"),
        kind=2 if number == 0 else 1,
        start=start,
        end=start + took,
        status=2 if failed else 1,
        status_message="the answer did not come in time" if failed else "",
        attributes={"http.response.status_code": 504 if failed else 200, "retries": chance % 3},
        resource=_RESOURCES[trace % len(_RESOURCES)],
        scope=_SCOPE,
        ai=ai,
        rules=["genai"] if ai else [],
    )


def event_of(tenant: str, span: Span) -> NewEvent[Span]:
    """The event that records a span."""
    return NewEvent(type=SPAN_RECORDED, id=span.record_id(tenant), occurred_at=span.start, data=span)


def rows(first: int, last: int) -> Iterator[tuple[object, ...]]:
    """Rows of ``events``, from a number up to before another one."""
    encode = msgspec.json.Encoder().encode
    for number in range(first, last):
        slot, place = divmod(number, SPANS)
        trace, which = place_of(number)
        tenant, span = span_of(trace, which)
        event = event_of(tenant, span)
        recorded = BEGAN + number * APART
        yield (
            *(1, slot % PARTITIONS, slot // PARTITIONS * SPANS + place + 1, f"{recorded // 1_000_000}-0"),
            *(tenant, SPAN_AGGREGATE, span.trace_id, which + 1, recorded),
            *(event.id, SPAN_RECORDED, 1, span.start, encode(event)),
        )


def events(spark: SparkSession, first: int, last: int, tasks: int) -> DataFrame:
    """The same as a DataFrame, made by Spark's workers."""
    width = UNIT * 10
    ranges = spark.range(first // width, -(-last // width), 1, tasks)

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                made = rows(max(first, number * width), min(last, (number + 1) * width))
                while page := list(islice(made, PAGE)):
                    columns = zip(*page, strict=True)
                    arrays = [
                        pa.array(column, field.type) for column, field in zip(columns, ARROW, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=ARROW)

    return ranges.mapInArrow(make, SCHEMA)
