"""Live summaries against those of the lake: the same traces, and of each the same at the same version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast

from toril.lake.audit.found import Check
from toril.lake.audit.gold import SUMMARIES
from toril.lake.audit.looking import LiveStore, Looking, Skip
from toril.lake.source import Marks
from toril.lake.tables import EVENTS, QUARANTINE
from toril.log import Partition
from toril.pipelines.spans.summary import SPAN_AGGREGATE

T = TypeVar("T")

AT_ONCE = 500
"""Traces that the live store is asked for at a time."""

KEYS = ["tenant", "trace_id"]

DIFFERS = "live and batch have read the same events, and say something else: `live-is-batch` is broken"
NOT_LIVE = "the lake has a summary of a trace that the live store does not know: it was erased, or went cold"
LIVE_LOST = (
    "the live processor has passed all events that the lake has, and fewer of them are in its state: live "
    "has lost some, the lake has some twice, or the tenant was erased from the log and not from the lake"
)
ONLY_LIVE = (
    "live has a summary, and the lake has read past the trace's first event and has none: it was lost, or "
    "erased from the lake only"
)


class _Other:
    """Traces that are not compared, and why that is no loss."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, why: str, count: int = 1) -> None:
        if count:
            self._counts[why] = self._counts.get(why, 0) + count

    def notes(self) -> list[str]:
        return [f"{count:,} traces {why}" for why, count in self._counts.items()]


AHEAD = "are at a later version live, and were not compared"
NOT_YET_LIVE = "are further in the lake: the live processor has not read all that the lake has"
WAITS = "have an event live that is tried again, or waits for a person"
NOT_YET = "are live, and the lake has not read their first event yet"
OLDER = "are live, and older than the archive: the log had been trimmed when it began"
REFUSED = "are live, and in the lake's quarantine"


def live(work: Looking, check: Check) -> None:
    """Every live summary is in the lake, and says the same at the same version."""
    if work.live is None:
        raise Skip("the live store was not to be asked")
    read = work.table(SUMMARIES).positions
    # A job may write meanwhile: the rows are of one version, read at least so far, and at most up to `upto`.
    rows = work.of_traces(work.lake.read(SUMMARIES, work.lake.version(SUMMARIES)))
    upto = work.lake.last(SUMMARIES).positions
    positions = work.live.positions()
    caught_up = all(at[0] >= upto[name][0] for name, at in positions.items() if name in upto)
    other = _Other()
    _compare(work.live, check, rows, caught_up, other)
    _find_only_live(work, work.live, check, rows, read, other)
    check.notes += other.notes()


def _compare(store: LiveStore, check: Check, rows: DataFrame, caught_up: bool, other: _Other) -> None:
    """What the lake has, with what is live of it."""
    different: dict[str, list[dict[str, Any]]] = {}
    absent: list[dict[str, Any]] = []
    behind: list[dict[str, Any]] = []
    for group in _in_groups(rows.toLocalIterator(prefetchPartitions=True), AT_ONCE):
        shown = [row.asDict(recursive=True) for row in group]
        for row, state in zip(shown, store.states(shown), strict=True):
            who = {name: row[name] for name in (*KEYS, "version")}
            if state is None:
                absent.append(who)
            elif state[0] < row["version"]:
                behind.append({**who, "live": state[0]})
            elif state[0] > row["version"]:
                other.add(AHEAD)
            else:
                check.looked += 1
                for name, value in state[1].items():
                    if name in row and not _same(row[name], value):
                        different.setdefault(name, []).append({**who, "lake": row[name], "live": value})
    for kind, found, why in (("not live", absent, NOT_LIVE), ("live has fewer events", behind, LIVE_LOST)):
        if not caught_up:
            other.add(NOT_YET_LIVE, len(found))
            continue
        lost = []
        for some in _in_groups(found, AT_ONCE):
            waits = store.waiting(some)
            other.add(WAITS, sum(waits))
            lost += [one for one, its in zip(some, waits, strict=True) if not its]
        check.add(kind, len(lost), why, lost)
    for name, found in sorted(different.items()):
        check.add(f"live {name} differs", len(found), DIFFERS, found)


def _find_only_live(
    work: Looking, store: LiveStore, check: Check, rows: DataFrame, read: Marks, other: _Other
) -> None:
    """What is live and not in the lake, though the lake has read so far."""
    spark = work.lake.spark
    known, seen = rows.select(*KEYS), set[tuple[str, str]]()
    lost: list[dict[str, Any]] = []
    for page in store.traces():
        if not page:
            continue
        names = [(one["tenant"], one["trace_id"]) for one in page]
        asked = work.of_traces(spark.createDataFrame(names, "tenant string, trace_id string"))
        missing = {(row[0], row[1]) for row in asked.join(known, KEYS, "left_anti").collect()} - seen
        seen |= missing
        for some in _in_groups(sorted(missing), AT_ONCE):
            traces = [{"tenant": tenant, "trace_id": trace} for tenant, trace in some]
            states = store.states(traces)
            there = [
                {**one, "version": state[0]}
                for one, state in zip(traces, states, strict=True)
                if state is not None and state[1].get("spans")
            ]
            lost += _not_excused(work, store, there, read, other)
    check.add("only live", len(lost), ONLY_LIVE, lost)


def _not_excused(
    work: Looking, store: LiveStore, traces: Sequence[dict[str, Any]], read: Marks, other: _Other
) -> Iterator[dict[str, Any]]:
    """Of traces that are only live, those that the lake should have."""
    if not traces:
        return
    names = work.lake.spark.createDataFrame(
        [(one["tenant"], SPAN_AGGREGATE, one["trace_id"]) for one in traces],
        "tenant string, aggregate_type string, aggregate_id string",
    )
    whose = ["tenant", "aggregate_type", "aggregate_id"]
    archived = {
        (row["tenant"], row["aggregate_id"]): (
            str(Partition(row["log_epoch"], row["log_partition"])),
            row["ordinal"],
        )
        for row in work.lake.read(EVENTS).where("version = 1").join(broadcast(names), whose).collect()
    }
    refused: set[tuple[str, str]] = set()
    if work.lake.exists(QUARANTINE):
        found = work.lake.read(QUARANTINE).join(broadcast(names), whose)
        refused = {(row["tenant"], row["aggregate_id"]) for row in found.select(*whose).collect()}
    for one, place in zip(traces, store.firsts(traces), strict=True):
        key = (one["tenant"], one["trace_id"])
        at = place or archived.get(key)
        if at is not None and at[1] > read.get(at[0], (0, ""))[0]:
            other.add(NOT_YET)
        elif key in refused:
            other.add(REFUSED)
        elif work.began and (at is None or at[1] <= work.began.get(Partition.parse(at[0]), 0)):
            other.add(OLDER)
        else:
            yield one


def _in_groups(rows: Iterable[T], most: int) -> Iterator[list[T]]:
    group: list[T] = []
    for row in rows:
        group.append(row)
        if len(group) == most:
            yield group
            group = []
    if group:
        yield group


def _same(one: Any, other: Any) -> bool:
    """Whether a value of a table is a value of a live state."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple, set, frozenset)):
        return sorted(map(str, one)) == sorted(map(str, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other or one == other
    return str(one) == str(other)
