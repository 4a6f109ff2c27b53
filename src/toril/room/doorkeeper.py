"""Whoever lets people in: a task that any number of processes may run for the same room."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from types import TracebackType
from typing import Self

from toril.errors import InvalidValue, TorilError
from toril.room.errors import NoSuchRoom
from toril.room.load import Follow
from toril.room.room import Room

LOG = logging.getLogger("toril.room")


class Doorkeeper:
    """Lets people into a room while it is entered, and makes the rate follow a load.

    ::

        async with Doorkeeper(room):
            ...

    All that counts is in Redis, so several of them let in no more than one. It goes on through failovers, and
    while the room does not exist.
    """

    def __init__(self, room: Room, *, every: float = 0.25, follow: Follow | None = None) -> None:
        if every <= 0:
            raise InvalidValue("every", every, "a time in seconds, more than 0")
        self.room = room
        self.every = every
        self.follow = follow
        self.ticks = 0
        """How often it has looked."""
        self._name = secrets.token_hex(8)
        self._followed_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name=f"doorkeeper of {self.room.name}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.once()
            except NoSuchRoom:
                pass
            except TorilError as problem:
                LOG.warning("room %s: nobody was let in: %s", self.room.name, problem)
            self.ticks += 1
            await asyncio.sleep(self.every * random.uniform(0.9, 1.1))

    async def once(self) -> None:
        """One look: set the rate, let people in."""
        if self.follow is not None and time.monotonic() - self._followed_at >= self.follow.every:
            self._followed_at = time.monotonic()
            if await self._leads(self.follow):
                await self._set_rate(self.follow)
        await self.room.tick()

    async def _set_rate(self, follow: Follow) -> None:
        try:
            load = await follow.signal.load()
        except Exception:  # whatever a signal does, people are let in, at the rate there was
            LOG.exception("room %s: the load is not known", self.room.name)
        else:
            await self.room.set_rate(follow.rate(load), follow.lane)

    async def _leads(self, follow: Follow) -> bool:
        """Whether this one sets the rate: one of all that could does, for as long as it is there."""
        redis, key, lasts = self.room.redis, self.room.keys.follower, round(follow.every * 4000)
        took = await redis.command("SET", key, self._name, "NX", "PX", lasts, repeatable=True)
        if took is not None:
            return True
        if await redis.command("GET", key) != self._name.encode():
            return False
        await redis.command("SET", key, self._name, "XX", "PX", lasts, repeatable=True)
        return True
