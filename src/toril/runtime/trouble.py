"""Trouble: events that failed, or have to wait, are parked and tried again; people decide about the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from toril.aggregate import Aggregate
from toril.events.errors import StoreError, is_retryable, retry_after
from toril.log.entry import Entry
from toril.runtime.backend import DUE_NEVER, Handed, Later, More, Park, Resume, Trouble
from toril.runtime.decisions import Decision, Skipped, skipped
from toril.runtime.desk import Desk
from toril.runtime.names import split_generation
from toril.runtime.processing import Processing
from toril.runtime.slice import STRIKES, Chain, Slice, Slot

logger = logging.getLogger("toril.runtime")

WAIT_FOR_OTHERS = 1.0
"""Seconds after which an event is looked at again that waits for another processor, or for a tenant."""

LOOK_EVERY = 0.02
"""Seconds between two looks at what is due."""

BEGUN = 3
"""Attempts at a parked event that began and never ended, after which it is not tried again."""

PARK_AT_ONCE, PARK_BYTES = 100, 1024 * 1024
"""Entries parked in one change, and their bytes, passed by one entry at most."""

HAND_ON_AT_ONCE = 100
"""Aggregates that are handed on to the next epoch at a time."""

READ_AT_ONCE = 20
"""Parked events read in one call."""

LONGEST_ERROR = 4000


class Troubles:
    """See the module's text."""

    processing: Processing

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    # ------------------------------------------------------------------ on record

    def record(self, entry: Entry, status: str, attempts: int = 0, error: str = "") -> Trouble:
        """Why an event is parked, for the first time."""
        now = round(self._desk.due(0))
        try:
            event = self._desk.work.event(entry)
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
            first_at=now,
            last_at=now,
        )

    def _again(self, entry: Entry, before: Trouble | None, **changed: object) -> Trouble:
        """What is on record about an event from now on."""
        made = before or self.record(entry, "retry")
        return msgspec.structs.replace(made, last_at=round(self._desk.due(0)), **changed)

    def _after_failure(
        self, entry: Entry, problem: Exception, attempt: int, before: Trouble | None = None
    ) -> tuple[Trouble, float]:
        """What is on record about an attempt that failed, and when the next one is due."""
        desk, retry = self._desk, self._desk.work.retry
        error = f"{type(problem).__name__}: {problem}"[:LONGEST_ERROR]
        status, due = "retry", 0.0
        if attempt >= retry.attempts or not is_retryable(problem):
            desk.counts.failed += 1
            logger.error("%s: event %s failed: %s", desk.processor, entry.id, error)
            status, due = "failed", self._asked()
        else:
            desk.counts.retried += 1
            due = round(desk.due(retry.delay(attempt, retry_after(problem))))
        return self._again(entry, before, status=status, attempts=attempt, error=error, begun=0), due

    def _asked(self) -> float:
        """When what has failed is looked at again: never; in a later generation once, see `_to_try`."""
        return DUE_NEVER if split_generation(self._desk.processor)[1] == 1 else round(self._desk.due(0))

    # ------------------------------------------------------------------ parking

    def park_failed(self, part: Slice, slots: Sequence[Slot], problem: Exception) -> None:
        """The first attempt at an event has failed."""
        self.park(part, slots, *self._after_failure(slots[0].entry, problem, 1))

    def park_to_part(self, part: Slice, slots: Sequence[Slot], problem: Exception) -> None:
        """Some events have failed together: one by one, they show which of them it is."""
        error = f"{type(problem).__name__}: {problem}"
        logger.info("%s: %d events go one by one: %s", self._desk.processor, len(slots), problem)
        self.park(part, slots, self.record(slots[0].entry, "retry", error=error), self._desk.due(0))

    def park_paused(self, chain: Chain) -> None:
        """The tenant was paused after its events were read."""
        slots = chain.give_up()
        chain.rest()
        trouble = self.record(slots[0].entry, "paused")
        self.park(chain.part, slots, trouble, self._desk.due(WAIT_FOR_OTHERS))

    def park_culprit(self, part: Slice, slot: Slot) -> None:
        """Workers die of this event: it waits for a person, and the others run as usual again."""
        error = f"{STRIKES} workers died in a row while this event was running alone"
        self._desk.counts.failed += 1
        logger.error("%s: event %s failed: %s", self._desk.processor, slot.entry.id, error)
        trouble = self.record(slot.entry, "failed", part.lease.deaths, error)
        self.park(part, [slot], trouble, self._asked())
        part.culprit, part.careful_until = None, 0

    def park(self, part: Slice, slots: Sequence[Slot], trouble: Trouble, due: float) -> None:
        """An event and those after it wait; others go on."""
        key = slots[0].entry.key
        self._desk.counts.parked += 1
        part.park(key, due)
        first, *others = _in_portions(slots)
        part.note(Park(key, trouble, due, [slot.entry for slot in first]), first)
        for some in others:
            part.note(More(key, [slot.entry for slot in some]), some)

    async def blocked(self, part: Slice, page: Sequence[Entry]) -> set[str]:
        """Aggregates whose events a processor that ours depends on has parked."""
        blocked: set[str] = set()
        for other in self._desk.depends_on:
            keys = list({entry.key for entry in page if entry.key})
            blocked |= await self._desk.backend.parked_among(other, part.partition, keys)
        return blocked

    # ------------------------------------------------------------------ trying again

    async def run(self) -> None:
        """Try parked events again when they are due, until it is cancelled."""
        desk = self._desk
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for part in list(desk.slices.values()):
                if not (part.due or part.over) or not desk.still_has(part):
                    continue
                if part.over:
                    self._hand_on(part)
                elif not desk.is_paused() and not part.careful:
                    self._try_again(part)

    def _try_again(self, part: Slice) -> None:
        for key in part.due_now(self._desk.due(0)):
            if self._desk.tenant_is_paused(key):
                part.park(key, self._desk.due(WAIT_FOR_OTHERS))
            else:
                self._begin(part, key, self._retry(part, key))

    def _begin(self, part: Slice, key: str, work: Coroutine[Any, Any, None]) -> None:
        part.retrying.add(key)
        task = self._desk.spawn(part, work)
        task.add_done_callback(lambda _: part.retrying.discard(key))

    async def _retry(self, part: Slice, key: str) -> None:
        """Go through the parked events of an aggregate, until one fails or none is left."""
        desk = self._desk
        try:
            async with desk.free:
                while part.is_ours():
                    on_their_way = part.mores[key]
                    entries = await self._to_try(part, key)
                    if entries is None:
                        return
                    if not entries and not on_their_way and not part.mores[key]:
                        part.parked.pop(key, None)
                        return
                    if not entries:
                        await asyncio.sleep(0.01)
                    for entry in entries:
                        if not part.is_ours() or not await self._retry_entry(part, key, entry):
                            return
        except Exception:
            part.park(key, desk.due(WAIT_FOR_OTHERS))
            raise

    async def _to_try(self, part: Slice, key: str) -> list[Entry] | None:
        """The parked events of an aggregate, as many as are read at a time; None where the first one waits.

        One that failed is only here in a later generation, once, as soon as that is on record: an earlier one
        may have been told to skip it. That decision may have been passed while the event was still tried, or
        waited behind another one; what is decided from here on finds the failure.
        """
        desk = self._desk
        fetch = partial(desk.backend.parked_entries, desk.processor, part.partition, key, READ_AT_ONCE)
        while True:
            async with part.deciding(key):  # else a decision could take away what was read
                entries = await desk.patiently(fetch)
                failed = await self._trouble(part, key) if entries else None
                if failed is None or (failed.status, failed.version) != ("failed", entries[0].version):
                    return entries
                if Skipped(desk.processor, key, failed.version) not in await self._skipped(key):
                    await self._later(part, failed, DUE_NEVER, key)
                    return None
                await part.noted(Resume(key, failed.version, failed.event_id))

    async def _retry_entry(self, part: Slice, key: str, entry: Entry) -> bool:
        """One parked event; whether the next one can follow."""
        desk = self._desk
        before = await self._trouble(part, key)
        if before is not None and before.version != entry.version:
            before = None
        if desk.tenant_is_paused(key):
            part.park(key, desk.due(WAIT_FOR_OTHERS))
            return False
        if await desk.patiently(lambda: self.blocked(part, [entry])):
            return await self._wait(part, key, entry, before)
        begun = 0 if before is None else before.begun
        if begun >= BEGUN:
            error = f"{begun} attempts at this event began and never ended: a worker died, or was stopped"
            desk.counts.failed += 1
            return await self._later(
                part, self._again(entry, before, status="failed", error=error), self._asked(), key
            )
        # On record before it begins: where the worker dies of it, the next one knows.
        await part.noted(Later(key, self._again(entry, before, begun=begun + 1), round(desk.due(0))))
        attempt = 1 + (0 if before is None else before.attempts)
        try:
            event = desk.work.event(entry)
            state = await self.processing.attempt(part, event, attempt)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
            return await self._later(part, *self._after_failure(entry, problem, attempt, before), key)
        await part.noted(Resume(key, entry.version, event.id, state))
        desk.counts.processed += 1
        return True

    async def _trouble(self, part: Slice, key: str) -> Trouble | None:
        desk = self._desk
        found = await desk.patiently(lambda: desk.backend.troubles(desk.processor, part.partition, [key]))
        return found.get(key)

    async def _wait(self, part: Slice, key: str, entry: Entry, before: Trouble | None) -> bool:
        """A processor that ours depends on is not done with the event."""
        due = round(self._desk.due(WAIT_FOR_OTHERS))
        if before is not None and before.status == "waits":
            part.park(key, due)
            return False
        return await self._later(part, self._again(entry, before, status="waits"), due, key)

    async def _later(self, part: Slice, trouble: Trouble, due: float, key: str) -> bool:
        await part.noted(Later(key, trouble, due))
        part.park(key, due)
        return False

    # ------------------------------------------------------------------ what people decide

    async def carry_out(self, part: Slice, slot: Slot, key: str, decision: Decision) -> None:
        """A person's decision about a failed event. It is done with before the position passes it."""
        async with part.deciding(key):
            trouble = await self._trouble(part, key)
            # What has been decided before, or has not failed, stays as it is; what fails later asks.
            if trouble is not None and trouble.version == decision.version and trouble.status == "failed":
                due = round(self._desk.due(0))
                if decision.decision == "retry":
                    again = msgspec.structs.replace(trouble, status="retry", attempts=0, begun=0)
                    await part.noted(Later(key, again, due))
                else:
                    await part.noted(Resume(key, trouble.version, trouble.event_id))
                part.park(key, due)
        slot.done = True
        part.to_commit.set()

    async def _skipped(self, key: str) -> frozenset[Skipped]:
        """The events of an aggregate that people had this processor skip, or a generation before it."""
        desk = self._desk
        try:
            made = await desk.backend.decided(Aggregate.parse(key))
        except StoreError as problem:
            if is_retryable(problem):
                raise
            logger.warning("%s: what was decided about %s is gone: %s", desk.processor, key, problem)
            made = []
        return skipped(made, desk.processor)

    # ------------------------------------------------------------------ the next epoch

    def _hand_on(self, part: Slice) -> None:
        """The epoch is over: what is parked goes to the next one, and is tried again there."""
        for key in list(part.parked)[:HAND_ON_AT_ONCE]:
            if key not in part.retrying:
                self._begin(part, key, self._hand_on_one(part, key))

    async def _hand_on_one(self, part: Slice, key: str) -> None:
        desk = self._desk
        await desk.patiently(lambda: desk.backend.hand_on(desk.processor, part.partition, key))
        await part.noted(Handed(key))
        part.parked.pop(key, None)


def _in_portions(slots: Sequence[Slot]) -> Iterator[list[Slot]]:
    some: list[Slot] = []
    size = 0
    for slot in slots:
        if some and (len(some) >= PARK_AT_ONCE or size >= PARK_BYTES):
            yield some
            some, size = [], 0
        some.append(slot)
        size += len(slot.entry.body)
    yield some
