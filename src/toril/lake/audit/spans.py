"""The spans of a lake: each event that recorded one is there once, or in quarantine."""

from __future__ import annotations

from pyspark.sql.functions import expr

from toril.lake.audit.comparing import compare, note_kinds
from toril.lake.audit.found import Check
from toril.lake.audit.looking import PLACE, Looking
from toril.lake.lake import Record
from toril.lake.spans import spans_of
from toril.lake.tables import EVENTS, QUARANTINE, SPANS
from toril.pipelines.spans.recording import SPAN_RECORDED

_SIDES = ("event", "due", "span", "refused")
"""What a place has: an event, one that the table says it has read, a span, an event in quarantine."""

_SPAN_KINDS = (
    (
        "event in neither",
        "due > 0 AND span = 0 AND refused = 0",
        "an event that recorded a span is in neither table: the step that makes spans has lost it",
    ),
    (
        "event in both",
        "span > 0 AND refused > 0",
        "an event is a span, and in quarantine as well: a requeue is at work, or was cut off: run it again",
    ),
    ("span twice", "span > 1", "a span is there more than once: a batch was written twice"),
    ("refused twice", "refused > 1", "an event is in quarantine more than once: a batch was written twice"),
    (
        "span without an event",
        # What is refused comes into quarantine first: a batch may be there, and its spans not yet.
        "event = 0 OR span > 0 AND due = 0",
        "a row has no event: it was made up, or the event was removed from the lake without it",
    ),
)

SPAN_DIFFERS = "read again from its event, the column has another value: another version of the code made it"


def spans(work: Looking, check: Check) -> None:
    """Every event that recorded a span is in spans or in quarantine, once, as it was recorded."""
    record = _both(work)
    recorded = work.chosen(work.read(EVENTS)).where(f"event_type IS NULL OR event_type = '{SPAN_RECORDED}'")
    is_due = f"batch <= {record.source}"
    events = recorded.where(is_due)
    kept = work.of_traces(work.read(SPANS))
    refused = work.chosen(work.read(QUARANTINE))
    waits = refused.where("requeued_at IS NULL")
    parts = [
        rows.selectExpr(*PLACE, *(f"int({has.get(name, False)}) AS {name}" for name in _SIDES))
        for rows, has in (
            (recorded, {"event": True, "due": is_due}),
            (kept, {"span": True}),
            (waits, {"refused": True}),
        )
    ]
    counted = (
        parts[0]
        .unionByName(parts[1])
        .unionByName(parts[2])
        .groupBy(*PLACE)
        .agg(*(expr(f"sum({name}) AS {name}") for name in _SIDES))
        .cache()
    )
    try:
        (check.looked,) = note_kinds(check, counted, _SPAN_KINDS, "due > 0", shown=counted.columns)
    finally:
        counted.unpersist()
    again = refused.where("requeued_at IS NOT NULL").select(*PLACE)
    names = [column.name for column in SPANS.columns if not column.generated and column.name != "batch"]
    asked = kept.join(again, list(PLACE), "left_anti")
    made = spans_of(events.join(again, list(PLACE), "left_anti"), work.upcasters)
    compare(
        check,
        asked.select(*names).dropDuplicates(list(PLACE)),
        made.dropDuplicates(list(PLACE)),
        PLACE,
        None,
        None,
        "a span's {} is not its event's",
        SPAN_DIFFERS,
    )


def _both(work: Looking) -> Record:
    """Look at spans and quarantine in one moment: a requeue takes events from the one to the other."""
    while True:
        work.anew()
        work.table(QUARANTINE.name)
        record = work.table(SPANS.name)
        if not work.moved(QUARANTINE.name):
            return record
