"""Waiting for a state, never for a time that may be too short."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from toril.log import Log
from toril.log.store import PartitionStore


async def until(true: Callable[[], bool | Awaitable[bool]], seconds: float = 20.0) -> None:
    """Until something is so; an error where it is not within a generous time."""
    async with asyncio.timeout(seconds):
        while True:
            met = true()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.005)


async def until_quiet(log: Log, how_long: timedelta | None = None) -> None:
    """Until the server's clock says that nothing has happened in a log for its quiet time, or for another."""
    wanted = log.limits.quiet_ms if how_long is None else how_long.total_seconds() * 1000

    async def quiet_for(store: PartitionStore) -> float:
        newest = await log.redis.command("ZREVRANGE", store.keys.activity, 0, 0, "WITHSCORES")
        return (await store.look()).now - float(newest[1]) if newest else wanted

    async def quiet() -> bool:
        return min(await log.each(quiet_for)) >= wanted

    await until(quiet)
