"""Numbers for the report's plots."""

from __future__ import annotations

from contextlib import suppress

from pyspark.sql.functions import expr

from toril.errors import TorilError
from toril.lake.audit.found import Figures, Lag
from toril.lake.audit.looking import Looking
from toril.lake.source import Door
from toril.lake.summaries import TRACE_SUMMARIES
from toril.lake.tables import EVENTS, QUARANTINE, ROLLUPS, SPANS


def figures(work: Looking) -> Figures:
    """Of the log, the events and the rollups."""
    made = Figures()
    work.anew()
    if not work.tails and work.log is not None:
        with suppress(TorilError), Door(work.url, work.log) as door:
            work.tails = door.tails()
    for name, (tail, _) in work.tails.items():
        made.lag.append(Lag(name, work.record.positions.get(name, (0, ""))[0], tail))
    hours = work.read(EVENTS).groupBy(expr("recorded_at DIV 3600000000000 AS hour")).count()
    made.volume = sorted((row["hour"] * 3600, row["count"]) for row in hours.collect())
    if work.lake.exists(ROLLUPS):
        rows = work.read(ROLLUPS).where("grain = 'day' AND model <> ''").groupBy("model")
        costs = rows.agg(expr("sum(cost) AS cost"), expr("sum(spans) AS spans")).collect()
        made.costs = sorted(
            ((row["model"], int(row["cost"]), int(row["spans"])) for row in costs),
            key=lambda one: (-one[1], one[0]),
        )
    for name in (EVENTS.name, SPANS.name, QUARANTINE.name, TRACE_SUMMARIES.name, ROLLUPS.name):
        if work.lake.exists(name):
            made.tables.append((name, work.read(name).count(), work.table(name).batch))
    return made
