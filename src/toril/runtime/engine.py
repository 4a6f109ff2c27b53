"""The engine of one processor in one worker.

It holds leases on partitions, reads ahead in each (bounded), lets tenants take turns, keeps the events of an
aggregate in order, parks what fails, and commits what is done: checkpoints, states and the position of a
partition in one step. A worker that lost a lease can commit nothing, whatever it still does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from toril.connection.errors import ConnectionFailed, OutcomeUnknown
from toril.errors import InvalidValue, TorilError
from toril.events.errors import VersionConflict, is_retryable, retry_after
from toril.events.event import AnyEvent
from toril.events.projection import ProjectionState
from toril.log.entry import Entry, Partition
from toril.log.errors import LogError, ReaderFenced, ReaderGone
from toril.runtime.backend import (
    DUE_NEVER,
    Backend,
    Begin,
    Done,
    Later,
    Lease,
    More,
    Park,
    Resume,
    Trouble,
)
from toril.runtime.decisions import Decision, decision_of
from toril.runtime.fair import Turns
from toril.runtime.slice import Chain, Slice, Slot
from toril.runtime.work import HandlerWork, ProjectionWork, Work

logger = logging.getLogger("toril.runtime")

PAGE = 500
"""Entries read in one call."""

COMMIT_AT_ONCE = 200
"""Changes in one commit."""

CHAINS_AT_ONCE = 200
"""Aggregates that a projection takes in one go."""

EVENTS_AT_ONCE = 500
"""Events of one aggregate that a projection takes in one go."""

LOOK_ANYWAY = 1.0
"""Seconds after which partitions are looked at though no bell was heard."""

WAIT_FOR_OTHERS = 1.0
"""Seconds after which an event is looked at again that waits for another processor, or for a tenant."""

STATES_KEPT = 20_000
"""States that a projection keeps at hand in one worker."""

LONGEST_ERROR = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How a worker runs its processors."""

    lease: float = 10.0
    """Seconds that a partition is a worker's without being renewed."""
    read_ahead: int = 2000
    """Entries read ahead in each partition: within these, tenants take turns."""
    grace: float = 20.0
    """Seconds that handlers have to end when a partition is given back."""

    def __post_init__(self) -> None:
        for name, value, least in (("lease", self.lease, 0.1), ("grace", self.grace, 0.0)):
            if value < least:
                raise InvalidValue(name, value, f"at least {least:g} seconds")
        if self.read_ahead < 1:
            raise InvalidValue("read_ahead", self.read_ahead, "at least 1 entry")


class Counts:
    """What an engine has done so far."""

    def __init__(self) -> None:
        self.processed = 0
        self.retried = 0
        self.failed = 0
        self.parked = 0
        self.commits = 0
        self.leases_lost = 0


