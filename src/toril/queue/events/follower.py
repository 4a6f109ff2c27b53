"""Reading a queue's events, and telling those who wait for some of them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

from toril.connection import OutcomeUnknown, ScriptBusy, Unavailable, Unreachable
from toril.connection.wire import Argument
from toril.errors import TorilError
from toril.queue.events.errors import EventsClosed
from toril.queue.events.event import Event
from toril.queue.events.stream import START, Cursor, Stream, place_text
from toril.queue.store import QueueStore

log = logging.getLogger("toril.queue")

AT_ONCE = 256
"""Entries in one read."""

BLOCK = 5.0
"""Seconds that a read waits for an entry. Then it is seen whether the stream is still the same."""

PAUSE = 1.0
"""Seconds until the next try when a server was away for longer than the connection's patience."""

_PASSING = (Unavailable, Unreachable, OutcomeUnknown, ScriptBusy)


class Wait:
    """Someone who waits for events of one job, or of any."""

    def __init__(self, job_id: str | None, names: Collection[str]) -> None:
        self.job_id = job_id
        self.names = names
        self.seen: list[Event] = []
        self.woken = asyncio.Event()


class Follower:
    """Reads a queue's events in a task of its own, one blocking read at a time, and tells who waits."""

    def __init__(self, store: QueueStore) -> None:
        self.store = store
        self.queue = store.keys.name
        self.cursor = Cursor(START)
        self.batch: Sequence[Event] = ()
        """What was read last."""
        self.turn = 0
        """How many batches were read."""
        self.problem: TorilError | None = None
        """Why it does not read any more."""
        self._waits: dict[str | None, set[Wait]] = {}
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    async def _run(self) -> None:
        try:
            while self._is_wanted():
                await self._read()
        except TorilError as problem:
            self._end(problem)
        except BaseException:
            self._end(EventsClosed(f"the events of queue {self.queue!r} are not followed any more"))
            raise
        else:
            self._end(EventsClosed(f"nobody waits for events of queue {self.queue!r}"))

    async def _read(self) -> None:
        where = ("STREAMS", self.store.keys.events, place_text(self.cursor.place))
        block = ("BLOCK", round(BLOCK * 1000))
        found = await self.fetch("XREAD", "COUNT", AT_ONCE, *block, *where, blocks_for=BLOCK)
        if found is None:
            return
        reply, stream = found
        events = self.cursor.take(reply[0][1] if reply else (), stream, self.queue)
        if events:
            self.batch, self.turn = events, self.turn + 1
            self._tell(events)
        self._pulse()

    async def fetch(self, *read: Argument, blocks_for: float | None = None) -> tuple[Any, Stream] | None:
        """A reply, and the stream just after it; None when they cannot be had now, but perhaps soon."""
        redis = self.store.redis
        try:
            reply = await redis.command(*read, blocks_for=blocks_for, repeatable=True)
            return reply, await Stream.look(self.store)
        except _PASSING as problem:
            log.warning("queue %s: its events cannot be read, trying again: %s", self.queue, problem)
            await asyncio.sleep(PAUSE)
            return None

    def _is_wanted(self) -> bool:
        return True

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            for key in {event.job_id, None}:
                for wait in self._waits.get(key, ()):
                    if event.name in wait.names or not wait.names:
                        wait.seen.append(event)
                        wait.woken.set()

    def _pulse(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _end(self, problem: TorilError) -> None:
        """Nothing more comes."""
        self.problem = self.problem or problem
        self._wake_all()
        self._pulse()

    def check(self) -> None:
        """Raise what has ended it, if anything has."""
        if self.problem is not None:
            raise self.problem.with_traceback(None)  # it is raised for many, who would all add to it

    def _wake_all(self) -> None:
        for wait in chain.from_iterable(self._waits.values()):
            wait.woken.set()

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[None]:
        """Tell someone of the events that come meanwhile."""
        waits = self._waits.setdefault(wait.job_id, set())
        waits.add(wait)
        try:
            yield
        finally:
            waits.discard(wait)
            if not waits:
                del self._waits[wait.job_id]

    async def move(self) -> None:
        """Return after the next read."""
        await self._moved.wait()


class Feed:
    """What one consumer has yet to see. One that does not keep up reads the stream by itself."""

    def __init__(self, follower: Follower, first: Sequence[Event] = ()) -> None:
        self._follower = follower
        self._cursor, self._turn = replace(follower.cursor), follower.turn
        self._page = deque(first)

    async def next(self) -> Event | None:
        """The next event; None when the follower was closed."""
        follower = self._follower
        while not isinstance(follower.problem, EventsClosed):
            if self._page:
                return self._page.popleft()
            follower.check()
            if self._turn == follower.turn:
                await follower.move()
            elif self._turn == follower.turn - 1:
                self._page.extend(follower.batch)
                self._cursor, self._turn = replace(follower.cursor), follower.turn
            else:
                await self._load()
        return None

    async def _load(self) -> None:
        follower, before = self._follower, self._cursor.place
        goal, turn = replace(follower.cursor), follower.turn
        span = (f"({place_text(before)}", place_text(goal.place))
        found = await follower.fetch("XRANGE", follower.store.keys.events, *span, "COUNT", AT_ONCE)
        if found is None:
            return
        entries, stream = found
        if before <= goal.place and (stream.first is None or stream.first > goal.place):
            # What is lost beyond the goal is for the follower to count.
            stream = Stream(None, goal.place, 0, goal.count or 0)
        self._page.extend(self._cursor.take(entries, stream, follower.queue))
        if len(entries) < AT_ONCE and before <= self._cursor.place:
            self._cursor, self._turn = goal, turn
