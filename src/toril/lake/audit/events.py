"""The events of a lake: each once, none missing, and as the log has them."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from toril.lake.audit.comparing import compare, note_kinds, some
from toril.lake.audit.found import Check
from toril.lake.audit.holes import find_holes
from toril.lake.audit.looking import AGGREGATE, PLACE, Looking, Skip
from toril.lake.source import Door, Marks, read_log
from toril.lake.tables import EVENTS, LOG_COLUMNS
from toril.log.entry import Partition
from toril.log.errors import GapFound

TRIES = 5
"""How often the log is asked where it begins, should it be trimmed before it is read."""

TWICE_VERSION = (
    "two events of an aggregate have one version: a batch was archived twice, or the tenant was erased from "
    "the log, not from the lake, and came again"
)
MISSING_VERSION = "a version before the last one is not there: it was lost"
OLDER_VERSIONS = "{:,} aggregates are older than the archive: the log had been trimmed when it began"
TWICE_PLACE = "a place in the log is in the lake twice: a batch was archived twice"
OLDER_PLACES = "{:,} places are from before the archive: the log had been trimmed when it began"
PAST = "the table has events past where its last commit says it is: something else has written to it"
DIVERGED = "the lake has more than the log: a failover has lost the end of it (`toril lake rewind`)"
ONLY_LAKE = (
    "the log has this place, and no event in it: its tenant was erased from the log, and not from the lake "
    "(`toril lake erase`)"
)
ONLY_LOG = (
    "the archive has passed this event, and does not have it: it was lost, or erased from the lake only"
)
CHANGED = "what the lake has is not what was recorded: a file was changed"


def versions(work: Looking, check: Check) -> None:
    """Every aggregate has versions 1, 2, 3 … once each."""
    rows = work.chosen(work.read(EVENTS))
    seen = (
        rows.groupBy(*AGGREGATE)
        .agg(
            expr("count(1) AS events"),
            expr("count(DISTINCT version) AS versions"),
            expr("min(version) AS first"),
            expr("max(version) AS last"),
            expr("min_by(struct(log_epoch, log_partition), version) AS place"),
        )
        .cache()
    )
    older = f"first > 1 AND versions = last - first + 1 AND {_is_late(work)}"
    kinds = (
        ("version twice", "events > versions", TWICE_VERSION),
        ("version missing", f"versions < last AND NOT ({older})", MISSING_VERSION),
    )
    try:
        check.looked, late = note_kinds(
            check, seen, kinds, "true", older, shown=[name for name in seen.columns if name != "place"]
        )
        if late:
            check.notes.append(OLDER_VERSIONS.format(late))
    finally:
        seen.unpersist()


def ordinals(work: Looking, check: Check) -> None:
    """Every partition has ordinals 1, 2, 3 … once each, up to where the table says it is."""
    rows = work.read(EVENTS).select(*PLACE)
    groups = rows.groupBy(*PLACE).count()
    said = ("max(ordinal) AS last", "count(1) AS events", "count_if(count > 1) AS twice")
    ends = groups.groupBy(*PLACE[:2]).agg(*map(expr, said)).collect()
    if twice := sum(row["twice"] for row in ends):
        check.add("place twice", twice, TWICE_PLACE, some(groups.where("count > 1")))
    last = {Partition(row["log_epoch"], row["log_partition"]): row["last"] for row in ends}
    positions = {Partition.parse(name): place[0] for name, place in work.record.positions.items()}
    check.looked = sum(row["events"] for row in ends)
    past = [
        {"partition": str(one), "last": last[one], "record": positions.get(one, 0)}
        for one in sorted(last)
        if last[one] > positions.get(one, 0)
    ]
    check.add("past the record", len(past), PAST, past)
    if work.began:
        check.notes.append(OLDER_PLACES.format(sum(work.began.values())))
    upto = {one: max(last.get(one, 0), positions.get(one, 0)) for one in {*last, *positions}}
    if upto:
        find_holes(work, check, rows, upto)


def _is_late(work: Looking) -> str:
    """Whether the archive began after the first events of a partition, or of what was before its epoch."""
    first = min((Partition.parse(name).epoch for name in work.record.positions), default=1)
    if first > 1:
        return "true"
    if not work.began:
        return "false"
    places = [
        f"(place.log_epoch = {one.epoch} AND place.log_partition = {one.number})"
        for one in sorted(work.began)
    ]
    return f"({' OR '.join(places)} OR place.log_epoch > {min(work.began).epoch})"


def log(work: Looking, check: Check) -> None:
    """Every event that is still in the log is in the lake, byte by byte."""
    if work.log is None:
        raise Skip("the log was not to be asked")
    after, upto, behind, rows = _still_there(work, work.log)
    check.add("log is behind", len(behind), DIVERGED, ({"partition": name} for name in behind))
    if rows is None:
        check.notes.append("the log has nothing that is archived: all of it was trimmed")
        return
    hot = work.chosen(rows)
    names = [column.name for column in LOG_COLUMNS]
    bounds = " OR ".join(
        f"(log_epoch = {one.epoch} AND log_partition = {one.number} AND ordinal > {after[str(one)][0]}"
        f" AND ordinal <= {upto[str(one)][0]})"
        for one in map(Partition.parse, upto)
    )
    cold = work.chosen(work.read(EVENTS).where(bounds))
    check.looked = compare(
        check,
        cold.select(*names),
        hot.select(*names),
        PLACE,
        ("in the lake and not in the log", ONLY_LAKE),
        ("in the log and not in the lake", ONLY_LOG),
        "differs from the log: {}",
        CHANGED,
    )


class _Still(NamedTuple):
    """What is archived, and still in the log."""

    after: Marks
    upto: Marks
    behind: list[str]
    """The partitions of which the lake has more than the log."""
    rows: DataFrame | None
    """What the log has of it; None where that is nothing."""


def _still_there(work: Looking, log_name: str) -> _Still:
    # Before the log is asked: of what a job archives in between, it would seem to have lost the events.
    archived = work.record.positions
    left = TRIES
    while True:
        with Door(work.url, log_name) as door:
            work.tails, firsts = door.tails(), door.firsts()
        there = {name: place for name, place in archived.items() if name in work.tails}
        behind = [name for name, (ordinal, _) in there.items() if ordinal > work.tails[name][0]]
        # A partition of which there is no first place any more went with its epoch: all of it was trimmed.
        after = {
            name: firsts[name]
            for name, (ordinal, _) in there.items()
            if name not in behind and name in firsts and firsts[name][0] < ordinal
        }
        upto = {name: there[name] for name in after}
        try:
            rows = read_log(work.lake.spark, work.url, log_name, after, upto) if upto else None
            return _Still(after, upto, behind, rows)
        except GapFound:  # it was trimmed further since it said where it begins
            left -= 1
            if not left:
                raise
