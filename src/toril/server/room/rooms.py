"""The rooms that this process serves: found when they are asked for, with a doorkeeper each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from toril.connection import Connection
from toril.errors import TorilError
from toril.keyspace import NAME_RULES
from toril.room import Doorkeeper, NoSuchRoom, Room, RoomExists, Settings, room_names
from toril.server.room.options import RoomOptions
from toril.server.room.pages import Pages, PageView
from toril.server.room.problems import Problem
from toril.server.room.rates import Rates

logger = logging.getLogger("toril.server")

IDLE = 600.0
"""Seconds after which a room that nobody asks for, and nobody is in, needs no doorkeeper here."""
TEND = 60.0
FRESH = 1.0
"""Seconds for which the settings of a room, and what its page shows, are remembered."""


@dataclass(slots=True)
class Kept:
    """A room, and what is remembered of it."""

    room: Room
    stack: AsyncExitStack
    asked: float
    settings: tuple[float, Settings] | None = None
    page: tuple[float, PageView] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Rooms:
    """See the module's text. Entered while the server runs."""

    def __init__(self, redis: Connection, options: RoomOptions) -> None:
        self.redis = redis
        self._options = options
        self._rates = Rates(redis)
        self._pages = Pages(redis)
        self._kept: dict[str, Kept] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let people in, while it is entered."""
        tending = asyncio.create_task(self._tend())
        try:
            yield
        finally:
            tending.cancel()
            await asyncio.gather(tending, return_exceptions=True)
            for kept in list(self._kept.values()):
                await kept.stack.aclose()
            self._kept.clear()

    @property
    def kept(self) -> Sequence[Room]:
        """Those that this process serves."""
        return [kept.room for kept in self._kept.values()]

    def room(self, event: str) -> Room:
        """A room, whether or not it exists; whatever it answers is as durable as was asked for."""
        return Room(self.redis, event, durability=self._options.durability)

    async def get(self, event: str) -> Room:
        """A room that exists, or :class:`NoSuchRoom`."""
        kept = self._kept.get(event)
        if kept is None:
            NAME_RULES["room"].check(event)
            if not await self.room(event).exists():
                raise NoSuchRoom(f"NOROOM there is no room for the event {event!r}")
            kept = await self._keep(event)
        kept.asked = time.monotonic()
        return kept.room

    async def get_or_make(self, event: str, caller: str) -> Room:
        """A room; one that nobody knows is made, where that is allowed."""
        try:
            return await self.get(event)
        except NoSuchRoom:
            if self._options.new_rooms is None:
                raise
        taken = await self._rates.take("make", caller, self._options.making)
        if not taken.allowed:
            wait = taken.wait_ms / 1000
            raise Problem(429, "RATE_LIMITED", "too many new events from one address", retry_after=wait)
        with suppress(RoomExists):  # somebody else was faster
            await self.room(event).create(self._options.new_rooms)
        return await self.get(event)

    async def settings(self, event: str) -> Settings:
        """The settings of a room, as they were a second ago at most."""
        kept = self._kept[event] if event in self._kept else await self._keep((await self.get(event)).name)
        async with kept.lock:
            if kept.settings is None or kept.settings[0] <= time.monotonic():
                kept.settings = (time.monotonic() + FRESH, await kept.room.settings())
        return kept.settings[1]

    # ------------------------------------------------------------------ pages

    async def page(self, event: str) -> PageView:
        """What the page of a room shows, as it was a second ago at most."""
        await self.get(event)
        kept = self._kept[event]
        if kept.page is None or kept.page[0] <= time.monotonic():
            kept.page = (time.monotonic() + FRESH, await self._pages.get(event))
        return kept.page[1]

    async def show(self, event: str, view: PageView) -> None:
        """Change what the page of a room shows."""
        await self._pages.set(event, view)
        if event in self._kept:
            self._kept[event].page = None

    # ------------------------------------------------------------------ inside

    async def _keep(self, event: str) -> Kept:
        if event in self._kept:
            return self._kept[event]
        room, stack = self.room(event), AsyncExitStack()
        kept = self._kept[event] = Kept(room, stack, time.monotonic())
        if self._options.doorkeeper:
            follow = None if self._options.follow is None else self._options.follow(event)
            await stack.enter_async_context(Doorkeeper(room, follow=follow))
        return kept

    async def _tend(self) -> None:
        await self._find()
        while True:
            await asyncio.sleep(TEND)
            for event, kept in list(self._kept.items()):
                if time.monotonic() - kept.asked > IDLE and await _is_quiet(kept.room):
                    del self._kept[event]
                    await kept.stack.aclose()

    async def _find(self) -> None:
        """The rooms there are, which may take a while; those that are asked for meanwhile need not wait."""
        try:
            for name in await room_names(self.redis):
                await self._keep(name)
        except TorilError as problem:
            logger.warning("waiting rooms are served once they are asked for: %s", problem)


async def _is_quiet(room: Room) -> bool:
    try:
        stats = await room.stats()
    except NoSuchRoom:
        return True
    except TorilError:  # nobody answers now; the next look will tell
        return False
    return not any(lane.waiting or lane.active for lane in stats.lanes.values())
