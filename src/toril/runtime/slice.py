"""One partition that a worker has for a processor: what was read, what is done, what is to be committed."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toril.events.projection import ProjectionState
from toril.log.entry import Entry, Position
from toril.runtime.backend import DUE_NEVER, Change, Done, Lease, More
from toril.runtime.fair import Turns


class Slot:
    """One entry that was read, until it and all before it are done."""

    __slots__ = ("done", "entry")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.done = False


class Chain:
    """The events of one aggregate that were read and are not done, in order."""

    __slots__ = ("busy", "key", "part", "slots", "tenant")

    def __init__(self, key: str, part: Slice) -> None:
        self.key = key
        self.tenant = key.partition(":")[0]
        self.part = part
        self.slots: deque[Slot] = deque()
        self.busy = False
        """It runs, or stands in line."""


class Slice:
    """See the module's text."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.partition = lease.partition
        self.position: Position = lease.position
        """Up to where everything is committed."""
        self.at: Position = lease.position
        """Up to where it was read."""
        self.window: deque[Slot] = deque()
        self.chains: dict[str, Chain] = {}
        self.turns: Turns[Chain] = Turns()
        self.parked: dict[str, float] = {}
        """Aggregates with parked events, and when they are due (ms)."""
        self.due: list[tuple[float, str]] = []
        """The same as a heap; what is no longer so in it is passed over."""
        self.retrying: set[str] = set()
        self.mores: Counter[str] = Counter()
        """Aggregates with events on their way to be parked."""
        self.running = 0
        """Handlers that run."""
        self.states: dict[str, ProjectionState[Any]] = {}
        """Projections: states at hand, as they are after all that was noted."""
        self.known: dict[str, int] = {}
        """Aggregates whose checkpoint was looked at, and up to which version others processed them."""
        self.suspects: dict[str, int] = {}
        """Aggregates with an event that was running when its worker died, one by one: its version."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.pending: deque[tuple[Change, Sequence[Slot], asyncio.Future[bool] | None]] = deque()
        self.to_commit = asyncio.Event()
        self.idle = asyncio.Event()
        """Nothing is to be committed, and no commit is under way."""
        self.idle.set()
        self.news = 1
        """Counts the bells; 0 when all that was heard of was read."""
        self.draining = False
        self.dropped = False
        self.careful = lease.deaths >= 3
        """Workers died here without getting anywhere: one event at a time, and each begins on record."""
        self.keep_until = 0.0
        """When the lease ends, by our own clock."""

    def is_ours(self) -> bool:
        """Whether something new may be begun."""
        return not (self.dropped or self.draining)

    def park(self, key: str, due: float) -> None:
        """Events of this aggregate are parked until then."""
        self.parked[key] = due
        if due != DUE_NEVER:
            heapq.heappush(self.due, (due, key))

    def due_now(self, now: float) -> list[str]:
        """The aggregates whose parked events are due and not being tried."""
        found = []
        while self.due and self.due[0][0] <= now:
            due, key = heapq.heappop(self.due)
            if self.parked.get(key) == due and key not in self.retrying:
                found.append(key)
        return found

    def note(self, change: Change, slots: Sequence[Slot] = ()) -> None:
        """Have a change committed, and with it the slots done."""
        self._put(change, slots, None)

    async def noted(self, change: Change, slots: Sequence[Slot] = ()) -> bool:
        """The same, and wait until it is; whether it was new."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._put(change, slots, done)
        return await done

    def _put(self, change: Change, slots: Sequence[Slot], done: asyncio.Future[bool] | None) -> None:
        if isinstance(change, More):
            self.mores[change.aggregate] += 1
        self.pending.append((change, slots, done))
        self.idle.clear()
        self.to_commit.set()

    def take(self, most: int) -> tuple[list[Change], list[list[asyncio.Future[bool]]], Position]:
        """What is to be committed now: changes, who waits for each, and the position they lead to."""
        changes: list[Change] = []
        waiting: list[list[asyncio.Future[bool]]] = []
        last_of: dict[str, int] = {}
        while self.pending and len(changes) < most:
            change, slots, done = self.pending.popleft()
            for slot in slots:
                slot.done = True
            place = last_of.get(change.aggregate)
            before = changes[place] if place is not None else None
            if isinstance(change, Done) and isinstance(before, Done) and before.last + 1 == change.first:
                # Events of one aggregate that follow each other are one change.
                assert place is not None
                changes[place] = replace(change, first=before.first)
            else:
                place = last_of[change.aggregate] = len(changes)
                changes.append(change)
                waiting.append([])
            if done is not None:
                waiting[place].append(done)
        return changes, waiting, self.reached()

    def reached(self) -> Position:
        """Up to where everything is done."""
        position = self.position
        while self.window and self.window[0].done:
            position = self.window.popleft().entry.position
        return position

    def drop(self) -> None:
        """It is no longer ours: nothing more is begun, and nothing more is committed."""
        self.dropped = True
        self.turns.clear()
        self.chains.clear()
        for task in self.tasks:
            task.cancel()
        while self.pending:
            _, _, done = self.pending.popleft()
            if done is not None and not done.done():
                done.cancel()
        self.idle.set()
        self.to_commit.set()
