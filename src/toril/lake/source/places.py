"""Places in the log: the tails, and the entry that has an ordinal, found without reading up to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from toril.lake.errors import SourceDiverged
from toril.lake.source.positions import Marks, diverged
from toril.log import Log, Partition, Position
from toril.log.entry import START, ordinal_of
from toril.log.errors import GapFound
from toril.log.store import PartitionStore, Standing


async def tails(log: Log) -> Marks:
    """The last ordinal and id of each partition, the oldest epoch first.

    A later epoch is there only where the ones before are sealed: nothing can come into those any more.
    """
    found: Marks = {}
    for epoch in (await log.layout(anew=True)).epochs:
        standings = await log.each(lambda store: store.look(), epoch.all())
        for standing in standings:
            found[str(standing.partition)] = (standing.tail.ordinal, standing.tail.id)
        if not all(standing.sealed for standing in standings):
            break
    return found


async def firsts(log: Log) -> Marks:
    """The place before the first entry that is there, of each partition."""
    standings = await log.standings()
    return {str(standing.partition): (standing.trimmed, START.id) for standing in standings}


async def exactly(
    log: Log,
    after: Mapping[str, tuple[int, str]],
    upto: Mapping[str, tuple[int, str]],
    tails: Mapping[str, tuple[int, str]],
) -> Marks:
    """The same places with their ids."""
    made = {name: (ordinal, ident) for name, (ordinal, ident) in upto.items()}

    async def find(store: PartitionStore) -> None:
        name = str(store.partition)
        low, high = Position(*after.get(name, START)), Position(*tails[name])
        ordinal, ident = await place_of(log, store.partition, upto[name][0], low, high)
        made[name] = (ordinal, ident)

    await log.each(find, [Partition.parse(name) for name, (_, ident) in upto.items() if not ident])
    return made


class _Place(NamedTuple):
    ordinal: int
    ms: int
    seq: int

    @classmethod
    def of(cls, raw: Any) -> _Place:
        ms, _, seq = raw[0].partition(b"-")
        return cls(ordinal_of(raw), int(ms), int(seq))


async def place_of(log: Log, partition: Partition, ordinal: int, low: Position, high: Position) -> Position:
    """The entry with an ordinal, between two places.

    Ordinals rise with the time in the ids, so the time is guessed from how far it is, and guessed again: a
    few single entries are looked at, however many there are in between.
    """
    if ordinal in (low.ordinal, high.ordinal):
        return low if ordinal == low.ordinal else high
    key = log.store(partition).keys.entries

    async def first_from(begin: str, end: str = "+") -> _Place | None:
        found = await log.redis.command("XRANGE", key, begin, end, "COUNT", 1)
        return _Place.of(found[0]) if found else None

    here = await first_from(f"({low.id}")
    if here is None or here.ordinal != low.ordinal + 1:
        raise await why_missing(log, partition, low, here.ordinal if here else None)
    # It is not before `here`, and not in `before_ms` or later, where `beyond` is the ordinal.
    before_ms, beyond, tries = int(high.id.partition("-")[0]) + 1, high.ordinal, 0
    while before_ms > here.ms + 1 and here.ordinal < ordinal:
        part = (ordinal - here.ordinal) / (beyond - here.ordinal) if tries % 3 < 2 else 0.5
        guess = min(max(here.ms + int((before_ms - here.ms) * part), here.ms + 1), before_ms - 1)
        tries += 1
        there = await first_from(f"{guess}-0")
        if there is None:
            raise await why_missing(log, partition, Position(here.ordinal, f"{here.ms}-{here.seq}"), None)
        if there.ordinal <= ordinal:
            here = there
        else:
            before_ms, beyond = guess, there.ordinal
    # In one millisecond ids count up as ordinals do.
    wanted = f"{here.ms}-{here.seq + ordinal - here.ordinal}"
    found = await first_from(wanted, wanted)
    if found is None or found.ordinal != ordinal:
        raise await why_missing(log, partition, Position(here.ordinal, f"{here.ms}-{here.seq}"), None)
    return Position(ordinal, wanted)


async def why_missing(
    log: Log, partition: Partition, at: Position, found: int | None
) -> GapFound | SourceDiverged:
    """Why the entry after a place is not there: it was trimmed, lost in a failover, or removed by hand."""
    standing: Standing = await log.store(partition).look()
    if at.ordinal < standing.trimmed:
        return GapFound(
            f"GAP partition {partition}: entries {at.ordinal + 1} to {standing.trimmed} were trimmed before "
            f"they were read here; the first one there is {standing.trimmed + 1}"
        )
    if at.ordinal > standing.trimmed:
        if standing.ordinal < at.ordinal:
            return diverged(partition, at, f"its last entry is {standing.ordinal}@{standing.last_id}")
        there = await log.redis.command("XRANGE", log.store(partition).keys.entries, at.id, at.id)
        if not there or ordinal_of(there[0]) != at.ordinal:
            return diverged(partition, at, f"{ordinal_of(there[0])} has that id" if there else "no such id")
    nearest = f"the next one there is {found}" if found is not None else "nothing after it is there"
    return GapFound(f"GAP partition {partition}: entry {at.ordinal + 1} is missing ({nearest})")
