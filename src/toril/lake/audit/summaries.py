"""Live summaries against those of the lake: the same traces, and of each the same at the same version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from toril.errors import TorilError
from toril.lake.audit.found import Check, Seen
from toril.lake.audit.gold import SUMMARIES
from toril.lake.audit.looking import PLACE, LiveStore, Looking, Skip
from toril.lake.keysets import Key, Keysets, named
from toril.lake.source import Marks
from toril.lake.tables import EVENTS, QUARANTINE, SPANS
from toril.log import Partition
from toril.pipelines.spans.summary import SPAN_AGGREGATE

T = TypeVar("T")

AT_ONCE = 500
"""Traces that the live store is asked for at a time."""

KEYS = ["tenant", "trace_id"]

LAKE, LIVE, ARCHIVED, SPANNED, QUARANTINED = "lake", "live", "archived", "spanned", "quarantined"
"""Who has a trace, or an event of it."""

DIFFERS = "live and batch have read the same events, and say something else: `live-is-batch` is broken"
NOT_LIVE = "the lake has a summary of a trace that the live store does not know: it was erased, or went cold"
LIVE_LOST = (
    "the live processor has passed all events that the lake has, and fewer of them are in its state: live "
    "has lost some, the lake has some twice, or the tenant was erased from the log and not from the lake"
)
ONLY_LIVE = (
    "live has a summary, and the lake has read past the trace's first span and has none: it was lost, or "
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
IN_PART = (
    "have events that are not in spans (in quarantine, of other types, or older than the archive), and were "
    "not compared"
)
NOT_YET_LIVE = "are further in the lake: the live processor has not read all that the lake has"
WAITS = "have an event live that is tried again, or waits for a person"
NOT_YET = "are live, and the lake has not read their first span yet"
OLDER = "are live, and older than the archive: the log had been trimmed when it began"
REFUSED = "are live, and in the lake's quarantine"


def live(work: Looking, check: Check) -> None:
    """Every live summary is in the lake, and says the same at the same version."""
    if work.live is None:
        raise Skip("the live store was not to be asked")
    if isinstance(work.live, TorilError):
        raise work.live
    record = work.table(SUMMARIES)
    read = record.positions
    rows = work.of_traces(work.read(SUMMARIES))
    work.table(SPANS.name)
    spans = work.of_traces(work.batches(SPANS, record.source))
    positions = work.live.positions()
    caught_up = all(at[0] >= read[name][0] for name, at in positions.items() if name in read)
    other = _Other()
    with Keysets() as keys:
        _compare(work.live, check, _with_parts(rows, spans), caught_up, other, keys)
        _find_only_live(work, work.live, check, rows, spans, read, other, keys)
    check.notes += other.notes()


def _with_parts(rows: DataFrame, spans: DataFrame) -> DataFrame:
    """Summaries, and whether each is ``in_part``: of fewer events than the trace had at its last span.

    Its version is how many spans it is of; only where they are 1, 2, 3 … it is that of the trace as well.
    """
    # Where spans are there twice instead, that is to be found.
    is_part = "max(version) > count(1) OR min(version) > 1 AS in_part"
    parts = spans.groupBy(*KEYS).agg(expr(is_part)).where("in_part")
    return rows.join(parts, KEYS, "left")


def _compare(
    store: LiveStore, check: Check, rows: DataFrame, caught_up: bool, other: _Other, keys: Keysets
) -> None:
    """What the lake has, with what is live of it."""
    different: dict[str, Seen] = {}
    absent, behind = Seen(), Seen()
    for group in _in_groups(rows.toLocalIterator(prefetchPartitions=True), AT_ONCE):
        shown = [row.asDict(recursive=True) for row in group]
        lacking: list[tuple[Seen, dict[str, Any]]] = []
        for row, state in zip(shown, store.states(shown), strict=True):
            who = {name: row[name] for name in (*KEYS, "version")}
            keys.add(LAKE, (row["tenant"], row["trace_id"]))
            if state is None:
                lacking.append((absent, who))
            elif row["in_part"]:
                other.add(IN_PART)
            elif state[0] < row["version"]:
                lacking.append((behind, {**who, "live": state[0]}))
            elif state[0] > row["version"]:
                other.add(AHEAD)
            else:
                check.looked += 1
                for name, value in state[1].items():
                    if name in row and not _same(row[name], value):
                        seen = different.setdefault(name, Seen())
                        seen.add({**who, "lake": row[name], "live": value})
        if not caught_up:
            other.add(NOT_YET_LIVE, len(lacking))
        elif lacking:
            for (seen, who), waits in zip(lacking, store.waiting([who for _, who in lacking]), strict=True):
                if waits:
                    other.add(WAITS)
                else:
                    seen.add(who)
    check.add("not live", absent.count, NOT_LIVE, absent.samples)
    check.add("live has fewer events", behind.count, LIVE_LOST, behind.samples)
    for name, found in sorted(different.items()):
        check.add(f"live {name} differs", found.count, DIFFERS, found.samples)


def _find_only_live(
    work: Looking,
    store: LiveStore,
    check: Check,
    rows: DataFrame,
    spans: DataFrame,
    read: Marks,
    other: _Other,
    keys: Keysets,
) -> None:
    """What is live and not in the lake, though the lake has read so far."""
    for page in store.traces():
        for key in _chosen(work, [(one["tenant"], one["trace_id"]) for one in page]):
            keys.add(LIVE, key)
    lost = Seen()
    with Keysets() as lacking:
        found = 0
        for part in keys.parts():
            for some in _in_groups(sorted(part[LIVE].keys() - part[LAKE].keys()), AT_ONCE):
                for key, value in _to_explain(store, some, read, other):
                    lacking.add(LIVE, key, value)
                    found += 1
        if found:
            _note_archived(work, rows, spans, lacking)
            for part in lacking.parts():
                for key, (version, place) in sorted(part[LIVE].items()):
                    at = place or part[ARCHIVED].get(key)
                    if at is not None and at[1] > read.get(at[0], (0, ""))[0]:
                        other.add(NOT_YET)
                    elif key in part[QUARANTINED]:
                        other.add(REFUSED)
                    elif _is_older(work, at):
                        other.add(OLDER)
                    elif key in part[ARCHIVED] and key not in part[SPANNED]:
                        other.add(NOT_YET)  # its first event was none; a lost span is found among spans
                    else:
                        lost.add({"tenant": key[0], "trace_id": key[1], "version": version})
    check.add("only live", lost.count, ONLY_LIVE, lost.samples)


def _is_older(work: Looking, at: tuple[str, int] | None) -> bool:
    """Whether what was there, or is nowhere to be found, is from before the archive."""
    if not work.record.positions:  # it has not begun
        return at is None
    began = work.began
    return bool(began) and (at is None or at[1] <= began.get(Partition.parse(at[0]), 0))


def _chosen(work: Looking, keys: Sequence[Key]) -> Iterable[Key]:
    """Those that are in the sample."""
    if work.fraction == 1 or not keys:
        return keys
    return [tuple(row) for row in work.of_traces(named(work.lake.spark, KEYS, keys)).collect()]


def _to_explain(
    store: LiveStore, keys: Sequence[Key], read: Marks, other: _Other
) -> Iterator[tuple[Key, tuple[int, tuple[str, int] | None]]]:
    """Of traces that are not in the lake, those that have a summary, and that the lake may have read.

    With its version, and where in the log its first event is, if the log still has it.
    """
    traces = [{"tenant": tenant, "trace_id": trace} for tenant, trace in keys]
    states = zip(traces, store.states(traces), strict=True)
    there = [(one, state[0]) for one, state in states if state is not None and state[1].get("spans")]
    firsts = store.firsts([one for one, _ in there])
    for (one, version), place in zip(there, firsts, strict=True):
        if place is not None and place[1] > read.get(place[0], (0, ""))[0]:
            other.add(NOT_YET)
        else:
            yield (one["tenant"], one["trace_id"]), (version, place)


def _note_archived(work: Looking, rows: DataFrame, spans: DataFrame, lacking: Keysets) -> None:
    """Of traces that the lake has no summary of: where their first events are, what else it has of them."""
    known = rows.select(*KEYS)
    kept = f"aggregate_type = '{SPAN_AGGREGATE}'"

    def without(table: DataFrame) -> DataFrame:
        named = table.where(kept).withColumnRenamed("aggregate_id", "trace_id")
        return work.of_traces(named).join(known, KEYS, "left_anti")

    firsts = without(work.read(EVENTS).where("version = 1")).select(*KEYS, *PLACE)
    for row in firsts.toLocalIterator(prefetchPartitions=True):
        place = str(Partition(row["log_epoch"], row["log_partition"])), row["ordinal"]
        lacking.add(ARCHIVED, (row["tenant"], row["trace_id"]), place)
    for row in spans.join(known, KEYS, "left_anti").select(*KEYS).distinct().toLocalIterator():
        lacking.add(SPANNED, (row["tenant"], row["trace_id"]))
    if work.lake.exists(QUARANTINE):
        for row in without(work.read(QUARANTINE)).select(*KEYS).toLocalIterator():
            lacking.add(QUARANTINED, (row["tenant"], row["trace_id"]))


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
