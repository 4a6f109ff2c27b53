"""Places of the log that no event of the lake has: those that were erased, and those that were lost.

However many they are: Spark sorts what is there and what was erased, one after the other, and what neither
covers comes here as stretches, which are held against the log in the order that both have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import groupby
from typing import NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import broadcast, expr

from toril.errors import TorilError
from toril.lake.audit.found import SAMPLES, Check, Seen
from toril.lake.audit.looking import PLACE, Looking
from toril.lake.erasures import ERASURES, PAGE
from toril.lake.source import Door
from toril.log import Partition

MISSING = (
    "the table says that it has read past this place, and the event is not there, and it was not erased: it "
    "was lost"
)

STRETCH = "log_epoch int, log_partition int, first bigint, last bigint"


class Hole(NamedTuple):
    """Places in a row."""

    partition: Partition
    first: int
    last: int

    @property
    def size(self) -> int:
        """How many."""
        return self.last - self.first + 1


def find_holes(work: Looking, check: Check, rows: DataFrame, upto: Mapping[Partition, int]) -> None:
    """Note what is missing up to these ordinals, and what was erased. ``rows``: the places of all events."""
    there = rows.selectExpr(*PLACE[:2], "ordinal AS first", "ordinal AS last")
    empty = _holes(work, there, upto)
    total = _size(empty)
    if not total:
        return
    if work.lake.exists(ERASURES):
        noted = work.lake.read(ERASURES).selectExpr(*PLACE[:2], "first", "last")
        empty = _holes(work, there.unionByName(noted), upto)
    lost = Seen()
    if _size(empty):
        with ExitStack() as stack:
            door: Door | None = None
            if work.log is not None:
                with suppress(TorilError):
                    door = stack.enter_context(Door(work.url, work.log))
            for hole in _not_erased(door, map(_hole, empty.toLocalIterator(prefetchPartitions=True))):
                places = ({"partition": str(hole.partition), "ordinal": one} for one in _some(hole))
                lost.add(*places, count=hole.size)
    if erased := total - lost.count:
        check.notes.append(f"{erased:,} places are empty: their tenants were erased")
    check.add("place missing", lost.count, MISSING, lost.samples)


def _holes(work: Looking, covered: DataFrame, upto: Mapping[Partition, int]) -> DataFrame:
    """What these stretches do not cover, from where the archive began up to these ordinals.

    One pass in the order of the places; a partition's holes come together, the first one first.
    """
    began = work.began
    bounds = work.lake.spark.createDataFrame(
        [(*one, began.get(one, 0) + 1, last) for one, last in upto.items()], STRETCH
    )
    # Nothing of before the archive is missing, and what is after the end comes to nothing.
    limits = bounds.selectExpr(*PLACE[:2], "first AS least", "last AS most")
    ends = bounds.selectExpr(*PLACE[:2], "last + 1 AS first", "last + 1 AS last")
    within = covered.unionByName(ends).join(broadcast(limits), list(PLACE[:2]))
    before = (
        "coalesce(max(last) OVER (PARTITION BY log_epoch, log_partition ORDER BY first, last"
        " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before"
    )
    swept = within.where("first <= most + 1").selectExpr(*PLACE[:2], "first AS next", "least", before)
    found = swept.selectExpr(*PLACE[:2], "greatest(before + 1, least) AS first", "next - 1 AS last")
    return found.where("first <= last")


def _size(holes: DataFrame) -> int:
    """How many places they are."""
    (row,) = holes.agg(expr("coalesce(sum(last - first + 1), 0) AS places")).collect()
    return int(row["places"])


def _hole(row: Row) -> Hole:
    return Hole(Partition(row["log_epoch"], row["log_partition"]), row["first"], row["last"])


def _not_erased(door: Door | None, holes: Iterable[Hole]) -> Iterator[Hole]:
    """Of holes, what is left where the log still has a place, and has erased it."""
    for partition, some in groupby(holes, lambda hole: hole.partition):
        places = iter(()) if door is None else _places(door, partition)
        ordinal, erased = next(places, (None, False))
        for hole in some:
            at = hole.first
            while ordinal is not None and ordinal <= hole.last:
                if erased and ordinal >= at:
                    if ordinal > at:
                        yield Hole(partition, at, ordinal - 1)
                    at = ordinal + 1
                ordinal, erased = next(places, (None, False))
            if at <= hole.last:
                yield Hole(partition, at, hole.last)


def _places(door: Door, partition: Partition) -> Iterator[tuple[int, bool]]:
    """The places that the log still has, and whether each was erased, as far as it can be asked."""
    store, after = door.log.store(partition), "0-0"
    with suppress(TorilError):
        while page := door.do(store.places(after, PAGE)):
            yield from ((entry.ordinal, entry.erased) for entry in page)
            after = page[-1].id


def _some(hole: Hole) -> range:
    """As many of its places as are shown."""
    return range(hole.first, min(hole.last, hole.first + SAMPLES - 1) + 1)
