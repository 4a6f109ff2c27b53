"""Quarantine: what could not be read as a span, tried once more after a fix.

What can be read now becomes one more batch of ``spans``, where the tables after it find it, and is then
marked in ``quarantine``. An event has one place in the log, and a span that is in the table with that place
is not added again: so it does not matter where a process was killed, or how many try it at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from toril.aggregate import check_tenant
from toril.errors import InvalidValue
from toril.events import Upcasters
from toril.events.event import check_event_type
from toril.lake.errors import OtherWriter
from toril.lake.lake import Lake, Record
from toril.lake.problems import SPARKS, passing
from toril.lake.spans import PLACE, read_spans, spans_in
from toril.lake.tables import LOG_COLUMNS, QUARANTINE, SPANS, Table

TRIES = 10
"""How often a batch is tried that other writers of the table were first with."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """What became of the events that were tried again."""

    tried: int
    read: int
    """Those that are spans now."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Of the others: why not, and how many."""

    @property
    def refused(self) -> int:
        """Those that stay in quarantine."""
        return self.tried - self.read


def waiting(
    lake: Lake, *, reason: str | None = None, event_type: str | None = None, tenant: str | None = None
) -> DataFrame:
    """The rows that are in quarantine, all or some.

    ``reason``: how theirs begins, such as ``data.ai.cost``. ``event_type``: empty for those without.
    """
    lake.check(QUARANTINE)
    rows = lake.read(QUARANTINE).where("requeued_at IS NULL")
    if reason is not None:
        if not reason.strip():
            raise InvalidValue("reason", reason, "how a reason begins, like 'data.ai.cost'")
        rows = rows.where(col("reason").startswith(reason))
    if event_type is not None:
        known = event_type and check_event_type(event_type)
        rows = rows.where(col("event_type") == known if known else col("event_type").isNull())
    if tenant is not None:
        rows = rows.where(col("tenant") == check_tenant(tenant))
    return rows


def requeue(
    lake: Lake,
    *,
    reason: str | None = None,
    event_type: str | None = None,
    tenant: str | None = None,
    upcasters: Upcasters | None = None,
    dry_run: bool = False,
    run: str = "",
) -> Requeued:
    """Try what is in quarantine again, all or some: see :func:`waiting`. Say what became of it."""
    lake.check(SPANS)
    chosen = waiting(lake, reason=reason, event_type=event_type, tenant=tenant)
    events = chosen.select(*(column.name for column in LOG_COLUMNS))
    read = read_spans(events, upcasters).persist()
    try:
        made = _counted(read)
        if made.tried and not dry_run:
            days = _days(read)
            name = f"{run or 'requeue'} {uuid.uuid4().hex}"
            if made.read:
                _add(lake, spans_in(read), days, name)
            _mark(lake, read, days, name)
        return made
    finally:
        read.unpersist()


def _counted(read: DataFrame) -> Requeued:
    counts = read.groupBy("reason").count().orderBy(col("count").desc(), "reason").collect()
    told: dict[str | None, int] = {row["reason"]: row["count"] for row in counts}
    refused = {reason: count for reason, count in told.items() if reason is not None}
    return Requeued(tried=sum(told.values()), read=told.get(None, 0), reasons=refused)


def _add(lake: Lake, spans: DataFrame, days: str, run: str) -> None:
    """Add those that are not there: as a batch that says that no more of ``events`` is in the table."""

    def write(record: Record) -> bool:
        # What was read may be of a tenant that was erased since: it is in quarantine no more.
        still = lake.read(QUARANTINE).where(f"recorded_day IN ({days})").select(*PLACE)
        there = lake.read(SPANS).where(f"recorded_day IN ({days})").select(*PLACE)
        there = there.join(spans.select(*PLACE), list(PLACE), "left_semi")
        new = spans.join(still, list(PLACE), "left_semi").join(there, list(PLACE), "left_anti")
        if new.isEmpty():
            return False
        lake.append(new, SPANS, record)
        return True

    _one_more_batch(lake, SPANS, run, write)


def _mark(lake: Lake, read: DataFrame, days: str, run: str) -> None:
    """Say in quarantine what became of them."""
    view = f"toril_requeued_{uuid.uuid4().hex}"
    read.select(*PLACE, "reason").createOrReplaceTempView(view)
    same = " AND ".join(f"old.{name} = new.{name}" for name in PLACE)

    def write(record: Record) -> bool:
        old = lake.read(QUARANTINE).where(f"requeued_at IS NULL AND recorded_day IN ({days})")
        if old.join(read.select(*PLACE), list(PLACE), "left_semi").isEmpty():
            return False
        with lake.recording(QUARANTINE, record):
            lake.spark.sql(
                f"MERGE INTO {lake.sql_name(QUARANTINE)} AS old USING {view} AS new "
                f"ON old.recorded_day IN ({days}) AND {same} "
                "WHEN MATCHED AND old.requeued_at IS NULL THEN UPDATE SET "
                "reason = coalesce(new.reason, old.reason), attempts = old.attempts + 1, "
                "tried_at = current_timestamp(), "
                "requeued_at = CASE WHEN new.reason IS NULL THEN current_timestamp() END"
            )
        return True

    try:
        _one_more_batch(lake, QUARANTINE, run, write)
    finally:
        lake.spark.catalog.dropTempView(view)


def _one_more_batch(lake: Lake, table: Table, run: str, write: Callable[[Record], bool]) -> None:
    """Write to a table that others write to as well, until it is we who wrote the batch, or need not."""
    for _ in range(TRIES):
        # The number comes before any look at the table: what others add after it has this number, too.
        last = lake.last(table)
        # What was in quarantine is known from there: nobody takes its rows for what was recorded.
        record = Record(
            batch=last.batch + 1, source=last.source, positions=last.positions, upcast=last.upcast, run=run
        )
        try:
            if not write(record):
                return
        except (*SPARKS, OtherWriter) as problem:
            if not passing(problem):
                raise
            continue
        if lake.last(table, record.batch).run == run:
            return
    raise OtherWriter(f"{TRIES} times another process was first to write to {table.name}; try it again")


def _days(read: DataFrame) -> str:
    """The days they were recorded on, as SQL: other days' files are not looked at."""
    day = "date_add(DATE'1970-01-01', CAST(recorded_at DIV 86400000000000 AS INT))"
    found = read.selectExpr(f"CAST({day} AS STRING) AS day").distinct().collect()
    return ", ".join(f"DATE'{row['day']}'" for row in sorted(found))
