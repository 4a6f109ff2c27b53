"""Summaries and rollups: what their spans come to."""

from __future__ import annotations

from pyspark.sql.functions import expr

from toril.lake.audit.comparing import compare
from toril.lake.audit.found import Check
from toril.lake.audit.looking import Looking
from toril.lake.rollups import KEYS as ROLLUP_KEYS
from toril.lake.rollups import rollups_of
from toril.lake.summaries import TRACE_SUMMARIES, summaries_of
from toril.lake.tables import ROLLUPS, SPANS

SUMMARIES = TRACE_SUMMARIES.name

NO_SPANS = "it is there, and none of its spans is: spans were removed without it"
NO_SUMMARY = "spans are there, and no summary of them: the step that makes summaries has lost them"
NO_ROLLUP = "spans are there, and they were not counted"
SUMMARY_DIFFERS = (
    "made anew from all spans in one piece, the field has another value: a batch was merged twice or not at "
    "all, or other code made it"
)
ROLLUP_DIFFERS = "made anew from all spans in one piece, it is another number: a batch was added twice or not"
SUMS = "rollups and summaries are made of the same spans, so their sums must be the same"


def summaries(work: Looking, check: Check) -> None:
    """Every trace's summary is what its spans come to."""
    record = work.table(SUMMARIES)
    spans = work.of_traces(work.batches(SPANS, record.source))
    want = summaries_of(spans)
    have = work.of_traces(work.read(SUMMARIES))
    # `state` is what the next batch is merged with, and `day` where the row lies: neither is shown.
    names = [name for name in have.columns if name not in ("state", "day", "batch")]
    check.looked = compare(
        check,
        have.select(*names),
        want.select(*names),
        ("tenant", "trace_id"),
        ("summary without spans", NO_SPANS),
        ("trace without a summary", NO_SUMMARY),
        "{} is not what the spans say",
        SUMMARY_DIFFERS,
    )


def rollups(work: Looking, check: Check) -> None:
    """Every rollup is what its spans come to, and their sums are those of the summaries."""
    record = work.table(ROLLUPS.name)
    # Both before the spans, which are then at least as far.
    summed = work.table(SUMMARIES).source if work.lake.exists(SUMMARIES) else None
    want = rollups_of(work.batches(SPANS, record.source))
    have = work.read(ROLLUPS).select(*want.columns)
    check.looked = compare(
        check,
        have,
        want,
        ROLLUP_KEYS,
        ("rollup without spans", NO_SPANS),
        ("spans without a rollup", NO_ROLLUP),
        "{} is not what the spans come to",
        ROLLUP_DIFFERS,
    )
    if summed is None:
        check.notes.append("there are no summaries yet to compare sums with")
        return
    if summed != record.source:
        # One is ahead of the other: the sums are those of rollups as they were, or will be, with these spans.
        have = rollups_of(work.batches(SPANS, summed))
    sums = ("spans", "errors", "input_tokens", "output_tokens", "cost")
    added = [expr(f"CAST(coalesce(sum({name}), 0) AS DECIMAL(38,0)) AS {name}") for name in sums]
    compare(
        check,
        have.where("grain = 'day'").groupBy("tenant").agg(*added),
        work.read(SUMMARIES).groupBy("tenant").agg(*added),
        ("tenant",),
        ("tenant without summaries", SUMS),
        ("tenant without rollups", SUMS),
        "the sum of {} is not that of the summaries",
        SUMS,
    )
