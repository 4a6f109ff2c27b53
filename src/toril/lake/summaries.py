"""Trace summaries: the live projection :class:`TraceSummary`, kept up with as spans come, late ones included.

Of each batch of spans the part that it adds to each trace is accumulated, and merged into the row of the
trace. So that this costs the same however many traces there are, a batch looks only where its traces can
be. A row stays in the partition of the day on which its first span came; so:

- a trace is on the days since the oldest span of the batch, if all of its spans up to its last one are in
  the batch: whatever else it has was recorded later;
- any other trace of which spans came before is mostly there too; those that are not are looked for among
  the keys of the days before, and only their days are looked at besides.
"""

from __future__ import annotations

from datetime import date, timedelta
from functools import cache

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, lit

from toril.lake.engine import SPANS_TYPED, Native, compiled
from toril.lake.lake import Lake, Record
from toril.lake.steps import Step
from toril.lake.tables import BATCH, SPANS, Column, Table
from toril.pipelines.spans.summary import TraceSummary

KEYS = ("tenant", "trace_id")

MARGIN = timedelta(days=1)
"""Clocks of servers differ: a span that was recorded later may say that it was earlier, by less than this."""

COMMENTS = {
    "spans": "How many spans.",
    "has_root": "Whether there is a span without a parent.",
    "root_span_id": "The root; of several the earliest, then the smallest id.",
    "trace_name": "The name of the root; without one, that of the earliest span.",
    "service": "service.name of the resource, root first.",
    "started_at": "The first start: ns since 1970.",
    "ended_at": "The last start or end: ns since 1970.",
    "first_token": "The smallest time to a first token: ns.",
    "last_token": "The largest time to a last token: ns.",
    "input_tokens": "Tokens in.",
    "output_tokens": "Tokens out.",
    "cache_read_tokens": "Of the tokens in, those read from a cache.",
    "cache_write_tokens": "Tokens written to a cache.",
    "reasoning_tokens": "Of the tokens out, those that were not shown.",
    "tokens_estimated": "Whether some of them are estimated.",
    "models": "Models of responses and requests; the 64 smallest.",
    "cost": "Nano-USD.",
    "failed": "Whether a span has the status error.",
    "ok": "Whether a span has the status ok.",
    "errors": "How many spans have the status error.",
    "error_message": "Of the root if it says one, else of the failed span that ended first; 1 KiB.",
    "input": "What went in: the first 4 KiB.",
    "input_bytes": "How many bytes that has, uncut.",
    "output": "What came out: the first 4 KiB.",
    "output_bytes": "How many bytes that has, uncut.",
    "conversation": "The thread or session, root first.",
    "user": "The user it was done for, root first.",
    "customer": "The customer it was done for, root first.",
    "labels": "Labels; the 64 smallest.",
    "topic": "The topic, root first.",
    "subtopic": "The topic within that, root first.",
    "annotated": "Whether a span has been annotated.",
    "attributes": "Names and texts, each the first that its name had, root first; 64 names.",
    "created_at": "When its first span was recorded: ns since 1970.",
    "updated_at": "When its last span was recorded: ns since 1970.",
    "duration": "From started_at to ended_at: ns.",
    "tokens_per_second": "Tokens out by the duration, to the nearest.",
}

_DAY_OF = "date_add(DATE'1970-01-01', CAST({} DIV 86400000000000 AS INT))"


@cache
def native_summary() -> Native:
    """The live projection, for the rows of ``spans``."""
    return compiled(TraceSummary, SPANS_TYPED)


def _table() -> Table:
    native = native_summary()
    shown = (
        Column(name, kind, COMMENTS[name], kind.startswith(("ARRAY", "MAP", "BOOLEAN")) or name == "spans")
        for name, kind in native.shown_types().items()
    )
    return Table(
        name="trace_summaries",
        comment="What the spans of each trace come to, as the live projection says; one row for each trace.",
        columns=(
            Column("tenant", "string", "Whose it is.", True),
            Column("trace_id", "string", "The trace: 32 hex digits.", True),
            Column("version", "bigint", "How many span events are in it.", True),
            *shown,
            Column(
                "state",
                native.rest_type(),
                "Which span said what is shown, and its place in the order: what the next is compared to.",
                True,
            ),
            BATCH,
            Column("day", "date", "The day (UTC) on which its first span came here. It never changes.", True),
        ),
        partitioned_by=("day",),
        constraints={"version_from_1": "version >= 1", "as_many_as_spans": "spans = version"},
        properties={"delta.enableChangeDataFeed": "true", "delta.dataSkippingStatsColumns": "trace_id,batch"},
    )


