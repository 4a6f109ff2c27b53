"""Erasing a tenant everywhere: its keys, what was sent, the log, and every table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from toril.aggregate import check_tenant
from toril.errors import TorilError
from toril.queue import Queue
from toril.runtime import EventSourcing
from toril.server.keys import ApiKeys

Progress = Callable[[int, int], None]

PATIENCE = 60.0
"""Seconds that workers have to finish what they had read of the tenant before it was erased."""


class Erasable(Protocol):
    """A table."""

    async def erase(self, tenant: str) -> int:
        """Remove all of a tenant; says how many rows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedTenant:
    """What was removed."""

    keys: int
    """API keys: from now on nobody can send for the tenant."""
    jobs: int
    """Commands that had been sent, waiting or finished."""
    events: int
    """Events in the log."""
    aggregates: int
    """Aggregates in Redis and in the cold store."""
    rows: Mapping[str, int]
    """By table."""


async def erase_tenant(
    tenant: str,
    *,
    sourcing: EventSourcing,
    keys: ApiKeys,
    tables: Mapping[str, Erasable],
    progress: Progress | None = None,
) -> ErasedTenant:
    """Remove all that there is of a tenant. Can be repeated, and finishes what was cut off.

    Its keys go first, so that nothing more comes in when servers have heard of it; the tables last, when the
    workers have finished what they had read of it before.
    """
    check_tenant(tenant)
    log = sourcing.log
    assert log is not None, "in memory there is nothing to erase"
    revoked = await keys.revoke_tenant(tenant)
    if revoked:
        await asyncio.sleep(keys.fresh)  # servers still believe what they were told of these keys
    jobs = await _erase_jobs(sourcing, tenant)
    erased = await log.erase_tenant(tenant, progress=progress)
    await _caught_up(sourcing)
    jobs += await _erase_jobs(sourcing, tenant)  # those that workers have sent meanwhile
    rows = {name: await table.erase(tenant) for name, table in tables.items()}
    return ErasedTenant(
        keys=revoked, jobs=jobs, events=erased.events, aggregates=erased.aggregates + erased.cold, rows=rows
    )


async def _erase_jobs(sourcing: EventSourcing, tenant: str) -> int:
    removed = 0
    for pipeline in sourcing.pipelines.values():
        for name in pipeline.commands:
            dispatcher = await pipeline.commands[name].dispatcher()
            if dispatcher.queue is not None:
                removed += await _erase_from(dispatcher.queue, tenant)
    return removed


async def _erase_from(queue: Queue, tenant: str) -> int:
    removed = 0
    for job_id in await queue.ids():
        job = await queue.job(job_id)
        if job is None or not isinstance(job.data, dict) or job.data.get("tenant") != tenant:
            continue
        # One that runs is removed when it has run.
        removed += await _soon(lambda job_id=job_id: queue.remove(job_id))  # type: ignore[misc]
    return removed


async def _soon(attempt: Callable[[], Awaitable[bool]]) -> bool:
    for _ in range(100):
        if await attempt():
            return True
        await asyncio.sleep(0.05)
    return False


async def _caught_up(sourcing: EventSourcing) -> None:
    """Wait until processors that run have passed all that was in the log: they may have read it before."""
    backend = sourcing.backend
    assert backend is not None
    tails = {partition: await backend.tail(partition) for partition in await backend.partitions()}
    until = asyncio.get_running_loop().time() + PATIENCE
    for work in sourcing.works():
        for partition, tail in tails.items():
            while await backend.owner(work.processor, partition) is not None:
                (position,) = await backend.positions(partition, [work.processor])
                if position is not None and position.ordinal >= tail:
                    break
                if asyncio.get_running_loop().time() > until:
                    raise TorilError(
                        f"processor {work.processor!r} did not get past what it had read of the tenant in "
                        f"{PATIENCE:g} s: the log is erased, the tables are not yet; run it again"
                    )
                await asyncio.sleep(0.05)
