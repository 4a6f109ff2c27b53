"""Erasing a tenant: its events, its state and its keys, and a report of what was removed.

In the place of its events stand empty entries, so that ordinals have no gap and no reader's position
changes. The partition is rewritten in small steps while it is appended to and read; the tenant's own appends
are refused meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toril.aggregate import check_tenant
from toril.log.entry import Partition
from toril.log.layout import LOADING
from toril.log.store import PartitionStore

if TYPE_CHECKING:
    from toril.log.log import Log

STEP = 500
"""Entries rewritten, or aggregates looked at, in one call."""


@dataclass(slots=True)
class Erased:
    """What was removed."""

    events: int = 0
    """Events in the log."""
    aggregates: int = 0
    """Aggregates in Redis: versions, keys, states."""
    cold: int = 0
    """Aggregates in the cold store."""
    partitions: int = 0
    """Partitions that held events of the tenant, and were rewritten."""


async def erase_tenant(log: Log, tenant: str, progress: Callable[[int, int], None] | None = None) -> Erased:
    """Remove all that the log has of a tenant. Can be repeated, and finishes what was cut off."""
    check_tenant(tenant)
    looked = 0
    report = Erased()

    async def one(store: PartitionStore) -> None:
        nonlocal looked
        # Awaited before they are added: `+= await` would forget what others added meanwhile.
        events = await _erase_events(store, tenant)
        aggregates = await _erase_aggregates(store, tenant)
        report.events += events
        report.partitions += events > 0
        report.aggregates += aggregates
        looked += 1
        if progress is not None:
            progress(looked, len(partitions))

    done: list[Partition] = []
    # A new epoch that began meanwhile may have been given some of it.
    while done != (partitions := (await log.layout(anew=True)).partitions()):
        looked = 0
        await log.each(lambda store: _close(store, tenant), partitions)
        await log.each(one, partitions)
        done = partitions
    if log.cold is not None:
        report.cold = await log.cold.erase(tenant)
    await log.each(lambda store: store.wall(tenant, up=False), done)
    return report


async def _close(store: PartitionStore, tenant: str) -> None:
    """Let no more of the tenant in, and wait for what was on its way to the cold store."""
    before = await store.wall(tenant, up=True)
    while before:
        await asyncio.sleep(0.05)
        before &= await store.wall(tenant, up=True)


async def _erase_events(store: PartitionStore, tenant: str) -> int:
    erased = 0
    if await _has(store, tenant):
        word = secrets.token_urlsafe(9)
        state, after = "begin", ""
        while state != "done":
            state, after, here = await store.rewrite(tenant, after, STEP, word)
            erased += here
            if state == "begin":  # another one is at it
                erased = 0
                await asyncio.sleep(0.05)
    while await store.sweep(STEP):
        pass
    return erased


async def _has(store: PartitionStore, tenant: str) -> bool:
    """Whether a partition has events of the tenant: most have none, and need not be rewritten."""
    after = "0-0"
    prefix = f"{tenant}:"
    while page := await store.page(after, STEP):
        if any(entry.key.startswith(prefix) for entry in page):
            return True
        after = page[-1].id
    return False


async def _erase_aggregates(store: PartitionStore, tenant: str) -> int:
    erased, cursor = 0, 0
    prefix = f"{tenant}:"
    while True:
        cursor, found = await store.scan_hot(cursor, STEP)
        mine = [key for key in found if key.startswith(prefix)]
        if mine:
            erased += await store.forget(tenant, mine)
        if cursor == 0:
            break
    # Of those that are cold, readers may still have parked events.
    for reader in (await store.look()).readers:
        while True:
            cursor, found = await store.scan_parked(reader.removesuffix(LOADING), cursor, STEP)
            mine = [key for key in found if key.startswith(prefix)]
            if mine:
                erased += await store.forget(tenant, mine)
            if cursor == 0:
                break
    return erased
