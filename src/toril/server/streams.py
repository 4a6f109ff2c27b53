"""How the stream queues of a Redis stand, as metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from toril.connection import Connection
from toril.keyspace import StreamKeys
from toril.server.standing import Families
from toril.stream import StreamMetrics, StreamQueue, stream_queues
from toril.stream.exposition import samples

NAMES_FRESH = 60.0
"""Seconds after which queues are looked for again: that reads the names of all keys, in small steps."""

FIRST_LOOK = 2.0
"""Seconds that the first look may take, before metrics are given without it; it goes on meanwhile."""

AT_ONCE = 20
"""Queues that are asked at a time."""


class StreamWatch:
    """Knows which stream queues there are."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._looked: dict[str, float] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}

    async def look(self, connections: Sequence[Connection], found: Families) -> None:
        """Add the metrics of all stream queues that are known of."""
        for redis in {redis.url: redis for redis in connections}.values():
            names = await self._known(redis)
            for start in range(0, len(names), AT_ONCE):
                part = names[start : start + AT_ONCE]
                for metrics in await asyncio.gather(*(_measure(redis, name) for name in part)):
                    if metrics is not None:
                        _add(found, metrics)

    async def _known(self, redis: Connection) -> list[str]:
        at = redis.url
        if time.monotonic() - self._looked.get(at, float("-inf")) > NAMES_FRESH and at not in self._looking:
            self._looking[at] = asyncio.create_task(self._find(redis))
        if at not in self._names and at in self._looking:
            await asyncio.wait({self._looking[at]}, timeout=FIRST_LOOK)
        return self._names.get(at, [])

    async def _find(self, redis: Connection) -> None:
        try:
            self._names[redis.url] = await stream_queues(redis)
        finally:
            self._looked[redis.url] = time.monotonic()
            del self._looking[redis.url]

    async def close(self) -> None:
        """Look no more."""
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _measure(redis: Connection, name: str) -> StreamMetrics | None:
    """None where the queue is gone: to open it would make it again."""
    if not await redis.command("EXISTS", StreamKeys(name).meta):
        return None
    return await StreamQueue(name, redis, schema=None).metrics()


def _add(found: Families, metrics: StreamMetrics) -> None:
    for sample in samples(metrics):
        add = found.gauge if sample.kind == "gauge" else found.count
        add(sample.name, sample.text, sample.value, **dict(sample.labels))
