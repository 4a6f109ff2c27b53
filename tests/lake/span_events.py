"""Events of a lake, made without a log: what tests of the tables after ``events`` begin with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from toril.events import NewEvent
from toril.lake.lake import Lake, Record
from toril.lake.source.rows import header
from toril.lake.tables import EVENTS, LOG_COLUMNS
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.span import Ai, Resource, Span, SpanEvent

DAY = 86_400_000_000_000
NOON = 20_000 * DAY + DAY // 2
"""A noon in 2024."""


def a_span(number: int = 1, /, **said: Any) -> Span:
    """A span; two with one number are the same."""
    chance = random.Random(number)
    start = NOON + chance.randrange(3 * 3_600_000_000_000)
    made = {
        "trace_id": f"{number // 4 + 1:032x}",
        "span_id": f"{number + 1:016x}",
        "parent_span_id": None if number % 4 == 0 else f"{number // 4 * 4 + 1:016x}",
        "name": chance.choice(["chat", "search", "plan é"]),
        "kind": chance.randrange(6),
        "start": start,
        "end": start + chance.randrange(-1000, 10 ** chance.randrange(4, 12)),
        "status": chance.randrange(3),
        "attributes": {"n": number, "text": str(number), "list": [1.5, None, {"b": 1, "a": "é"}]},
        "resource": Resource(attributes={"service.name": "shop"}),
        "events": [SpanEvent(name="token", time=start + 5)] if number % 7 == 0 else [],
        "ai": _ai(chance) if number % 3 else None,
        "rules": ["genai"],
    }
    return Span(**{**made, **said})


def _ai(chance: random.Random) -> Ai:
    def some(value: Any) -> Any:
        return value if chance.random() < 0.8 else None

    return Ai(
        kind="llm",
        request_model=some(chance.choice(["gpt-4o", "sonnet"])),
        response_model=some(chance.choice(["gpt-4o-2024-08-06", "sonnet", ""])),
        input_tokens=some(chance.randrange(5000)),
        output_tokens=some(chance.randrange(500)),
        cache_read_tokens=some(0),
        reasoning_tokens=some(chance.randrange(10)),
        first_token=some(chance.randrange(10**9)),
        input=some([{"role": "user", "content": "How far is it?"}]),
        output=some("Far."),
        labels=["a", "b"],
        cost=some(chance.randrange(10**7)),
        cost_from="span",
    )


def body_of(span: Span, **said: Any) -> bytes:
    """The body of the event that records a span."""
    made = {"type": SPAN_RECORDED, "id": span.record_id("acme"), "occurred_at": span.start, "data": span}
    return NewEvent(**{**made, **said}).to_bytes()


Body = bytes | Span | tuple[bytes | Span, str]
"""A body; the body that a span has; either with the tenant that it is of."""


_TYPES = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
SCHEMA = pa.schema([(column.name, _TYPES[column.type]) for column in LOG_COLUMNS])
"""What the source ``toril_log`` gives."""


def rows_of(bodies: Iterable[Body], first: int = 1) -> list[dict[str, Any]]:
    """Rows as the source gives them, with ordinals from ``first``."""
    return [_row(body, first + place) for place, body in enumerate(bodies)]


def events_of(spark: SparkSession, bodies: Iterable[Body], first: int = 1) -> DataFrame:
    """:func:`rows_of` for Spark."""
    return spark.createDataFrame(pa.Table.from_pylist(rows_of(bodies, first), schema=SCHEMA))


def _row(given: Body, ordinal: int) -> dict[str, Any]:
    tenant, aggregate_id = "acme", f"{ordinal:032x}"
    if isinstance(given, tuple):
        given, tenant = given
    if isinstance(given, Span):
        aggregate_id, given = given.trace_id, body_of(given)
    else:
        with suppress(ValueError, KeyError, TypeError):
            aggregate_id = msgspec.json.decode(given)["data"]["trace_id"]
    head = header(given)
    return {
        "log_epoch": 1,
        "log_partition": ordinal % 4,
        "ordinal": ordinal,
        "entry_id": f"{NOON // 1_000_000 + ordinal}-0",
        "tenant": tenant,
        "aggregate_type": "span",
        "aggregate_id": aggregate_id,
        "version": ordinal,
        "recorded_at": NOON + ordinal * 1_000_000,
        "event_id": head.id,
        "event_type": head.type,
        "schema_version": head.schema_version,
        "occurred_at": head.occurred_at,
        "body": given,
    }


def archive(lake: Lake, bodies: Sequence[Body]) -> Record:
    """One more batch of ``events``."""
    lake.ensure(EVENTS)
    last = lake.last(EVENTS)
    first = last.positions.get("00", (0, ""))[0] + 1
    record = Record(batch=last.batch + 1, positions={"00": (first + len(bodies) - 1, f"{last.batch + 1}-0")})
    lake.append(events_of(lake.spark, bodies, first), EVENTS, record)
    return record
