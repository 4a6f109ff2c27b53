"""Projections: the events of some aggregates of a partition are folded in one go, tenants in turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from toril.connection.errors import ConnectionFailed, OutcomeUnknown
from toril.events.errors import VersionConflict
from toril.events.event import AnyEvent
from toril.events.projection import ProjectionState
from toril.runtime.backend import Begin, Done
from toril.runtime.desk import LOOK_ANYWAY, Desk
from toril.runtime.processing import line_up
from toril.runtime.slice import Chain, Slice, Slot
from toril.runtime.trouble import Troubles
from toril.runtime.work import ProjectionWork

logger = logging.getLogger("toril.runtime")

CHAINS_AT_ONCE = 200
"""Aggregates taken in one go."""

EVENTS_AT_ONCE = 500
"""Events of one aggregate taken in one go."""

STATES_KEPT = 20_000
"""States kept at hand in one worker, over all partitions."""


class Folding:
    """See the module's text."""

    def __init__(self, desk: Desk, work: ProjectionWork, troubles: Troubles) -> None:
        self._desk = desk
        self._work = work
        self._troubles = troubles

    def stand_in_line(self, chain: Chain) -> None:
        """Projections have a line for each partition."""
        chain.part.turns.put(chain.tenant, chain)

    async def run(self) -> None:
        """Fold events, until it is cancelled."""
        desk = self._desk
        while True:
            desk.wake_work.clear()
            worked = False
            for part in list(desk.slices.values()):
                if part.turns and not desk.is_paused() and desk.still_has(part):
                    chains = self._take_turns(part)
                    with self._work.updating(len(chains)):
                        await self._fold(part, chains)
                    worked = True
                    await asyncio.sleep(0)
            if not worked:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_ANYWAY):
                        await desk.wake_work.wait()

    def _take_turns(self, part: Slice) -> list[Chain]:
        chains: list[Chain] = []
        most = min(part.room, CHAINS_AT_ONCE)
        while part.turns and len(chains) < most:
            chain = part.turns.take()
            if self._desk.tenant_is_paused(chain.key):
                self._troubles.park_paused(chain)
            else:
                chains.append(chain)
        return chains

    async def _fold(self, part: Slice, chains: Sequence[Chain]) -> None:
        """Load, apply, note. What was applied is not applied again: only the ends wait for servers."""
        keys = [chain.key for chain in chains]
        unreadable = await self._desk.patiently(lambda: self._load_states(part, keys))
        for chain in chains:
            if not part.is_ours():
                return
            slots = list(islice(chain.slots, min(part.room, EVENTS_AT_ONCE)))
            if part.room == 1:
                await part.noted(Begin(chain.key, slots[0].entry.version))
            problem = unreadable.get(chain.key)
            if problem is None:
                problem = await self._fold_one(part, chain, slots)
            if problem is not None and not part.dropped:
                self._troubles.park_failed(part, chain.give_up(), problem)
            line_up(self._desk, self, chain)
        # What is not committed is not let go: loaded anew, it would be as it was before.
        uncommitted = len(part.pending) + part.under_way
        most = max(STATES_KEPT // max(len(self._desk.slices), 1), CHAINS_AT_ONCE) + uncommitted
        while len(part.states) > most:
            del part.states[next(iter(part.states))]

    async def _fold_one(self, part: Slice, chain: Chain, slots: Sequence[Slot]) -> Exception | None:
        """Fold events of one aggregate, up to the first that cannot be; why that cannot."""
        events, problem = self._apply(part, chain.key, slots)
        if events:
            try:
                state = await self._kept(chain.key, part.states[chain.key])
            except VersionConflict:
                self._desk.lose(part, "another worker has stored a state")
                return None
            except Exception as failed:  # noqa: BLE001 - a state that cannot be kept belongs to its events
                part.states.pop(chain.key, None)
                if len(events) == 1:
                    return failed
                if not part.dropped:
                    self._troubles.park_to_part(part, chain.give_up(), failed)
                return None
            if part.dropped:
                return None
            done = Done(chain.key, events[0].version, events[-1].version, events[-1].id, state)
            part.note(done, slots[: len(events)])
            self._desk.counts.processed += len(events)
            for _ in events:
                chain.slots.popleft()
        return problem

    async def _load_states(self, part: Slice, keys: Sequence[str]) -> dict[str, Exception]:
        """Have states at hand; what is wrong with those that cannot be."""
        missing = [key for key in keys if key not in part.states]
        unreadable: dict[str, Exception] = {}
        if not missing:
            return unreadable
        loaded = await self._desk.backend.load(self._desk.processor, part.partition, missing)
        for key, its in zip(missing, loaded, strict=True):
            try:
                part.states[key] = await self._work.load(key, its.version, its.state)
            except (ConnectionFailed, OutcomeUnknown):
                raise
            except Exception as problem:  # noqa: BLE001 - it belongs to this aggregate
                unreadable[key] = problem
        return unreadable

    def _apply(self, part: Slice, key: str, slots: Sequence[Slot]) -> tuple[list[AnyEvent], Exception | None]:
        """Apply events to the state at hand, up to the first that cannot be; the events, and why not."""
        applied: list[AnyEvent] = []
        at = part.states.pop(key)
        state, version, work = at.state, at.version, self._work
        problem: Exception | None = None
        for slot in slots:
            try:
                event = work.event(slot.entry)
                if event.version > version:  # else it is in the state already
                    state, version = work.folded(state, event), event.version
            except Exception as failed:  # noqa: BLE001 - whatever it is, it belongs to this event
                problem = failed
                break
            applied.append(event)
        part.states[key] = ProjectionState(state, version)  # as the one that was used last
        return applied, problem

    async def _kept(self, key: str, at: ProjectionState[Any]) -> bytes | None:
        """The state for the commit; where it has a store of its own, it is kept there before."""
        if self._work.store is None:
            return self._work.projection.encode(at.state)
        await self._desk.patiently(lambda: self._work.save(key, at))
        return None

    async def attempt(self, part: Slice, event: AnyEvent, attempt: int) -> bytes | None:
        """One more attempt at an event."""
        assert attempt > 0
        key = event.aggregate.key
        try:
            unreadable = await self._desk.patiently(lambda: self._load_states(part, [key]))
            if key in unreadable:
                raise unreadable[key]
            at = self._work.apply(part.states[key], event)
            kept = await self._kept(key, at)
        except Exception:
            part.states.pop(key, None)  # the next attempt loads it anew
            raise
        part.states[key] = at
        return kept
