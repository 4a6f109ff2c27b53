"""Where a read of the log begins and ends: positions by partition, and arithmetic over them."""

from __future__ import annotations

from collections.abc import Mapping

from toril.errors import InvalidValue
from toril.lake.errors import SourceDiverged
from toril.log import Partition, Position
from toril.log.entry import START
from toril.log.errors import GapFound
from toril.log.layout import Layout

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


def refuse_removed(layout: Layout, after: Mapping[str, tuple[int, str]]) -> None:
    """Refuse to go on from here where what comes next went with an epoch that was removed.

    Epochs are read one after the other: before the last one that is named, what is not named was read.
    """
    named = {Partition.parse(name): ordinal for name, (ordinal, _) in after.items()}
    newest = max((partition.epoch for partition in named), default=0)
    for epoch in layout.ever[: layout.oldest - 1]:
        # A log may have lost an epoch before it noted where they end.
        ends = layout.ends.get(epoch.number, (int(epoch.number > newest),) * epoch.partitions)
        for one, end in zip(epoch.all(), ends, strict=True):
            done = named.get(one, START.ordinal if epoch.number >= newest else end)
            if done < end:
                raise GapFound(
                    f"GAP partition {one}: entries from {done + 1} on were removed with epoch {epoch.number} "
                    f"of the log before they were read here; the first ones are of epoch {layout.oldest}"
                )


def check_partitions(layout: Layout, option: str, marks: Mapping[str, tuple[int, str]]) -> None:
    """Refuse positions in what was never a partition of the log: their names are misspelt."""
    for name in marks:
        if not layout.had(Partition.parse(name)):
            had = ", ".join(f"{epoch.all()[0]} to {epoch.all()[-1]}" for epoch in layout.ever)
            raise InvalidValue(f"option {option}", name, f"the log has, or had, partitions {had}")


def in_order(marks: Mapping[str, tuple[int, str]]) -> dict[str, list[int | str]]:
    """Positions as an offset of a stream has them, the oldest epoch first: the same places look the same."""
    names = sorted(marks, key=Partition.parse)
    return {name: [marks[name][0], marks[name][1]] for name in names}
