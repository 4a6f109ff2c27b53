"""Waiting for what becomes of a job: one subscription for all who wait in a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from toril.connection import Connection, Subscription
from toril.keyspace import Key

LOOK_AGAIN = 10.0
"""Seconds after which a job that is waited for is looked at, whatever was heard."""


class Results:
    """Tells those who wait when to look."""

    def __init__(self, redis: Connection) -> None:
        self._redis = redis
        self._waits: dict[Key, list[asyncio.Event]] = {}
        self._rings: Subscription | None = None
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def waiting(self, channel: Key) -> Iterator[asyncio.Event]:
        """An event that is set whenever there may be news of a job."""
        woken = asyncio.Event()
        waits = self._waits.setdefault(channel, [])
        waits.append(woken)
        if self._rings is None:
            self._rings = self._redis.subscribe([channel])
            self._task = asyncio.create_task(self._listen(self._rings))
        else:
            self._rings.add(channel)
        try:
            yield woken
        finally:
            waits.remove(woken)
            if not waits:
                del self._waits[channel]
                if self._rings is not None:
                    self._rings.discard(channel)
            if not self._waits and self._task is not None:
                self._task.cancel()
                self._task = self._rings = None

    async def _listen(self, rings: Subscription) -> None:
        async with rings:
            async for rung in rings:
                for channel in rung:
                    for woken in self._waits.get(channel, ()):
                        woken.set()
