"""Where a read of the log begins and ends: positions by partition, and arithmetic over them."""

from __future__ import annotations

from collections.abc import Mapping

from toril.errors import InvalidValue
from toril.lake.errors import SourceDiverged
from toril.log import Partition, Position
from toril.log.entry import START
from toril.log.errors import GapFound

Marks = dict[str, tuple[int, str]]
"""By partition (``07``, ``2:07``): the ordinal and the id of the last entry that is done with.

An id may be empty where only the ordinal is known yet: see :func:`bounded`.
"""

UNKNOWN = {"", START.id}
"""Ids of places whose entry was not looked at, or is not there any more."""


def bounded(after: Mapping[str, tuple[int, str]], tails: Mapping[str, tuple[int, str]], most: int) -> Marks:
    """How far a batch of at most ``most`` entries goes from here, shared by how much each partition has left.

    Where it ends before the tail of a partition, the ordinal is exact and the id is empty; ``exactly`` of
    an open log finds it. Of several epochs it takes from the oldest that has something left: what comes
    later in the life of an aggregate comes in a later batch.
    """
    if most < 1:
        raise InvalidValue("most", most, "at least 1 entry")
    _refuse_removed(after, tails)
    left: dict[Partition, int] = {}
    for name, (last, last_id) in tails.items():
        done, done_id = after.get(name, START)
        other = done == last and last_id != done_id and not {last_id, done_id} & UNKNOWN
        if done > last or other:
            raise diverged(name, Position(done, done_id), f"its last entry is {last}@{last_id}")
        if done < last:
            left[Partition.parse(name)] = last - done
    upto = {name: (ordinal, ident) for name, (ordinal, ident) in after.items()}
    oldest = min((partition.epoch for partition in left), default=0)
    of_one_epoch = {str(one): count for one, count in left.items() if one.epoch == oldest}
    for name, taken in shares(of_one_epoch, most).items():
        end = after.get(name, START)[0] + taken
        upto[name] = tails[name] if end == tails[name][0] else (end, "")
    return upto


def shares(left: Mapping[str, int], most: int) -> dict[str, int]:
    """How ``most`` is shared by those who have so much left: one for each, the rest in proportion."""
    total = sum(left.values())
    if total <= most:
        return dict(left)
    if most <= len(left):
        first = sorted(left, key=lambda name: -left[name])[:most]
        return dict.fromkeys(first, 1)
    spare, beyond = most - len(left), total - len(left)
    taken = {name: 1 + (count - 1) * spare // beyond for name, count in left.items()}
    rest = most - sum(taken.values())
    for name in sorted(left, key=lambda name: taken[name] - left[name])[:rest]:
        taken[name] += 1
    return taken


def between(after: Mapping[str, tuple[int, str]], upto: Mapping[str, tuple[int, str]]) -> int:
    """Entries after the ones and up to the others."""
    return sum(max(0, last - after.get(name, START)[0]) for name, (last, _) in upto.items())


def diverged(partition: object, at: Position, there: str) -> SourceDiverged:
    """The log does not have what was read from it."""
    return SourceDiverged(
        f"partition {partition}: entry {at} was read from this log, and is not in it now ({there}); "
        "a failover has lost it, and the log goes on without it"
    )


def _refuse_removed(after: Mapping[str, tuple[int, str]], tails: Mapping[str, tuple[int, str]]) -> None:
    """An epoch that is over and was removed must have been read."""
    oldest = min((Partition.parse(name).epoch for name in tails), default=1)
    known = {Partition.parse(name).epoch for name in after}
    if oldest > 1 and not known & {oldest, oldest - 1}:
        raise GapFound(
            f"GAP epoch {oldest - 1} of the log was removed before it was read here; "
            "start at the first entry that is there"
        )


def in_order(marks: Mapping[str, tuple[int, str]]) -> dict[str, list[int | str]]:
    """Positions as an offset of a stream has them, the oldest epoch first: the same places look the same."""
    names = sorted(marks, key=Partition.parse)
    return {name: [marks[name][0], marks[name][1]] for name in names}
