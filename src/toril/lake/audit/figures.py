"""Numbers for the report's plots."""

from __future__ import annotations

from contextlib import suppress

from pyspark.sql.functions import expr

from toril.errors import TorilError
from toril.lake.audit.found import Figures, Lag
from toril.lake.audit.looking import Looking
from toril.lake.problems import SPARKS
from toril.lake.source import Door
from toril.lake.summaries import TRACE_SUMMARIES
from toril.lake.tables import EVENTS, QUARANTINE, ROLLUPS, SPANS


def figures(work: Looking) -> Figures:
    """Of the log, the events and the rollups; empty are those of what cannot be read.

    It is the checks that say what cannot be read, and what they have found is not lost by a plot.
    """
    made = Figures()
    work.anew()
    for add in (_add_lag, _add_volume, _add_costs):
        with suppress(*SPARKS, TorilError):
            add(work, made)
    for name in (EVENTS.name, SPANS.name, QUARANTINE.name, TRACE_SUMMARIES.name, ROLLUPS.name):
        with suppress(*SPARKS, TorilError):
            if work.lake.exists(name):
                made.tables.append((name, work.read(name).count(), work.table(name).batch))
    return made


def _add_lag(work: Looking, made: Figures) -> None:
    if not work.tails and work.log is not None:
        with Door(work.url, work.log) as door:
            work.tails = door.tails()
    positions = work.record.positions
    made.lag = [Lag(name, positions.get(name, (0, ""))[0], tail) for name, (tail, _) in work.tails.items()]


def _add_volume(work: Looking, made: Figures) -> None:
    hours = work.read(EVENTS).groupBy(expr("recorded_at DIV 3600000000000 AS hour")).count()
    made.volume = sorted((row["hour"] * 3600, row["count"]) for row in hours.collect())


def _add_costs(work: Looking, made: Figures) -> None:
    if work.lake.exists(ROLLUPS):
        rows = work.read(ROLLUPS).where("grain = 'day' AND model <> ''").groupBy("model")
        costs = rows.agg(expr("sum(cost) AS cost"), expr("sum(spans) AS spans")).collect()
        made.costs = sorted(
            ((row["model"], int(row["cost"]), int(row["spans"])) for row in costs),
            key=lambda one: (-one[1], one[0]),
        )
