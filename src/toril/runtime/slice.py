"""One partition that a worker has for a processor: what was read, what is done, what is to be committed."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from toril.events.projection import ProjectionState
from toril.log.entry import Entry, Position
from toril.runtime.backend import DUE_NEVER, Change, Done, Lease, More, Park, Resume
from toril.runtime.fair import Turns

CAREFUL_AFTER = 2
"""Workers that died in a row, without having got anywhere, after which events run one by one."""

ALONE = 32
"""Events that run alone then. With each so many that are done, twice as many run at a time."""

ALONE_UNTIL = 9 * ALONE
"""Events done after which as many run at a time as usual."""

STRIKES = 3
"""Workers that died in a row while one event was running alone, after which that event is parked."""

EVERYONE = 1 << 30

BYTES_AT_ONCE = 4 * 1024 * 1024
"""Bytes in one commit, passed by one change at most."""


class Slot:
    """One entry that was read, until it and all before it are done."""

    __slots__ = ("done", "entry")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.done = False


class Chain:
    """The events of one aggregate that were read and are not done, in order."""

    __slots__ = ("alone_until", "busy", "key", "part", "slots", "tenant")

    def __init__(self, key: str, part: Slice) -> None:
        self.key = key
        self.tenant = key.partition(":")[0]
        self.part = part
        self.slots: deque[Slot] = deque()
        self.busy = False
        """It runs, or stands in line."""
        self.alone_until = 0
        """Up to this version its events could not be handled together, and go one by one."""

    def give_up(self) -> list[Slot]:
        """Take all its events away from it."""
        slots = list(self.slots)
        self.slots.clear()
        return slots

    def rest(self) -> None:
        """It neither runs nor stands in line; where it has no events, it is forgotten."""
        self.busy = False
        if not self.slots and self.part.chains.get(self.key) is self:
            del self.part.chains[self.key]


class Slice:
    """See the module's text."""

    def __init__(self, lease: Lease, read_ahead: int = 0) -> None:
        self.lease = lease
        self.partition = lease.partition
        self.position: Position = lease.position
        """Up to where everything is committed."""
        self.commits = lease.commits
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
        """Events that run."""
        self.states: dict[str, ProjectionState[Any]] = {}
        """Projections: states at hand, as they are after all that was noted."""
        self._deciding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.known: dict[str, int] = {}
        """Aggregates whose checkpoint was looked at, and up to which version others processed them."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.committer: asyncio.Task[None] | None = None
        self.pending: deque[tuple[Change, Sequence[Slot], asyncio.Future[None] | None]] = deque()
        self.under_way = 0
        """Changes in the commit that is being made."""
        self.to_commit = asyncio.Event()
        self.idle = asyncio.Event()
        """Nothing is to be committed, and no commit is under way."""
        self.idle.set()
        self.news = 1
        """Counts the bells; 0 when all that was heard of was read."""
        self.draining = False
        self.dropped = False
        self.over = False
        """All its events are processed or parked, and no more will come: what is parked is handed on."""
        self.careful_until = 0
        """Up to this ordinal few events run at a time: workers may have died of one. See `room`."""
        if lease.deaths >= CAREFUL_AFTER:
            self.careful_until = min(lease.tail, lease.position.ordinal + min(read_ahead, ALONE_UNTIL))
        strikes = lease.strikes
        self.culprit = (
            (strikes.aggregate, strikes.version)
            if strikes is not None and strikes.deaths >= STRIKES
            else None
        )
        """The event that workers die of, where it was found."""
        self.keep_until = 0.0
        """When the lease ends, by our own clock."""

    @property
    def careful(self) -> bool:
        """Whether few events run at a time."""
        return self.position.ordinal < self.careful_until

    @property
    def room(self) -> int:
        """How many aggregates may run at a time, and how many events of each.

        Where workers died it is one, each event begun on record, so that the one they die of is found. Most
        often it is not an event that kills workers: the more are survived, the more run. If one does kill,
        the next worker begins with one again, from where this one got to.
        """
        if not self.careful:
            return EVERYONE
        return 1 << (self.position.ordinal - self.lease.position.ordinal) // ALONE

    def is_ours(self) -> bool:
        """Whether something new may be begun."""
        return not (self.dropped or self.draining)

    def deciding(self, key: str) -> asyncio.Lock:
        """Held while a decision about an aggregate is carried out: one after the other, in their order."""
        return self._deciding.setdefault(key, asyncio.Lock())

    def park(self, key: str, due: float) -> None:
        """Events of this aggregate are parked until then."""
        self.parked[key] = due
        if due != DUE_NEVER:
            heapq.heappush(self.due, (due, key))

    def due_now(self, now: float) -> list[str]:
        """The aggregates whose parked events are due and not being tried."""
        found, busy = [], []
        while self.due and self.due[0][0] <= now:
            due, key = heapq.heappop(self.due)
            if self.parked.get(key) == due:
                if key in self.retrying:  # the attempt before is just ending
                    busy.append((due, key))
                else:
                    found.append(key)
        for one in busy:
            heapq.heappush(self.due, one)
        return found

    def note(self, change: Change, slots: Sequence[Slot] = ()) -> None:
        """Have a change committed, and with it the slots done."""
        self._put(change, slots, None)

    async def noted(self, change: Change, slots: Sequence[Slot] = ()) -> None:
        """The same, and wait until it is."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(change, slots, done)
        await done

    def _put(self, change: Change, slots: Sequence[Slot], done: asyncio.Future[None] | None) -> None:
        if isinstance(change, (Park, More)):
            self.mores[change.aggregate] += 1
        self.pending.append((change, slots, done))
        self.idle.clear()
        self.to_commit.set()

    def take(self, most: int) -> tuple[list[Change], list[asyncio.Future[None]], Position]:
        """What is to be committed now: changes, who waits for them, and the position they lead to."""
        changes: list[Change] = []
        waiting: list[asyncio.Future[None]] = []
        last_of: dict[str, int] = {}
        size = 0
        while self.pending and len(changes) < most and size < BYTES_AT_ONCE:
            change, slots, done = self.pending.popleft()
            size += _size(change)
            for slot in slots:
                slot.done = True
            if done is not None:
                waiting.append(done)
            place = last_of.get(change.aggregate)
            before = changes[place] if place is not None else None
            if isinstance(change, Done) and isinstance(before, Done) and before.last + 1 == change.first:
                # Events of one aggregate that follow each other are one change.
                assert place is not None
                changes[place] = Done(
                    change.aggregate, before.first, change.last, change.event_id, change.state
                )
            else:
                last_of[change.aggregate] = len(changes)
                changes.append(change)
        self.under_way = len(changes)
        return changes, waiting, self._reached()

    def _reached(self) -> Position:
        """Up to where everything is done."""
        window, last = self.window, None
        while window and window[0].done:
            last = window.popleft()
        return self.position if last is None else last.entry.position

    def committed(self, changes: Sequence[Change], position: Position) -> None:
        """What was taken is committed."""
        self.commits += 1
        self.under_way = 0
        self.position = position
        for change in changes:
            if isinstance(change, (Park, More)):
                self.mores[change.aggregate] -= 1
                if not self.mores[change.aggregate]:
                    del self.mores[change.aggregate]

    def drop(self) -> None:
        """It is no longer ours: nothing more is begun, and nothing more is committed."""
        self.dropped = True
        self.turns.clear()
        self.chains.clear()
        for task in (*self.tasks, self.committer):
            if task is not None:
                task.cancel()
        while self.pending:
            _, _, done = self.pending.popleft()
            if done is not None and not done.done():
                done.cancel()
        self.idle.set()
        self.to_commit.set()


def _size(change: Change) -> int:
    if isinstance(change, Done):  # by far the most
        return len(change.state or b"")
    match change:
        case Park(entries=entries) | More(entries=entries):
            return sum(len(entry.body) for entry in entries)
        case Resume(state=state):
            return len(state or b"")
        case _:
            return 0