class Engine:
    """See the module's text."""

    def __init__(self, backend: Backend, work: Work, worker: str, options: EngineOptions) -> None:
        self.work = work
        self.counts = Counts()
        self.slices: dict[Partition, Slice] = {}
        self._backend = backend
        self._worker = worker
        self._options = options
        self._ready: set[Partition] = set()
        self._paused: set[str] = set()
        self._turns: Turns[Chain] = Turns()
        self._free = asyncio.Semaphore(work.concurrency)
        self._wake_fetch = asyncio.Event()
        self._wake_dispatch = asyncio.Event()
        self._clock = 0.0
        """The server's milliseconds, less our own."""
        self._stopping = False

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        """Work until :meth:`stop`; cancelled, it leaves at once and the leases run out."""
        processor = self.work.processor
        await self._patiently(lambda: self._backend.register(processor, self.work.start))
        loops = [self._keep(), self._listen(), self._fetch(), self._retry()]
        loops.append(self._project() if isinstance(self.work, ProjectionWork) else self._dispatch())
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for part in list(self.slices.values()):
                self._drop(part)

    async def stop(self) -> None:
        """Give everything back: what runs may end within the grace time, nothing new is begun."""
        self._stopping = True
        await asyncio.gather(*(self._give_back(part) for part in list(self.slices.values())))
        with suppress(ConnectionFailed):
            await self._backend.members(self.work.processor, self._worker, 0)

    async def _patiently(self, call: Any) -> Any:
        """Through outages of the server."""
        pause = 0.05
        while True:
            try:
                return await call()
            except (ConnectionFailed, OutcomeUnknown) as problem:
                logger.warning("%s: %s", self.work.processor, problem)
                await asyncio.sleep(pause * (0.5 + random.random() / 2))
                pause = min(pause * 2, 1.0)

    # ------------------------------------------------------------------ leases

    async def _keep(self) -> None:
        while not self._stopping:
            try:
                await self._balance()
            except (ConnectionFailed, OutcomeUnknown) as problem:
                logger.warning("%s: leases could not be renewed: %s", self.work.processor, problem)
            now = time.monotonic()
            for part in list(self.slices.values()):
                if now > part.keep_until:
                    logger.warning("%s: lease on %s ran out", self.work.processor, part.partition)
                    self.counts.leases_lost += 1
                    self._drop(part)
            await asyncio.sleep(self._options.lease / 5 * (0.75 + random.random() / 2))

    async def _balance(self) -> None:
        """Renew what we have, give back what is more than our share, take what is less."""
        processor, lasts = self.work.processor, self._options.lease
        self._clock = await self._backend.now() - time.monotonic() * 1000
        self._paused = await self._backend.paused()
        members = await self._backend.members(processor, self._worker, lasts)
        partitions = [one for one in await self._backend.partitions() if await self._is_ready(one)]
        if await self._lacks_registration(partitions):
            await self._backend.register(processor, self.work.start)
        asked_at = time.monotonic()
        mine = await self._backend.lease(processor, self._worker, list(self.slices), lasts)
        for partition, part in list(self.slices.items()):
            lease = mine.get(partition)
            if lease is None or lease.fence != part.lease.fence:
                self.counts.leases_lost += 1
                self._drop(part)
            else:
                part.keep_until = asked_at + lasts
        place = members.index(self._worker) if self._worker in members else 0
        share = len(partitions) // len(members) + (place < len(partitions) % len(members))
        held = [part for part in self.slices.values() if not part.draining]
        for part in sorted(held, key=lambda one: one.partition, reverse=True)[: max(len(held) - share, 0)]:
            part.draining = True
            asyncio.create_task(self._give_back(part)).add_done_callback(_told)
        free = [one for one in partitions if one not in self.slices]
        random.shuffle(free)
        wanted = share - len(held)
        while wanted > 0 and free and not self._stopping:
            some, free = free[:wanted], free[wanted:]
            asked_at = time.monotonic()
            taken = await self._backend.lease(processor, self._worker, some, lasts)
            wanted -= len(taken)
            for lease in taken.values():
                await self._take(lease, asked_at + lasts)

    async def _lacks_registration(self, partitions: Sequence[Partition]) -> bool:
        """Whether an epoch has begun that the processor is not registered in."""
        new = [one for one in partitions if one not in self._ready]
        self._ready.update(new)
        return bool(new)

    async def _is_ready(self, partition: Partition) -> bool:
        return partition in self._ready or await self._backend.ready(self.work.processor, partition)

    async def _take(self, lease: Lease, keep_until: float) -> None:
        part = Slice(lease)
        part.keep_until = keep_until
        for key, due in (await self._backend.parked(self.work.processor, lease.partition)).items():
            part.park(key, due)
        if part.careful:
            logger.warning(
                "%s: %d workers died over %s; its events run one by one",
                self.work.processor,
                lease.deaths,
                lease.partition,
            )
        self.slices[lease.partition] = part
        committer = asyncio.create_task(self._commit(part), name="commit")
        committer.add_done_callback(_told)
        part.tasks.add(committer)
        self._wake_fetch.set()

    def _drop(self, part: Slice) -> None:
        part.drop()
        if self.slices.get(part.partition) is part:
            del self.slices[part.partition]

    async def _give_back(self, part: Slice) -> None:
        part.draining = True
        part.turns.clear()
        running = [task for task in part.tasks if task is not self._committer(part)]
        if running:
            await asyncio.wait(running, timeout=self._options.grace)
        with suppress(TimeoutError):
            await asyncio.wait_for(part.idle.wait(), self._options.grace)
        if not part.dropped:
            self._drop(part)
            with suppress(ConnectionFailed, OutcomeUnknown):
                await self._backend.release(self.work.processor, self._worker, [part.partition])

    @staticmethod
    def _committer(part: Slice) -> asyncio.Task[None] | None:
        return next((task for task in part.tasks if task.get_name() == "commit"), None)

    # ------------------------------------------------------------------ reading

    async def _listen(self) -> None:
        while True:
            partitions = await self._patiently(self._backend.partitions)
            with suppress(ConnectionFailed):
                async with self._backend.listen(partitions) as heard:
                    await self._hear(heard, len(partitions))
            await asyncio.sleep(0.05)

    async def _hear(self, heard: AsyncIterator[set[Partition]], known: int) -> None:
        async for rung in heard:
            for partition in rung:
                part = self.slices.get(partition)
                if part is not None:
                    part.news += 1
            self._wake_fetch.set()
            if len(await self._backend.partitions()) != known:
                return

    async def _fetch(self) -> None:
        looked = time.monotonic()
        while True:
            self._wake_fetch.clear()
            busy = False
            for part in list(self.slices.values()):
                if part.news and not part.draining and len(part.window) < self._options.read_ahead:
                    try:
                        busy = await self._read(part) or busy
                    except (ConnectionFailed, OutcomeUnknown) as problem:
                        logger.warning("%s: %s", self.work.processor, problem)
                    except LogError:
                        logger.exception("%s stops with %s", self.work.processor, part.partition)
                        self._drop(part)
            if busy:
                continue
            left = LOOK_ANYWAY - (time.monotonic() - looked)
            if left > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake_fetch.wait(), left)
            else:
                looked = time.monotonic()
                for part in self.slices.values():
                    part.news += 1

    async def _read(self, part: Slice) -> bool:
        """Read on in a partition; whether there may be more."""
        heard = part.news
        room = min(PAGE, self._options.read_ahead - len(part.window))
        if self.work.depends_on:
            others = await self._backend.positions(part.partition, self.work.depends_on)
            reached = min(0 if other is None else other.ordinal for other in others)
            room = min(room, reached - part.at.ordinal)
        page = await self._backend.page(part.partition, part.at, room) if room > 0 else []
        if not part.is_ours():
            return False
        if page:
            blocked = await self._blocked(part, page)
            await self._look_at_checkpoints(part, page)
            if not part.is_ours():
                return False
            part.at = page[-1].position
            for entry in page:
                self._feed(part, entry, blocked)
            part.to_commit.set()
            self._wake_dispatch.set()
        if len(page) < room or room <= 0:
            if part.news == heard:
                part.news = 0
            return False
        return True

    async def _blocked(self, part: Slice, page: Sequence[Entry]) -> set[str]:
        """Aggregates whose events a processor that ours depends on has parked."""
        blocked: set[str] = set()
        for other in self.work.depends_on:
            keys = list({entry.key for entry in page if entry.key})
            blocked |= await self._backend.parked_among(other, part.partition, keys)
        return blocked

    async def _look_at_checkpoints(self, part: Slice, page: Sequence[Entry]) -> None:
        """What one before us has processed already is passed over."""
        first_seen = {
            entry.key: entry
            for entry in reversed(page)
            if self._is_ours(entry)
            and entry.key not in part.known
            and (entry.ordinal <= part.lease.tail or part.partition.epoch > 1)
        }
        if not first_seen:
            return
        keys = list(first_seen)
        loaded = await self._backend.load(self.work.processor, part.partition, keys)
        for key, its in zip(keys, loaded, strict=True):
            part.known[key] = its.version
            if its.status == "n" and key not in part.parked:
                part.suspects[key] = its.version + 1

    def _is_ours(self, entry: Entry) -> bool:
        return not entry.erased and entry.key.split(":", 2)[1] == self.work.aggregate_type

    def _feed(self, part: Slice, entry: Entry, blocked: set[str]) -> None:
        """Give an entry its place: passed over, parked, or in the chain of its aggregate."""
        slot = Slot(entry)
        part.window.append(slot)
        key = entry.key
        if not self._is_ours(entry):
            slot.done = True
            found = None if entry.erased else decision_of(entry)
            if found is not None and found[1].processor == self.work.processor:
                slot.done = False
                self._spawn(part, self._carry_out(part, slot, *found))
        elif entry.version <= part.known.get(key, 0):
            slot.done = True
        elif key in part.parked:
            part.note(More(key, [entry]), [slot])
        elif part.suspects.get(key) == entry.version:
            error = f"{part.lease.deaths} workers died while this event was processed"
            self._park(part, [slot], self._trouble(entry, "failed", part.lease.deaths, error), DUE_NEVER)
        elif key in blocked:
            self._park(part, [slot], self._trouble(entry, "waits"), self._due(WAIT_FOR_OTHERS))
        elif f"tenant {key.partition(':')[0]}" in self._paused:
            self._park(part, [slot], self._trouble(entry, "paused"), self._due(WAIT_FOR_OTHERS))
        else:
            chain = part.chains.get(key)
            if chain is None:
                chain = part.chains[key] = Chain(key, part)
            chain.slots.append(slot)
            if not chain.busy:
                chain.busy = True
                self._stand_in_line(chain)

    # ------------------------------------------------------------------ processing: handlers

    async def _dispatch(self) -> None:
        """Run handlers: tenants take turns, over all partitions."""
        while True:
            await self._free.acquire()
            chain = await self._next_chain()
            self._spawn(chain.part, self._handle_one(chain))

    async def _next_chain(self) -> Chain:
        while True:
            self._wake_dispatch.clear()
            if f"processor {self.work.processor}" not in self._paused:
                chain = self._take_turn()
                if chain is not None:
                    return chain
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake_dispatch.wait(), LOOK_ANYWAY)

    def _take_turn(self) -> Chain | None:
        """The next aggregate, of the tenant whose turn it is, in whatever partition."""
        held_up: list[Chain] = []
        found: Chain | None = None
        while self._turns and found is None:
            chain = self._turns.take()
            if chain.part.careful and chain.part.running:
                held_up.append(chain)
            elif chain.part.is_ours():
                found = chain
        for chain in held_up:
            self._turns.put(chain.tenant, chain)
        return found

    async def _handle_one(self, chain: Chain) -> None:
        part, slot = chain.part, chain.slots[0]
        assert isinstance(self.work, HandlerWork)
        part.running += 1
        try:
            event = self.work.event(slot.entry)
            if part.careful:
                await part.noted(Begin(chain.key, event.version, event.id))
            await self.work.handle(event, 1)
        except asyncio.CancelledError:
            raise
        except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
            slots = list(chain.slots)
            chain.slots.clear()
            self._park_failed(part, slots, problem, 1)
        else:
            chain.slots.popleft()
            version = event.version
            part.note(Done(chain.key, version, version, event.id), [slot])
            self.counts.processed += 1
        finally:
            part.running -= 1
            self._free.release()
            self._line_up(chain)

    def _stand_in_line(self, chain: Chain) -> None:
        """Handlers have one line for all partitions, projections one for each."""
        line = chain.part.turns if isinstance(self.work, ProjectionWork) else self._turns
        line.put(chain.tenant, chain)

    def _line_up(self, chain: Chain) -> None:
        """A chain that has more goes to the end of its line."""
        part = chain.part
        if chain.slots and part.is_ours():
            self._stand_in_line(chain)
        else:
            chain.busy = False
            if not chain.slots and part.chains.get(chain.key) is chain:
                del part.chains[chain.key]
        self._wake_dispatch.set()
        if len(part.window) < self._options.read_ahead:
            self._wake_fetch.set()

    # ------------------------------------------------------------------ processing: projections

    async def _project(self) -> None:
        """Fold events: some aggregates of a partition in one go, partitions and tenants in turns."""
        assert isinstance(self.work, ProjectionWork)
        while True:
            self._wake_dispatch.clear()
            worked = False
            paused = f"processor {self.work.processor}" in self._paused
            for part in list(self.slices.values()):
                if part.turns and not part.draining and not paused:
                    chains: list[Chain] = []
                    while part.turns and len(chains) < CHAINS_AT_ONCE:
                        chains.append(part.turns.take())
                    with self.work.updating(len(chains)):
                        await self._fold(part, chains)
                    worked = True
                    await asyncio.sleep(0)
            if not worked:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake_dispatch.wait(), LOOK_ANYWAY)

    async def _fold(self, part: Slice, chains: Sequence[Chain]) -> None:
        """Load, apply, note. What was applied is not applied again: only the ends wait for servers."""
        work = self.work
        assert isinstance(work, ProjectionWork)
        await self._patiently(lambda: self._load_states(part, [chain.key for chain in chains]))
        if part.dropped:
            return
        for chain in chains:
            slots = [chain.slots[place] for place in range(min(len(chain.slots), EVENTS_AT_ONCE))]
            events, problem = self._apply(part, chain.key, slots)
            if events:
                try:
                    state = await self._kept(chain.key, part.states[chain.key])
                except VersionConflict:
                    logger.warning("%s: another worker has stored a state", work.processor)
                    self._drop(part)
                    return
                done = Done(chain.key, events[0].version, events[-1].version, events[-1].id, state)
                part.note(done, slots[: len(events)])
                self.counts.processed += len(events)
                for _ in events:
                    chain.slots.popleft()
            if problem is not None:
                failed = list(chain.slots)
                chain.slots.clear()
                self._park_failed(part, failed, problem, 1)
            self._line_up(chain)
        while len(part.states) > STATES_KEPT:
            del part.states[next(iter(part.states))]

    async def _load_states(self, part: Slice, keys: Sequence[str]) -> None:
        assert isinstance(self.work, ProjectionWork)
        missing = [key for key in keys if key not in part.states]
        if not missing:
            return
        loaded = await self._backend.load(self.work.processor, part.partition, missing)
        for key, its in zip(missing, loaded, strict=True):
            part.states[key] = await self.work.load(key, its.version, its.state)

    def _apply(self, part: Slice, key: str, slots: Sequence[Slot]) -> tuple[list[AnyEvent], Exception | None]:
        """Apply events to the state at hand, up to the first that cannot be; the events, and why not."""
        assert isinstance(self.work, ProjectionWork)
        applied: list[AnyEvent] = []
        at = part.states.pop(key)
        problem: Exception | None = None
        for slot in slots:
            try:
                event = self.work.event(slot.entry)
                at = self.work.apply(at, event)
            except Exception as failed:  # noqa: BLE001 - whatever it is, it belongs to this event
                problem = failed
                break
            applied.append(event)
        part.states[key] = at  # as the one that was used last
        return applied, problem

    async def _kept(self, key: str, at: ProjectionState[Any]) -> bytes | None:
        """The state for the commit; where it has a store of its own, it is kept there before."""
        work = self.work
        assert isinstance(work, ProjectionWork)
        if work.store is None:
            return work.projection.encode(at.state)
        await self._patiently(lambda: work.save(key, at))
        return None

    # ------------------------------------------------------------------ what fails

    def _trouble(
        self, entry: Entry, status: str, attempts: int = 0, error: str = "", before: Trouble | None = None
    ) -> Trouble:
        now = round(self._due(0))
        try:
            event = self.work.event(entry)
            event_id, event_type = event.id, event.type
        except Exception:  # noqa: BLE001 - it may be that it cannot be read at all
            event_id, event_type = entry.id, ""
        return Trouble(
            status=status,
            version=entry.version,
            event_id=event_id,
            event_type=event_type,
            attempts=attempts,
            error=error[:LONGEST_ERROR],
            first_at=before.first_at if before is not None and before.version == entry.version else now,
            last_at=now,
        )

    def _due(self, seconds: float) -> float:
        """The server's milliseconds, so many seconds from now."""
        return self._clock + (time.monotonic() + seconds) * 1000

    def _after_failure(
        self, entry: Entry, problem: Exception, attempt: int, before: Trouble | None = None
    ) -> tuple[Trouble, float]:
        """What is on record about an attempt that failed, and when the next one is due."""
        error = f"{type(problem).__name__}: {problem}"
        if attempt >= self.work.retry.attempts or not is_retryable(problem):
            self.counts.failed += 1
            logger.error("%s: event %s failed: %s", self.work.processor, entry.id, error)
            return self._trouble(entry, "failed", attempt, error, before), DUE_NEVER
        self.counts.retried += 1
        delay = self.work.retry.delay(attempt, retry_after(problem))
        return self._trouble(entry, "retry", attempt, error, before), round(self._due(delay))

    def _park_failed(self, part: Slice, slots: Sequence[Slot], problem: Exception, attempt: int) -> None:
        trouble, due = self._after_failure(slots[0].entry, problem, attempt)
        self._park(part, slots, trouble, due)

    def _park(self, part: Slice, slots: Sequence[Slot], trouble: Trouble, due: float) -> None:
        """An event and those after it wait; others go on."""
        key = slots[0].entry.key
        self.counts.parked += 1
        part.park(key, due)
        part.note(Park(key, trouble, due, [slot.entry for slot in slots]), slots)

    async def _retry(self) -> None:
        """Try parked events again when they are due."""
        while True:
            await asyncio.sleep(0.02)
            if f"processor {self.work.processor}" in self._paused:
                continue
            now = self._due(0)
            for part in list(self.slices.values()):
                if part.draining:
                    continue
                for key in part.due_now(now):
                    part.retrying.add(key)
                    self._spawn(part, self._retry_one(part, key))

    async def _retry_one(self, part: Slice, key: str) -> None:
        """Go through the parked events of an aggregate, until one fails or none is left."""
        try:
            async with self._free:
                while not part.draining:
                    on_their_way = part.mores[key]
                    entries = await self._patiently(
                        lambda: self._backend.parked_entries(self.work.processor, part.partition, key, 20)
                    )
                    if not entries and not on_their_way and not part.mores[key]:
                        part.parked.pop(key, None)
                        return
                    if not entries:
                        await asyncio.sleep(0.01)
                    for entry in entries:
                        if part.draining or not await self._retry_entry(part, key, entry):
                            return
        finally:
            part.retrying.discard(key)

    async def _retry_entry(self, part: Slice, key: str, entry: Entry) -> bool:
        """One parked event; whether the next one can follow."""
        troubles = await self._patiently(
            lambda: self._backend.troubles(self.work.processor, part.partition, [key])
        )
        before: Trouble | None = troubles.get(key)
        if before is not None and before.version != entry.version:
            before = None
        if f"tenant {key.partition(':')[0]}" in self._paused:
            return await self._later(part, key, self._trouble(entry, "paused", before=before))
        if self.work.depends_on and await self._patiently(lambda: self._blocked(part, [entry])):
            return await self._later(part, key, self._trouble(entry, "waits", before=before))
        attempt = 1 + (before.attempts if before is not None else 0)
        try:
            event = self.work.event(entry)
            state = await self._attempt(part, key, event, attempt)
        except asyncio.CancelledError:
            raise
        except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
            trouble, due = self._after_failure(entry, problem, attempt, before)
            await part.noted(Later(key, trouble, due))
            part.park(key, due)
            return False
        await part.noted(Resume(key, event.version, event.id, state))
        self.counts.processed += 1
        return True

    async def _later(self, part: Slice, key: str, trouble: Trouble) -> bool:
        due = round(self._due(WAIT_FOR_OTHERS))
        await part.noted(Later(key, trouble, due))
        part.park(key, due)
        return False

    async def _attempt(self, part: Slice, key: str, event: AnyEvent, attempt: int) -> bytes | None:
        """Process one event; the state to commit, where there is one."""
        work = self.work
        if isinstance(work, HandlerWork):
            await work.handle(event, attempt)
            return None
        assert isinstance(work, ProjectionWork)
        await self._patiently(lambda: self._load_states(part, [key]))
        at = work.apply(part.states[key], event)
        kept = await self._kept(key, at)
        part.states[key] = at
        return kept

    async def _carry_out(self, part: Slice, slot: Slot, key: str, decision: Decision) -> None:
        """A person's decision about a failed event. It is done with before the position passes it."""
        troubles = await self._patiently(
            lambda: self._backend.troubles(self.work.processor, part.partition, [key])
        )
        trouble: Trouble | None = troubles.get(key)
        # What has been decided before, or was never failed, stays as it is.
        if trouble is not None and trouble.version == decision.version and trouble.status == "failed":
            due = round(self._due(0))
            if decision.decision == "retry":
                again = msgspec.structs.replace(trouble, status="retry", attempts=0)
                await part.noted(Later(key, again, due))
            else:
                await part.noted(Resume(key, trouble.version, trouble.event_id))
            part.park(key, due)
        slot.done = True
        part.to_commit.set()

    # ------------------------------------------------------------------ committing

    def _spawn(self, part: Slice, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        part.tasks.add(task)
        task.add_done_callback(part.tasks.discard)
        task.add_done_callback(_told)

    async def _commit(self, part: Slice) -> None:
        """Commit what was noted, as long as the partition is ours."""
        processor, awaited = self.work.processor, self.work.awaited
        while not part.dropped:
            await part.to_commit.wait()
            part.to_commit.clear()
            changes, waiting, position = part.take(COMMIT_AT_ONCE)
            if not changes and position == part.position:
                part.idle.set()
                continue
            part.idle.clear()
            try:
                new = await self._patiently(
                    partial(self._backend.commit, processor, part.lease, position, changes, awaited=awaited)
                )
            except (ReaderFenced, ReaderGone):
                self.counts.leases_lost += 1
                self._drop(part)
                return
            except TorilError:
                logger.exception("%s: a commit to %s failed", processor, part.partition)
                self._drop(part)
                return
            self.counts.commits += 1
            part.position = position
            for change, waits, was_new in zip(changes, waiting, new, strict=True):
                if isinstance(change, More):
                    part.mores[change.aggregate] -= 1
                for future in waits:
                    if not future.done():
                        future.set_result(was_new)
            if part.pending:
                part.to_commit.set()
            else:
                part.idle.set()
            if len(part.window) < self._options.read_ahead:
                self._wake_fetch.set()


def _told(task: asyncio.Task[None]) -> None:
    """What a task could not know what to do with is said."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("a task of a processor failed", exc_info=task.exception())
