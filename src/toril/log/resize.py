"""Another number of partitions: a new epoch of the log, begun while it is written to and read.

1. The partitions of the new epoch are prepared: they ask for aggregates that they don't know, and have the
   readers of the old ones.
2. The new epoch is written down. From now on writers go there; an aggregate they bring along comes from the
   old partition, which is sealed before it is copied from.
3. All old partitions are sealed. Writers that did not know are told, and look anew.
4. All aggregates that are in Redis are carried over, and the cold ones made known to the new filters.
5. The new partitions need not ask any more.

Each step can be done again, so a run that was cut off is finished by another one. Readers cross from the old
epoch to the new one by themselves, when they have read all of the old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.log.entry import Partition
from toril.log.layout import ENDS, LOADING, Epoch, Layout, check_partitions
from toril.log.records import rehomed
from toril.log.store import PartitionStore

if TYPE_CHECKING:
    from toril.log.log import Log

PAGE = 200


async def resize(log: Log, partitions: int, progress: Callable[[int, int], None] | None = None) -> Epoch:
    """Give the log another number of partitions, or finish what was begun; the epoch it is in then."""
    check_partitions(partitions)
    await log.layout()
    # One change at a time: this stands until it is finished, whoever finishes it.
    await log.redis.command("HSETNX", log.keys.meta, "resizing", partitions, repeatable=True)
    begun = int(await log.redis.command("HGET", log.keys.meta, "resizing") or partitions)
    layout = await log.layout(anew=True)
    if begun != partitions:
        raise InvalidValue(
            "partitions", partitions, f"a change to {begun} was begun and is to be finished first"
        )
    if not layout.carrying:
        if layout.current.partitions == partitions:
            await log.redis.command("HDEL", log.keys.meta, "resizing", repeatable=True)
            raise InvalidValue("partitions", partitions, f"log {log.name!r} has as many already")
        layout = await _begin(log, layout, partitions)
    new, old = layout.ever[-1], layout.ever[-2]
    await _copy_readers(log, old, new)
    await log.each(lambda store: store.seal(new.number), old.all())
    total = sum(standing.hot for standing in await log.each(lambda store: store.look(), old.all()))
    carried = 0

    def told(count: int) -> None:
        nonlocal carried
        carried += count
        if progress is not None:
            progress(carried, total)

    await log.each(lambda store: _carry(log, store, new, told), old.all())
    await _chill(log, new)
    await log.each(lambda store: store.carried(), new.all())
    await log.redis.command("HDEL", log.keys.meta, "carrying", "resizing", repeatable=True)
    await log.layout(anew=True)
    return new


async def _begin(log: Log, layout: Layout, partitions: int) -> Layout:
    new = Epoch(layout.current.number + 1, partitions)
    await log.each(lambda store: store.prepare(), new.all())
    await _copy_readers(log, layout.current, new)
    ever = [[epoch.number, epoch.partitions] for epoch in (*layout.ever, new)]
    epochs = msgspec.json.encode(ever)
    await log.redis.command("HSET", log.keys.meta, "epochs", epochs, "carrying", 1, repeatable=True)
    return await log.layout(anew=True)


async def _copy_readers(log: Log, old: Epoch, new: Epoch) -> None:
    """Whoever has a floor in the old epoch has one at the start of the new."""
    standings = await log.each(lambda store: store.look(), old.all())
    silent: dict[str, int] = {}
    for standing in standings:
        for name, its in standing.readers.items():
            left = max(1, its.expires_at - standing.now) if its.expires_at else 0
            silent[name] = max(silent.get(name, 0), left)

    async def register(store: PartitionStore) -> None:
        for name, silent_ms in sorted(silent.items()):
            await store.register(name, "first", silent_ms)

    await log.each(register, new.all())


async def _carry(log: Log, store: PartitionStore, new: Epoch, told: Callable[[int], None]) -> None:
    """Copy the aggregates of one sealed partition, which nothing changes any more."""
    cursor = 0
    while True:
        cursor, page = await store.scan_hot(cursor, PAGE)
        read_at: dict[Partition, int] = {}
        for key in page:
            aggregate = Aggregate.parse(key)
            target = log.store(new.of(aggregate))
            if target.partition not in read_at:
                read_at[target.partition] = (await target.look()).now
            if fields := await store.fields(aggregate):
                moved = rehomed(fields, store.partition)
                await target.carry(aggregate, read_at[target.partition], moved)
        told(len(page))
        if cursor == 0:
            return


async def _chill(log: Log, new: Epoch) -> None:
    """Make the cold aggregates known to the new partitions."""
    if log.cold is None:
        return
    pages: dict[Partition, list[str]] = defaultdict(list)
    async for aggregate in log.cold.aggregates():
        page = pages[new.of(aggregate)]
        page.append(aggregate.key)
        if len(page) >= PAGE:
            await log.store(new.of(aggregate)).chill(page)
            page.clear()
    for partition, page in pages.items():
        if page:
            await log.store(partition).chill(page)


async def drop_epoch(log: Log) -> Epoch | None:
    """Remove the oldest epoch where it has been read to the end and trimmed; None where there is none."""
    layout = await log.layout(anew=True)
    oldest = layout.epochs[0]
    if oldest == layout.current or layout.carrying:
        return None
    standings = await log.each(lambda store: store.look(), oldest.all())
    for standing in standings:
        behind = any(standing.backlog(name) > 0 for name in standing.readers)
        if not standing.sealed or behind or standing.length > 0:
            return None
        if any(name.endswith(LOADING) for name in standing.readers):
            return None  # it notes which tenants were erased since somebody's copy was made
        store = log.store(standing.partition)
        if any([await store.parked(name) for name in standing.readers]):
            return None  # somebody has yet to hand them on
    following = layout.epoch(oldest.number + 1)
    await log.each(lambda store: _adopt(log, store, following), oldest.all())
    ends = msgspec.json.encode([standing.ordinal for standing in standings])
    said = ("oldest", oldest.number + 1, f"{ENDS}{oldest.number}", ends)
    await log.redis.command("HSET", log.keys.meta, *said, repeatable=True)
    await log.layout(anew=True)
    await log.each(lambda store: store.drop(), oldest.all())
    return oldest


async def _adopt(log: Log, store: PartitionStore, following: Epoch) -> None:
    """Processors went on with the old epoch after its aggregates were carried over."""
    cursor = 0
    while True:
        cursor, page = await store.scan_hot(cursor, PAGE)
        for key in page:
            aggregate = Aggregate.parse(key)
            target, fields = log.store(following.of(aggregate)), await store.fields(aggregate)
            while await target.adopt(key, fields) < 0:  # it has gone cold there, and must not stay as it was
                await log.bring_back(target, aggregate, (await target.look()).now)
        if cursor == 0:
            return
