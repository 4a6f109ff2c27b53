"""The tables of a lake: their columns, what each is for, and what must be true of a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

FORM = 1
"""The form of tables that this Toril writes, and the last one it reads. It stands in each table."""

NAMES = ("events", "quarantine", "spans", "trace_summaries", "rollups", "erasures", "lost", "runs")
"""What has a place of its own in a lake, besides generations: nothing else may be there."""


class Column(NamedTuple):
    """One column, as Spark SQL names its type."""

    name: str
    type: str
    comment: str
    required: bool = False
    generated: str = ""
    """The expression that it is made by, where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a table of a lake is."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    partitioned_by: tuple[str, ...] = ()
    clustered_by: tuple[str, ...] = ()
    constraints: Mapping[str, str] = field(default_factory=dict)
    """By name, what must be true of each row."""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns, in order."""
        return tuple(column.name for column in self.columns)

    def schema(self) -> str:
        """Its columns as Spark reads a schema."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)


WHERE_IN_THE_LOG = (
    Column(
        "log_epoch", "int", "The epoch of the log: each change of the number of partitions begins one.", True
    ),
    Column("log_partition", "int", "The partition of the log.", True),
    Column("ordinal", "bigint", "Its place in the partition: 1, 2, 3 … without a gap.", True),
    Column("entry_id", "string", "Its id in the partition's Redis Stream.", True),
)

WHOSE = (
    Column("tenant", "string", "Whose it is.", True),
    Column("aggregate_type", "string", "The type of the aggregate.", True),
    Column("aggregate_id", "string", "The id of the aggregate.", True),
    Column(
        "version", "bigint", "Its place among the events of its aggregate: 1, 2, 3 … without a gap.", True
    ),
)

BATCH = Column("batch", "bigint", "The batch of this table that brought the row: 1, 2, 3 …", True)
"""Every table of data has it. The next one reads by it: a batch, once there, never changes."""

LOG_COLUMNS = (
    *WHERE_IN_THE_LOG,
    *WHOSE,
    Column(
        "recorded_at", "bigint", "When it was stored: nanoseconds since 1970, by the server's clock.", True
    ),
    Column("event_id", "string", "The event's id; null where the body cannot be read."),
    Column("event_type", "string", "The event's type; null where the body cannot be read."),
    Column("schema_version", "int", "The form of its data; null where the body cannot be read."),
    Column(
        "occurred_at", "bigint", "When it happened: nanoseconds since 1970; null where it cannot be read."
    ),
    Column("body", "binary", "The event as it was recorded: JSON, in UTF-8.", True),
)
"""What the source ``toril_log`` gives for each event."""

EVENTS = Table(
    name="events",
    comment="Every event of the log, once, as it was recorded.",
    columns=(
        *LOG_COLUMNS,
        BATCH,
        Column(
            "recorded_day",
            "date",
            "The day (UTC) of recorded_at.",
            True,
            "date_add(DATE'1970-01-01', CAST(recorded_at DIV 86400000000000 AS INT))",
        ),
    ),
    partitioned_by=("recorded_day", "log_partition"),
    constraints={"ordinal_from_1": "ordinal >= 1", "version_from_1": "version >= 1"},
    properties={"delta.appendOnly": "false"},
)

_JSON_MAP = "map<string,string>"

SPANS = Table(
    name="spans",
    comment="Every span that was recorded, once, in typed columns.",
    columns=(
        *WHERE_IN_THE_LOG,
        Column("tenant", "string", "Whose it is.", True),
        Column("trace_id", "string", "The trace: 32 hex digits.", True),
        Column("version", "bigint", "Its place among all events of its trace, spans or not: 1, 2, 3 …", True),
        Column("event_id", "string", "The id of the event that recorded it.", True),
        Column("recorded_at", "bigint", "When it was stored, by the server's clock: ns since 1970.", True),
        Column("occurred_at", "bigint", "When it happened, as the event says: ns since 1970.", True),
        Column("span_id", "string", "The span: 16 hex digits.", True),
        Column("parent_span_id", "string", "The span above it; null for a root."),
        Column("name", "string", "What the step is called.", True),
        Column("kind", "int", "0 to 5: unspecified, internal, server, client, producer, consumer.", True),
        Column("start", "bigint", "When it began: ns since 1970.", True),
        Column("end", "bigint", "When it ended: ns since 1970.", True),
        Column("duration", "bigint", "From start to end in ns; 0 where the end is before the start.", True),
        Column("status", "int", "0 to 2: unset, ok, error.", True),
        Column("status_message", "string", "What it says of its status; may be empty.", True),
        Column("attributes", _JSON_MAP, "Its attributes as they were sent, each value as JSON.", True),
        Column("resource", _JSON_MAP, "The attributes of its resource, each value as JSON.", True),
        Column("scope_name", "string", "The instrumentation that made it.", True),
        Column("scope_version", "string", "The version of that.", True),
        Column("events", "string", "What happened at moments of it: a JSON list.", True),
        Column("links", "string", "Other spans that it has to do with: a JSON list.", True),
        Column("ai_kind", "string", "What the step of an AI application does: llm, agent, tool …"),
        Column("operation", "string", "The operation, as GenAI conventions name it."),
        Column("provider", "string", "Who was asked."),
        Column("request_model", "string", "The model that was asked for."),
        Column("response_model", "string", "The model that answered."),
        Column("input_tokens", "bigint", "Tokens in."),
        Column("output_tokens", "bigint", "Tokens out."),
        Column("cache_read_tokens", "bigint", "Of the tokens in, those read from a cache."),
        Column("cache_write_tokens", "bigint", "Tokens written to a cache."),
        Column("reasoning_tokens", "bigint", "Of the tokens out, those that were not shown."),
        Column("tokens_estimated", "boolean", "Whether tokens were estimated."),
        Column("first_token", "bigint", "From the start to the first token: ns."),
        Column("last_token", "bigint", "From the start to the last token: ns."),
        Column("input", "string", "What went in, as JSON."),
        Column("output", "string", "What came out, as JSON."),
        Column("tool", "string", "The tool that was called."),
        Column("agent", "string", "The agent that acted."),
        Column("conversation", "string", "The thread or session that it belongs to."),
        Column("user", "string", "The user it was done for."),
        Column("customer", "string", "The customer it was done for."),
        Column("labels", "array<string>", "Labels.", True),
        Column("cost", "bigint", "Nano-USD."),
        Column("cost_from", "string", "Where the cost is from: the span, or the version of a price table."),
        Column("rules", "array<string>", "The rules by which the AI columns were made.", True),
        Column("said_empty", "array<string>", "What the event says though it is empty; null: nothing."),
        BATCH,
        Column("start_time", "timestamp", "The start as a timestamp, which has microseconds.", True),
        Column(
            "recorded_day",
            "date",
            "The day (UTC) of recorded_at.",
            True,
            "date_add(DATE'1970-01-01', CAST(recorded_at DIV 86400000000000 AS INT))",
        ),
    ),
    partitioned_by=("recorded_day",),
    constraints={
        "ordinal_from_1": "ordinal >= 1",
        "version_from_1": "version >= 1",
        "a_status": "status BETWEEN 0 AND 2",
        "a_kind": "kind BETWEEN 0 AND 5",
    },
    # Delta would keep statistics of the first 32 columns, and the next tables read by the batch.
    properties={
        "delta.dataSkippingStatsColumns": "batch,ordinal,tenant,trace_id,recorded_at,start,start_time"
    },
)

