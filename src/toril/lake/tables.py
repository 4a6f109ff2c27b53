"""The tables of a lake: their columns, what each is for, and what must be true of a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

FORM = 1
"""The form of tables that this Toril writes, and the last one it reads. It stands in each table."""


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
"""Every table has it. The next table reads by it: a batch, once there, never changes."""

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