TRACE_SUMMARIES = _table()


class SummariesStep(Step):
    """Feeds ``trace_summaries`` from ``spans``."""

    table = TRACE_SUMMARIES
    source = SPANS

    def write(self, lake: Lake, rows: DataFrame, record: Record) -> None:
        parts = parts_of(rows).persist()
        try:
            places = _places(lake, parts)
            if places is None:
                lake.append_nothing(TRACE_SUMMARIES, record)
                return
            # As a column of what is kept, the number is no part of the code that Spark makes for the
            # statement: it is made once for all batches.
            parts.withColumn("batch", lit(record.batch).cast("bigint")).createOrReplaceTempView(_VIEW)
            with lake.recording(TRACE_SUMMARIES, record):
                lake.spark.sql(merge_into(lake.sql_name(TRACE_SUMMARIES), places))
        finally:
            lake.spark.catalog.dropTempView(_VIEW)
            parts.unpersist()


_VIEW = "toril_summaries_of_batch"


def parts_of(spans: DataFrame) -> DataFrame:
    """What spans add to each of their traces: a column for each field, accumulated; ``day``; and how many."""
    native = native_summary()
    return native.gather(spans).selectExpr("*", f"{_DAY_OF.format(native.columns['created_at'])} AS day")


def summaries_of(spans: DataFrame) -> DataFrame:
    """The summaries of all traces that have one of these spans, in one piece: the table without ``batch``."""
    shown = (f"{made} AS `{name}`" for name, made in native_summary().show().items())
    state = native_summary().rest()
    parts = parts_of(spans)
    return parts.selectExpr(*KEYS, "events AS version", *shown, f"{state} AS state", "day")


_IS_PART = "first_version > 1 OR events <> version"
"""What is true of a trace of which the batch lacks a version before its last one: other spans came before."""


def _places(lake: Lake, parts: DataFrame) -> str | None:
    """Where the traces of a batch can be: a condition on ``t.day``; None where there are no traces.

    See the module's text.
    """
    oldest, in_part = parts.selectExpr("min(day)", f"count_if({_IS_PART})").collect()[0]
    if oldest is None:
        return None
    first = oldest - MARGIN
    since = f"t.day >= DATE'{first}'"
    if not in_part:
        return since
    there = lake.read(TRACE_SUMMARIES).select(*KEYS, "day").alias("t")
    lost = parts.where(_IS_PART).select(*KEYS).join(there.where(since), list(KEYS), "left_anti").persist()
    try:
        if lost.isEmpty():
            return since
        before = there.where(f"t.day < DATE'{first}'").join(broadcast(lost), list(KEYS), "left_semi")
        days: list[date] = [row["day"] for row in before.select("day").distinct().collect()]
    finally:
        lost.unpersist()
    if not days:
        return since
    listed = ", ".join(f"DATE'{day}'" for day in sorted(days))
    return f"({since} OR t.day IN ({listed}))"


def merge_into(table: str, places: str) -> str:
    """The statement that merges the parts of a batch into the table."""
    native = native_summary()
    accumulated = native.restored("t.", "t.state")
    both = {
        field.name: field.join.format(accumulated[field.name], f"s.{native.columns[field.name]}")
        for field in native.fields
    }
    merged = native.show_of(both) | {
        "version": "t.version + s.events",
        "state": native.rest_of(both),
        "batch": "s.batch",
    }
    new = native.show("s.") | {
        "tenant": "s.tenant",
        "trace_id": "s.trace_id",
        "version": "s.events",
        "state": native.rest("s."),
        "batch": "s.batch",
        "day": "s.day",
    }
    same = " AND ".join(f"t.{key} = s.{key}" for key in KEYS)
    return (
        f"MERGE INTO {table} t USING {_VIEW} s ON {places} AND {same} "  # noqa: S608 - all of it is ours
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.`{name}` = {made}' for name, made in merged.items())} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(f'`{name}`' for name in new)}) "
        f"VALUES ({', '.join(new.values())})"
    )