QUARANTINE = Table(
    name="quarantine",
    comment="Every event that should be a span and cannot be read as one, once, with the reason.",
    columns=(
        *LOG_COLUMNS,
        Column("reason", "string", "What it was last refused for: the field, and the rule it breaks.", True),
        Column("attempts", "int", "How often it was tried to read it: 1, 2, 3 …", True),
        Column("tried_at", "timestamp", "When that was tried last.", True),
        Column("requeued_at", "timestamp", "When it became a span after all; null while it waits."),
        BATCH,
        Column(
            "recorded_day",
            "date",
            "The day (UTC) of recorded_at.",
            True,
            "date_add(DATE'1970-01-01', CAST(recorded_at DIV 86400000000000 AS INT))",
        ),
    ),
    partitioned_by=("recorded_day",),
    constraints={"attempts_from_1": "attempts >= 1"},
)

_SUM = "decimal(38,0)"
"""What sums of bigints are kept in: no number of spans that there could be goes beyond it."""

_BUCKETS = "map<int,bigint>"

ROLLUPS = Table(
    name="rollups",
    comment="What the spans of a tenant and model come to by minute, hour and day. Rows merge exactly.",
    columns=(
        Column("tenant", "string", "Whose spans they are.", True),
        Column("model", "string", "The model that answered, else that was asked; may be empty.", True),
        Column("grain", "string", "How long it is: minute, hour or day.", True),
        Column(
            "period", "string", "What is written together: the hour of a minute, the day, the month.", True
        ),
        Column("start", "timestamp", "When the minute, hour or day (UTC) begins.", True),
        Column("spans", "bigint", "Spans that began in it.", True),
        Column("traces", "bigint", "Of these, those without a parent: the roots of traces.", True),
        Column("errors", "bigint", "Of these, those with the status error.", True),
        Column("input_tokens", _SUM, "Tokens in.", True),
        Column("output_tokens", _SUM, "Tokens out.", True),
        Column("cache_read_tokens", _SUM, "Of the tokens in, those read from a cache.", True),
        Column("cache_write_tokens", _SUM, "Tokens written to a cache.", True),
        Column("reasoning_tokens", _SUM, "Of the tokens out, those that were not shown.", True),
        Column("cost", _SUM, "Nano-USD.", True),
        Column("duration_sum", _SUM, "The sum of the spans' durations: ns.", True),
        Column("duration_min", "bigint", "The shortest duration: ns.", True),
        Column("duration_max", "bigint", "The longest duration: ns.", True),
        Column("duration_buckets", _BUCKETS, "How many durations are in which bucket.", True),
        Column("first_token_count", "bigint", "Spans that say when the first token came.", True),
        Column("first_token_sum", _SUM, "The sum of their times to the first token: ns.", True),
        Column("first_token_min", "bigint", "The shortest time to the first token: ns; null without any."),
        Column("first_token_max", "bigint", "The longest time to the first token: ns; null without any."),
        Column("first_token_buckets", _BUCKETS, "How many of these times are in which bucket.", True),
        Column("batch", "bigint", "The last batch of this table that changed the row: 1, 2, 3 …", True),
    ),
    partitioned_by=("grain", "period"),
    constraints={"a_grain": "grain IN ('minute', 'hour', 'day')", "spans_from_1": "spans >= 1"},
    properties={"delta.dataSkippingStatsColumns": "tenant,model,start,batch"},
)
