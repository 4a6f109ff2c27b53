"""Processors in one process: the same rules, in memory. ``memory://`` has no server to ask."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager

from toril.aggregate import Aggregate
from toril.connection import Durability
from toril.connection.durability import Level
from toril.events.event import AnyNewEvent
from toril.events.stores import Appended, AppendsEach
from toril.events.stream import EventStream
from toril.log.entry import START, Entry, Partition, Position, Positions
from toril.log.errors import ReaderFenced, ReaderGone, WrongPosition
from toril.runtime.backend import (
    Arrived,
    Begin,
    Change,
    Done,
    Generation,
    GenerationError,
    Handed,
    Later,
    Lease,
    Loaded,
    More,
    Park,
    Rebuilt,
    Resume,
    Stage,
    Trouble,
    seen_generation,
)
from toril.runtime.decisions import Decision, decisions_about
from toril.runtime.names import generation_name, split_generation
from toril.stores.memory import MemoryEventStore

ONLY = Partition(1, 0)


class _Reader:
    def __init__(self, position: Position) -> None:
        self.position = position
        self.fence = 0
        self.owner: tuple[str, float] | None = None
        self.commits = 0
        self.deaths = 0
        self.checkpoints: dict[str, tuple[str, int, str, int]] = {}
        """By aggregate: status, the version and the event it is about, and since when (ms)."""
        self.states: dict[str, bytes] = {}
        self.waiting: dict[str, float] = {}
        self.troubles: dict[str, Trouble] = {}
        self.parked: dict[str, list[Entry]] = defaultdict(list)


class MemoryGenerations:
    """A :class:`~toril.runtime.backend.GenerationStore` in one process, where nothing is trimmed."""

    def __init__(self, entries: list[Entry], readers: dict[str, _Reader]) -> None:
        self._entries = entries
        self._readers = readers
        self._loading: dict[str, _Reader] = {}
        self._seen: dict[str, int] = {}
        self._before: dict[str, tuple[int, ...]] = {}
        self._known: dict[tuple[str, int], Generation] = {}

    async def current(self, projection: str) -> int:
        return seen_generation(projection, self._seen, self._known)

    async def seen(self, processors: Sequence[str]) -> tuple[str, ...]:
        return tuple([generation_name(name, await self.current(name)) for name in processors])

    async def all(self) -> tuple[dict[str, int], dict[tuple[str, int], Generation]]:
        return dict(self._seen), dict(self._known)

    async def may_begin(self, processor: str, start: str) -> bool:
        made = self._known.get(split_generation(processor))
        return start != "loaded" if made is None else made.stage == "loaded"

    async def begin(self, projection: str, number: int, made: Generation) -> Generation:
        return self._known.setdefault((projection, number), made)

    async def note(self, projection: str, number: int, made: Generation | None) -> str:
        known = self._known.get((projection, number))
        over = known is not None and known.stage in ("retiring", "retired")
        if known is not None and over and (made is None or made.stage != "retired"):
            return known.stage
        if made is None:
            self._known.pop((projection, number), None)
        else:
            self._known[projection, number] = made
        return ""

    async def before(self, projection: str) -> tuple[int, ...]:
        return self._before.get(projection, ())

    async def see(self, projection: str, number: int, *, back: bool = False) -> str:
        made = self._known.get((projection, number))
        if made is not None and made.stage != "loaded":
            return made.stage
        current, before = await self.current(projection), self._before.get(projection, ())
        if current == number:
            return ""
        if back and before[-1:] != (number,):
            return "other"
        others = tuple(one for one in before if one != number)
        self._before[projection] = others if back or not current else (*others, current)
        self._seen[projection] = number
        return ""

    async def dismiss(self, projection: str, number: int, made: Generation) -> str:
        if await self.current(projection) == number:
            return "current"
        before = self._before.get(projection, ())
        self._before[projection] = tuple(one for one in before if one != number)
        known = self._known.get((projection, number))
        if known is None or known.stage != "retired":
            self._known[projection, number] = made
        return ""

    async def tails(self) -> Positions:
        return {ONLY: self._entries[-1].position if self._entries else START}

    async def hold(self, processor: str) -> None:
        assert processor  # nothing is ever trimmed

    async def reserve(self, processor: str, cut: Positions) -> None:
        at = cut.get(ONLY, START)
        if set(cut) - {ONLY}:
            raise GenerationError(f"the cut names partitions other than {ONLY}, which is the only one")
        if at.ordinal > len(self._entries):
            raise GenerationError(
                f"the cut is in the future: {at}, and the last entry is {len(self._entries)}"
            )
        if processor in self._readers:
            raise GenerationError(
                f"{processor} is a reader of the log already: workers build it from the log"
            )
        self._loading.setdefault(processor, _Reader(at))

    async def place(self, processor: str, batch: Sequence[Rebuilt]) -> list[Arrived]:
        its = self._loading.get(processor)
        if its is None:
            raise ReaderGone("GONE this generation is not being loaded")
        known = {entry.key for entry in self._entries}
        return [self._place(its, one) if one.aggregate.key in known else "gone" for one in batch]

    @staticmethod
    def _place(its: _Reader, one: Rebuilt) -> Arrived:
        key, now = one.aggregate.key, time.time_ns() // 1_000_000
        if one.waiting:
            its.parked[key] += one.entries(ONLY)[len(its.parked[key]) - one.after :]
        if key in its.checkpoints:
            return "there"
        its.checkpoints[key] = ("p", one.version, one.event_id, now)
        if one.state:
            its.states[key] = one.state
        if one.waiting:
            version = one.version + 1
            its.checkpoints[key] = ("n", version, "", now)
            its.waiting[key] = 0.0
            its.troubles[key] = Trouble(status="retry", version=version, event_id="")
        return "placed"

    async def enlist(self, processor: str) -> None:
        if processor not in self._readers:
            self._readers[processor] = self._loading[processor]

    async def release(self, processor: str) -> None:
        self._loading.pop(processor, None)

    async def clear(self, processor: str, progress: Callable[[int], None] | None = None) -> int:
        gone = self._readers.pop(processor, None) or self._loading.get(processor)
        await self.release(processor)
        cleared = 0 if gone is None else len(gone.checkpoints)
        if progress is not None:
            progress(cleared)
        return cleared


class MemoryBackend(AppendsEach):
    """A :class:`~toril.runtime.backend.Backend`, and the :class:`~toril.events.EventStore` it reads from."""

    def __init__(self) -> None:
        self._store = MemoryEventStore()
        self._entries: list[Entry] = []
        self._readers: dict[str, _Reader] = {}
        self._members: dict[str, dict[str, float]] = defaultdict(dict)
        self._paused: set[str] = set()
        self.generations = MemoryGenerations(self._entries, self._readers)
        self._bells: set[asyncio.Event] = set()

    # ------------------------------------------------------------------ the event store

    async def append(
        self,
        aggregate: Aggregate,
        events: Sequence[AnyNewEvent],
        *,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
        durability: Durability | Level | None = None,
    ) -> Appended:
        """As :meth:`EventStore.append`."""
        done = await self._store.append(
            aggregate,
            events,
            expected_version=expected_version,
            idempotency_key=idempotency_key,
            durability=durability,
        )
        if not done.repeated:
            for version, event in enumerate(events, done.first_version):
                ordinal = len(self._entries) + 1
                entry_id = f"{done.recorded_at // 1_000_000}-{ordinal}"
                self._entries.append(Entry(ONLY, entry_id, ordinal, version, aggregate.key, event.to_bytes()))
            self._ring()
        return done

    async def find_append(self, aggregate: Aggregate, idempotency_key: str) -> Appended | None:
        """As :meth:`EventStore.find_append`."""
        return await self._store.find_append(aggregate, idempotency_key)

    async def read(
        self, aggregate: Aggregate, from_version: int = 1, limit: int | None = None
    ) -> EventStream:
        """As :meth:`EventStore.read`."""
        return await self._store.read(aggregate, from_version, limit)

    def _ring(self) -> None:
        for bell in self._bells:
            bell.set()

    # ------------------------------------------------------------------ the backend

    async def partitions(self) -> list[Partition]:
        return [ONLY]

    async def stages(self, processor: str, finished: Collection[Partition]) -> dict[Partition, Stage]:
        assert processor
        assert not finished
        return {ONLY: "open"}

    async def register(self, processor: str, start: str) -> None:
        if processor not in self._readers:
            tail = self._entries[-1].position if self._entries and start == "tail" else START
            self._readers[processor] = _Reader(tail)

    def _reader(self, processor: str) -> _Reader:
        """One that was retired has nothing."""
        return self._readers.get(processor) or _Reader(START)

    async def members(self, processor: str, worker: str, lasts: float) -> list[str]:
        known, now = self._members[processor], time.monotonic()
        known[worker] = now + lasts
        for name in [name for name, until in known.items() if until <= now]:
            del known[name]
        return sorted(known)

    async def take(
        self, processor: str, worker: str, partitions: Iterable[Partition], lasts: float
    ) -> list[Lease]:
        its = self._readers.get(processor)
        if its is None or not list(partitions):
            return []
        now = time.monotonic()
        if its.owner is not None and its.owner[0] != worker:
            if its.owner[1] > now:
                return []
            its.deaths += its.position.ordinal < len(self._entries)
        its.fence += 1
        its.owner = (worker, now + lasts)
        return [Lease(ONLY, worker, its.position, its.fence, len(self._entries), its.commits, its.deaths)]

    async def keep(
        self, processor: str, worker: str, partitions: Iterable[Partition], lasts: float
    ) -> dict[Partition, int]:
        its = self._readers.get(processor)
        if its is None or not list(partitions) or its.owner is None or its.owner[0] != worker:
            return {}
        its.owner = (worker, time.monotonic() + lasts)
        return {ONLY: its.fence}

    async def release(self, processor: str, worker: str, partitions: Iterable[Partition]) -> None:
        its = self._readers.get(processor)
        if its is not None and list(partitions) and its.owner is not None and its.owner[0] == worker:
            its.owner = None

    async def page(self, partition: Partition, after: Position, most: int) -> list[Entry]:
        assert partition == ONLY
        return self._entries[after.ordinal : after.ordinal + most]

    async def load(self, processor: str, partition: Partition, keys: Sequence[str]) -> list[Loaded]:
        assert partition == ONLY
        its = self._reader(processor)
        found = []
        for key in keys:
            status, version, event_id, at = its.checkpoints.get(key, ("", 0, "", 0))
            done = version - 1 if status in ("n", "f") else version
            found.append(Loaded(status, done, its.states.get(key), event_id, at))
        return found

    async def commit(
        self,
        processor: str,
        lease: Lease,
        number: int,
        position: Position,
        changes: Sequence[Change],
        *,
        awaited: bool = False,
    ) -> None:
        its = self._readers.get(processor)
        if its is None:
            raise ReaderGone("GONE this processor is not registered: it was retired")
        if its.fence != lease.fence:
            raise ReaderFenced("FENCED another worker runs this processor here now")
        if position.ordinal > len(self._entries):
            raise WrongPosition("PAST the last entry")
        if number != its.commits + 1:
            raise WrongPosition("NOPLACE the commit does not follow the last one there is")
        for change in changes:
            self._change(its, change)
        its.commits = number
        if position.ordinal > its.position.ordinal:
            its.position = position
            its.deaths = 0
        if awaited:
            self._ring()

    async def hand_on(self, processor: str, partition: Partition, key: str) -> None:
        raise WrongPosition(f"NOPLACE there is no epoch after that of {partition} for {processor}: {key}")

    def _change(self, its: _Reader, change: Change) -> None:
        key = change.aggregate
        status, version, _, _ = its.checkpoints.get(key, ("", 0, "", 0))
        done = version - 1 if status in ("n", "f") else version
        now = time.time_ns() // 1_000_000
        match change:
            case Begin() | Handed():
                pass  # who would die of it takes all of this along, and there is one epoch
            case Done(_, first, last, event_id, state):
                if done >= last:
                    return
                if status == "f" or (status and first != done + 1) or (status == "n" and key in its.waiting):
                    raise WrongPosition("NOPLACE other events of this aggregate were processed")
                its.checkpoints[key] = ("p", last, event_id, now)
                self._keep(its, key, state)
            case Park(_, trouble, due, entries):
                letter = "f" if trouble.status == "failed" else "n"
                its.checkpoints[key] = (letter, trouble.version, trouble.event_id, now)
                its.waiting[key], its.troubles[key] = due, trouble
                its.parked[key] += entries
            case More(_, entries):
                its.parked[key] += entries
                its.waiting.setdefault(key, 0.0)
            case Resume(_, number, event_id, state):
                del its.parked[key][0]
                its.checkpoints[key] = ("p", number, event_id, now)
                its.troubles.pop(key, None)
                self._keep(its, key, state)
                if its.parked[key]:
                    its.waiting[key] = 0.0
                else:
                    its.waiting.pop(key, None)
            case Later(_, trouble, due):
                letter = "f" if trouble.status == "failed" else "n"
                its.checkpoints[key] = (letter, trouble.version, trouble.event_id, now)
                its.waiting[key], its.troubles[key] = due, trouble

    @staticmethod
    def _keep(its: _Reader, key: str, state: bytes | None) -> None:
        if state is not None:
            its.states[key] = state

    async def tail(self, partition: Partition) -> int:
        assert partition == ONLY
        return len(self._entries)

    async def find(self, processor: str, aggregate: Aggregate) -> Loaded | None:
        its = self._readers.get(processor)
        if its is None or aggregate.key not in its.checkpoints:
            return None
        return (await self.load(processor, ONLY, [aggregate.key]))[0]

    async def owner(self, processor: str, partition: Partition) -> str | None:
        assert partition == ONLY
        its = self._readers.get(processor)
        if its is None or its.owner is None or its.owner[1] < time.monotonic():
            return None
        return its.owner[0]

    async def retire(self, processor: str) -> bool:
        return self._readers.pop(processor, None) is not None

    async def positions(self, partition: Partition, processors: Sequence[str]) -> list[Position | None]:
        assert partition == ONLY
        return [self._readers[name].position if name in self._readers else None for name in processors]

    async def parked(self, processor: str, partition: Partition) -> dict[str, float]:
        assert partition == ONLY
        return dict(self._reader(processor).waiting)

    async def parked_among(self, processor: str, partition: Partition, keys: Sequence[str]) -> set[str]:
        assert partition == ONLY
        its = self._readers.get(processor)
        return {key for key in keys if its is not None and key in its.waiting}

    async def parked_entries(self, processor: str, partition: Partition, key: str, most: int) -> list[Entry]:
        assert partition == ONLY
        return self._reader(processor).parked[key][:most]

    async def troubles(
        self, processor: str, partition: Partition, keys: Sequence[str] | None = None
    ) -> dict[str, Trouble]:
        assert partition == ONLY
        found = self._readers[processor].troubles if processor in self._readers else {}
        return {key: its for key, its in found.items() if keys is None or key in keys}

    async def decided(self, aggregate: Aggregate) -> list[tuple[str, Decision]]:
        return await decisions_about(self, aggregate)

    async def paused(self) -> set[str]:
        return set(self._paused)

    async def pause(self, what: str, *, on: bool) -> None:
        (self._paused.add if on else self._paused.discard)(what)

    @asynccontextmanager
    async def listen(self, partitions: Iterable[Partition]) -> AsyncIterator[AsyncIterator[set[Partition]]]:
        bell = asyncio.Event()
        bell.set()

        async def heard() -> AsyncIterator[set[Partition]]:
            while True:
                await bell.wait()
                bell.clear()
                yield set(partitions)

        self._bells.add(bell)
        try:
            yield heard()
        finally:
            self._bells.discard(bell)

    async def now(self) -> int:
        return time.time_ns() // 1_000_000
