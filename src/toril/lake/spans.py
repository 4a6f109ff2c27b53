"""Spans: every event that has recorded one, in typed columns; and what cannot be read, in quarantine.

Two tables from one source. ``quarantine`` is written first, and says which batches of ``events`` it is made
of; ``spans`` is then made of exactly these. So where a process was killed between the two, the next one sees
that quarantine is ahead, and finishes that batch before it begins another.

Several processes may be at it, whose programs can read different events. What one of them has refused must be
in quarantine before its spans are written, and what another has refused must not be among them. So:

- the batch of quarantine is a claim, which bears a name of its own: whoever does not find its own name there
  has lost, writes no spans, and looks again;
- whoever finishes what another has begun first takes the number of the batch of spans that the other would
  write, with an empty one. Then it claims as well, also where it has nothing to add, and only then it writes;
- each looks at quarantine first, then at spans. A claim that comes after ours was then made by one who saw
  ours, and has taken our number of spans, or has found it written.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]
from msgspec.structs import replace
from pyspark.sql import DataFrame
from pyspark.sql.functions import current_timestamp, expr, lit

from toril.events import Upcasters
from toril.lake.errors import LakeError, OtherWriter
from toril.lake.lake import Lake, Record
from toril.lake.reading import NAMES, read_batches
from toril.lake.steps import Step
from toril.lake.tables import EVENTS, LOG_COLUMNS, QUARANTINE, SPANS, Table
from toril.pipelines.spans.recording import SPAN_RECORDED

PLACE = ("log_epoch", "log_partition", "ordinal")
"""What names an event of the log."""


class SpansStep(Step):
    """Feeds ``spans`` and ``quarantine`` from ``events``."""

    table = SPANS
    source = EVENTS

    def __init__(self, upcasters: Upcasters | None = None) -> None:
        self.upcasters = upcasters

    @property
    def writes(self) -> tuple[Table, ...]:
        return (QUARANTINE, SPANS)

    def once(self, lake: Lake, run: str = "") -> Record | None:
        refused = lake.last(QUARANTINE)
        have = lake.last(SPANS)
        # Another process may have written to both between the two looks; not so before a third one.
        if refused.source < have.source and lake.last(QUARANTINE).source < have.source:
            raise LakeError(
                f"{SPANS.name} has read {EVENTS.name} up to batch {have.source}, and {QUARANTINE.name} up to "
                f"{refused.source}: it was made anew meanwhile. {self._remove(lake)}"
            )
        ahead = refused.source > have.source
        record = self.following(lake, have, run, refused.source if ahead else 0)
        if record is None:
            return None
        if ahead:
            return self._finish(lake, have, refused, replace(record, upcast=self._upcast(have)))
        read = self.read(lake, have.source, record.source).persist()
        try:
            _claim(lake, QUARANTINE, _refused(read), replace(record, batch=refused.batch + 1))
            record = replace(record, upcast=self._upcast(have))
            self.write(lake, read, record)
        finally:
            read.unpersist()
        return record

    def _finish(self, lake: Lake, have: Record, refused: Record, record: Record) -> Record:
        """The spans of a batch whose other half is in quarantine already: all that is not there.

        What can be read may have changed meanwhile, with the program. What is in quarantine stays there until
        it is requeued, and what cannot be read any more comes to it. Where ``spans`` was removed, and is made
        anew, quarantine is ahead by many batches, and what was requeued is not in ``spans`` any more.
        """
        nothing = replace(record, source=have.source, positions=have.positions)
        _claim(lake, SPANS, lake.read(SPANS).limit(0), nothing)
        record = replace(record, batch=record.batch + 1)
        place = list(PLACE)
        there = lake.read(QUARANTINE).select(*PLACE, "requeued_at")
        # In this order: what was requeued was in spans before it was marked so.
        requeued = there.where("requeued_at IS NOT NULL").join(lake.read(SPANS), place, "left_semi")
        known = there.where("requeued_at IS NULL").union(requeued)
        left = self.read(lake, have.source, record.source).join(known, place, "left_anti").persist()
        try:
            upto, positions = refused.source, refused.positions
            claim = Record(batch=refused.batch + 1, source=upto, positions=positions, run=record.run)
            _claim(lake, QUARANTINE, _refused(left), claim)
            self.write(lake, left, record)
        finally:
            left.unpersist()
        return record

    def _upcast(self, have: Record) -> bool | None:
        """See :attr:`Record.upcast`, of the batch after one."""
        steps = () if self.upcasters is None else self.upcasters.steps()
        if any(event_type == SPAN_RECORDED for event_type, *_ in steps):
            return True
        return have.upcast if have.batch else False

    def read(self, lake: Lake, after: int, upto: int) -> DataFrame:
        """Batches of events, read: see :func:`read_spans`."""
        return read_spans(lake.batches(EVENTS, after, upto), self.upcasters)

    def write(self, lake: Lake, rows: DataFrame, record: Record) -> None:
        lake.append(spans_in(rows), SPANS, record)


def _claim(lake: Lake, table: Table, rows: DataFrame, record: Record) -> None:
    """Write a batch, and make sure that it is ours: another one's may have the number, a requeue's too."""
    name = f"{record.run or 'spans'} {uuid.uuid4().hex}"
    lake.append(rows, table, replace(record, run=name))
    if lake.last(table, record.batch).run != name:
        raise OtherWriter(f"another process writes to {table.name} of this lake as well")


def read_spans(events: DataFrame, upcasters: Upcasters | None = None) -> DataFrame:
    """Events that recorded a span, or whose type cannot be read: as columns of spans, or with a ``reason``.

    Events of other types are left out. Each event that is not gives one row; it is looked at once.
    """
    wanted = events.where(f"event_type IS NULL OR event_type = '{SPAN_RECORDED}'")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return read_batches(batches, upcasters)

    chosen = wanted.select(*(column.name for column in LOG_COLUMNS))
    return chosen.mapInArrow(work, _SCHEMA)


def spans_in(read: DataFrame) -> DataFrame:
    """Of what was read, the spans."""
    spans = read.where("reason IS NULL").withColumnRenamed("aggregate_id", "trace_id")
    return spans.withColumn("start_time", expr("timestamp_micros(start DIV 1000)"))


def spans_of(events: DataFrame, upcasters: Upcasters | None = None) -> DataFrame:
    """All spans of events, in one piece: the columns of ``spans`` without ``batch``."""
    names = [column.name for column in SPANS.columns if not column.generated and column.name != "batch"]
    return spans_in(read_spans(events, upcasters)).select(*names)


def _refused(read: DataFrame) -> DataFrame:
    rows = read.where("reason IS NOT NULL")
    rows = rows.withColumn("attempts", lit(1)).withColumn("tried_at", current_timestamp())
    return rows.withColumn("requeued_at", lit(None).cast("timestamp"))


_TYPES = {column.name: column.type for column in (*SPANS.columns, *QUARANTINE.columns)}
_SCHEMA = ", ".join(f"`{name}` {_TYPES[name]}" for name in NAMES)
"""What :func:`toril.lake.reading.read_batches` makes."""
