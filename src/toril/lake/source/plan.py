"""Which task reads which stretches: partitions of one server together, no more tasks than are worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from toril.keyspace import slot_of
from toril.lake.source.filters import Wanted
from toril.lake.source.floors import Floors
from toril.lake.source.options import Options
from toril.lake.source.places import tails
from toril.lake.source.positions import check_partitions, refuse_removed
from toril.lake.source.reading import Stretch
from toril.log import Log, Partition, Position
from toril.log.entry import START

EVERYTHING = Wanted()

WORTH_A_TASK = 2000
"""Entries for which one more task is begun."""


@dataclass
class Task(InputPartition):
    """What one task of Spark reads."""

    stretches: tuple[Stretch, ...]
    floor: str = ""
    """The name under which it keeps what it reads from being trimmed; empty where another one does."""
    wanted: Wanted = EVERYTHING


async def plan_batch(
    log: Log, options: Options, name: str, wanted: Wanted = EVERYTHING
) -> list[list[Stretch]]:
    """What each task of a batch reads; all of it has floors under this name from now on."""
    upto = await tails(log) if options.upto is None else options.upto
    await check_places(log, options)
    starts: dict[Partition, Position | str] = {}
    for text, (last, _) in upto.items():
        partition = Partition.parse(text)
        start = start_of(options, partition)
        if not isinstance(start, Position) or start.ordinal < last:
            starts[partition] = start
    if wanted != EVERYTHING:
        there = wanted.partitions(await log.layout())
        starts = {partition: start for partition, start in starts.items() if partition in there}
    floors = Floors(log, name)
    found = await floors.put(starts)
    stretches = [
        await wanted.narrow(log, Stretch(partition, after, Position(*upto[str(partition)])))
        for partition, after in found.items()
    ]
    stretches = [stretch for stretch in stretches if stretch.after.ordinal < stretch.upto.ordinal]
    await floors.remove(set(found) - {stretch.partition for stretch in stretches})
    return await group(log, stretches, options.tasks) if stretches else []


def start_of(options: Options, partition: Partition) -> Position | str:
    """Where a partition is read from: ``first``, ``tail``, or after a position."""
    if options.after is not None:
        return Position(*options.after.get(str(partition), START))
    if isinstance(options.start, str):
        return options.start
    place = options.start.get(str(partition))
    if place is not None:
        return Position(*place)
    # What comes after the epochs that are named comes after the positions, all of it.
    newest = max((Partition.parse(name).epoch for name in options.start), default=partition.epoch)
    return START if partition.epoch > newest else "first"


async def check_places(log: Log, options: Options) -> None:
    """Refuse positions that are in no partition, and such as are gone with theirs."""
    layout = await log.layout(anew=True)
    start = None if isinstance(options.start, str) else options.start
    for option, marks in (("start", start), ("after", options.after), ("upto", options.upto)):
        check_partitions(layout, option, marks or {})
    if options.upto is None and (options.after is not None or start):
        refuse_removed(layout, start or options.after or {})


async def group(log: Log, stretches: Sequence[Stretch], most: int) -> list[list[Stretch]]:
    """Stretches in groups of about the same size, each from one server."""
    by_server: dict[object, list[Stretch]] = {}
    shards = await log.redis.shards()
    for stretch in stretches:
        slot = slot_of(stretch.partition.keys(log.name).entries)
        here = (one for one in shards if any(some.first <= slot <= some.last for some in one.slots))
        server = next((one.primary for one in here), None)
        by_server.setdefault(server, []).append(stretch)
    total = sum(map(_size, stretches))
    worth = min(most, -(-total // WORTH_A_TASK))
    groups: list[list[Stretch]] = []
    for some in by_server.values():
        share = max(1, round(worth * sum(map(_size, some)) / total))
        groups += _even(some, min(share, len(some)))
    return groups


def _even(stretches: Sequence[Stretch], count: int) -> list[list[Stretch]]:
    """The largest first, each to the group that has least."""
    groups: list[list[Stretch]] = [[] for _ in range(count)]
    sizes = [0] * count
    for stretch in sorted(stretches, key=_size, reverse=True):
        least = sizes.index(min(sizes))
        groups[least].append(stretch)
        sizes[least] += _size(stretch)
    return groups


def _size(stretch: Stretch) -> int:
    return stretch.upto.ordinal - stretch.after.ordinal
