"""The same results in PySpark as one would write it by hand, by somebody who knows Spark well.

It leaves out what the data of this benchmark does not have: numbers beyond 64 bits, two events at one place
of an order, texts that must be cut inside of a character, sets beyond their limit, values of the wrong kind.
Of the small result there is one more, that leaves out neither of the first two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

# ---------------------------------------------------------------------------- over typed columns


def brief(spans: DataFrame) -> DataFrame:
    """What :class:`~benchmarks.lake.subjects.Brief` shows of the data of this benchmark."""
    return _brief(spans, "coalesce(sum({}), 0)", "struct(start, span_id)")


def brief_always(spans: DataFrame) -> DataFrame:
    """What it shows of any data: sums that may be large, and of two equal places that of the smaller id."""
    return _brief(spans, "coalesce(sum(CAST({} AS DECIMAL(28,0))), 0)", "struct(start, span_id, event_id)")


def _brief(spans: DataFrame, added_up: str, place: str) -> DataFrame:
    return spans.groupBy("tenant", "trace_id").agg(
        *map(
            expr,
            (
                "max(version) AS version",
                "count(1) AS spans",
                "count_if(status = 2) AS errors",
                "min(start) AS started_at",
                "max(`end`) AS ended_at",
                *(f"{added_up.format(name)} AS {name}" for name in ("input_tokens", "output_tokens", "cost")),
                "array_sort(collect_set(response_model)) AS models",
                f"min_by(name, {place}) AS trace_name",
            ),
        )
    )


_PLAIN = "get_json_object({}, '$')"
"""A JSON text as text: that of a text is itself."""


def _attribute(name: str, of: str = "attributes") -> str:
    return _PLAIN.format(f"{of}['{name}']")


def _first(value: str, order: str = "root_first", where: str = "") -> str:
    condition = f"{value} IS NOT NULL" + (f" AND {where}" if where else "")
    return f"min_by({value}, {order}) FILTER (WHERE {condition})"


_KEYS = {
    "gen_ai.conversation.id": "conversation",
    "langgraph.thread_id": _attribute("langgraph.thread_id"),
    "langwatch.customer_id": "customer",
    "langwatch.labels": "CASE WHEN size(labels) > 0 THEN to_json(labels) END",
    "langwatch.user_id": "`user`",
    "metadata": _attribute("metadata"),
    "sdk.language": _attribute("telemetry.sdk.language", "resource"),
    "sdk.name": _attribute("telemetry.sdk.name", "resource"),
    "sdk.version": _attribute("telemetry.sdk.version", "resource"),
    "service.name": "service",
}

_SUMMARY = {
    "version": "max(version)",
    "spans": "count(1)",
    "has_root": "bool_or(NOT child)",
    "root_span_id": "min_by(span_id, struct(start, span_id)) FILTER (WHERE NOT child)",
    "trace_name": _first("left(name, 256)"),
    "service": _first("service"),
    "started_at": "min(start) FILTER (WHERE start > 0)",
    "ended_at": "max(greatest(start, `end`)) FILTER (WHERE start > 0 OR `end` > 0)",
    "first_token": "min(first_token)",
    "last_token": "max(last_token)",
    "input_tokens": "sum(input_tokens)",
    "output_tokens": "sum(output_tokens)",
    "cache_read_tokens": "sum(cache_read_tokens)",
    "cache_write_tokens": "sum(cache_write_tokens)",
    "reasoning_tokens": "sum(reasoning_tokens)",
    "tokens_estimated": "coalesce(bool_or(tokens_estimated), false)",
    "models": "array_sort(array_union(collect_set(left(response_model, 256)), "
    "collect_set(left(request_model, 256))))",
    "cost": "sum(cost)",
    "failed": "bool_or(status = 2)",
    "ok": "bool_or(status = 1)",
    "errors": "count_if(status = 2)",
    "error_message": _first("message", "struct(child, `end`, span_id)", "status = 2"),
    "input_made": "min_by(struct(left(said, 4096) AS text, octet_length(said) AS bytes), "
    "struct(input IS NULL, child, start, span_id)) "
    "FILTER (WHERE said IS NOT NULL AND NOT judge AND (input IS NOT NULL OR NOT child))",
    "output_made": "max_by(struct(left(answer, 4096) AS text, octet_length(answer) AS bytes), "
    "struct(output IS NOT NULL, NOT child, `end`, span_id)) "
    "FILTER (WHERE answer IS NOT NULL AND NOT judge AND (output IS NOT NULL OR NOT child))",
    "conversation": _first("left(conversation, 256)"),
    "user": _first("left(`user`, 256)"),
    "customer": _first("left(customer, 256)"),
    "labels": "array_sort(array_distinct(flatten(collect_set(labels))))",
    "topic": _first(_attribute("langwatch.topic_id")),
    "subtopic": _first(_attribute("langwatch.subtopic_id")),
    "annotated": "coalesce(bool_or(attributes['langwatch.annotated'] = 'true'), false)",
    "created_at": "min(recorded_at)",
    "updated_at": "max(recorded_at)",
    "more": "collect_list(struct(root_first, metadata)) FILTER (WHERE size(metadata) > 0)",
    **{f"key_{place}": _first(how) for place, how in enumerate(_KEYS.values())},
}


def summary(spans: DataFrame) -> DataFrame:
    """What :class:`~toril.pipelines.spans.summary.TraceSummary` shows."""
    messages, inputs, outputs = (
        ", ".join([first, *map(_attribute, others)])
        for first, others in (
            ("nullif(status_message, '')", _MESSAGES),
            (_PLAIN.format("input"), _INPUTS),
            (_PLAIN.format("output"), _OUTPUTS),
        )
    )
    rows = spans.selectExpr(
        "*",
        "parent_span_id IS NOT NULL AS child",
        "struct(parent_span_id IS NOT NULL AS child, start, span_id) AS root_first",
        "coalesce(ai_kind IN ('evaluation', 'guardrail'), false) AS judge",
        f"left({_attribute('service.name', 'resource')}, 256) AS service",
        f"left(coalesce({messages}), 1024) AS message",
        f"coalesce({inputs}) AS said",
        f"coalesce({outputs}) AS answer",
        "map_entries(map_filter(attributes, (k, v) -> k LIKE 'metadata.%' AND v != 'null')) AS metadata",
    )
    made = rows.groupBy("tenant", "trace_id").agg(
        *(expr(f"{how} AS `{name}`") for name, how in _SUMMARY.items())
    )
    keys = ", ".join(f"named_struct('key', '{key}', 'value', key_{n})" for n, key in enumerate(_KEYS))
    shown = [
        f"`{name}`" for name in _SUMMARY if not name.startswith(("key_", "more")) and name[-5:] != "_made"
    ]
    duration = "(ended_at - started_at)"
    return made.selectExpr(
        "tenant",
        "trace_id",
        *shown,
        f"{duration} AS duration",
        f"CASE WHEN {duration} > 0 THEN (2 * CAST(output_tokens AS DECIMAL(20,0)) * 1000000000 + {duration}) "
        f"DIV (2 * {duration}) END AS tokens_per_second",
        "input_made.text AS input",
        "input_made.bytes AS input_bytes",
        "output_made.text AS output",
        "output_made.bytes AS output_bytes",
        f"map_concat(map_from_entries(transform(filter(array({keys}), e -> e.value IS NOT NULL), "
        "e -> struct(e.key, left(e.value, 256)))), "
        "map_from_entries(aggregate(array_sort(more), "
        "CAST(array() AS ARRAY<STRUCT<key STRING, value STRING>>), "
        "(had, one) -> concat(had, filter(one.metadata, "
        "e -> NOT exists(had, h -> h.key = e.key)))))) AS attributes",
    )


_MESSAGES = ("exception.message", "error.message", "error.type")
_INPUTS = ("url.full", "http.url", "url.path", "http.target")
_OUTPUTS = ("http.response.status_code", "http.status_code")


# ---------------------------------------------------------------------------- in Python, in order

_STATES = "tenant string, aggregate_id string, version bigint, state binary"
_ARROW = pa.schema(
    [("tenant", pa.string()), ("aggregate_id", pa.string()), ("version", pa.int64()), ("state", pa.binary())]
)


def pauses(events: DataFrame) -> DataFrame:
    """What :class:`~benchmarks.lake.subjects.Pauses` comes to."""
    chosen = events.select("tenant", "aggregate_id", "version", "body")
    ordered = chosen.repartition("tenant", "aggregate_id")
    return ordered.sortWithinPartitions("tenant", "aggregate_id", "version").mapInArrow(_pauses, _STATES)


def _pauses(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    key: tuple[str, str] | None = None
    last = ended = longest = pauses = 0
    after = ""
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        columns = [batch.column(number).to_pylist() for number in range(4)]
        for tenant, ident, version, body in zip(*columns, strict=True):
            if key != (tenant, ident):
                if key is not None:
                    rows.append((*key, last, encode(_state(ended, longest, pauses, after))))
                    if len(rows) >= 2000:
                        yield _batch(rows)
                        rows = []
                key, ended, longest, pauses, after = (tenant, ident), 0, 0, 0, ""
            data = decode(body)["data"]
            pause = data["start"] - ended if ended else 0
            if pause <= 0:
                ended = max(ended, data["end"])
            else:
                ended, pauses = data["end"], pauses + 1
                if pause > longest:
                    longest, after = pause, data["name"]
            last = version
    if key is not None:
        rows.append((*key, last, encode(_state(ended, longest, pauses, after))))
    if rows:
        yield _batch(rows)


def _state(ended: int, longest: int, pauses: int, after: str) -> dict[str, Any]:
    return {"ended": ended, "longest": longest, "pauses": pauses, "after": after}


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
