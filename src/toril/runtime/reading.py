"""Reading ahead: each entry gets its place, passed over, parked, or in line with its aggregate."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from toril.connection.errors import ConnectionFailed, OutcomeUnknown
from toril.log.entry import Entry, Partition
from toril.log.errors import LogError
from toril.runtime.backend import More
from toril.runtime.decisions import decision_of
from toril.runtime.desk import LOOK_ANYWAY, Desk
from toril.runtime.processing import Processing
from toril.runtime.slice import Chain, Slice, Slot
from toril.runtime.trouble import WAIT_FOR_OTHERS, Troubles
from toril.runtime.work import ANY_TYPE

logger = logging.getLogger("toril.runtime")

PAGE = 500
"""Entries read in one call."""

PARTITIONS_AT_ONCE = 8
"""Partitions that are read at the same time."""

KNOWN = 20_000
"""Aggregates of a partition of which is known that their checkpoint was looked at."""


class Reading:
    """See the module's text."""

    def __init__(self, desk: Desk, processing: Processing, troubles: Troubles) -> None:
        self._desk = desk
        self._processing = processing
        self._troubles = troubles

    # ------------------------------------------------------------------ when

    async def listen(self) -> None:
        """Hear the bells of all partitions, until it is cancelled."""
        desk = self._desk
        while True:
            desk.moved.clear()
            partitions = desk.partitions
            if partitions:
                hearing = asyncio.create_task(self._hear(partitions))
                moving = asyncio.create_task(desk.moved.wait())
                try:
                    await asyncio.wait({hearing, moving}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in (hearing, moving):
                        task.cancel()
                    results = await asyncio.gather(hearing, moving, return_exceptions=True)
                problem = results[0]
                if isinstance(problem, Exception) and not isinstance(problem, ConnectionFailed):
                    raise problem
                await asyncio.sleep(0.05)
            else:
                await desk.moved.wait()

    async def _hear(self, partitions: Sequence[Partition]) -> None:
        async with self._desk.backend.listen(partitions) as heard:
            self._ring(partitions)  # what was appended before anyone listened
            await self._follow(heard)

    async def _follow(self, heard: AsyncIterator[set[Partition]]) -> None:
        async for rung in heard:
            self._ring(rung)

    def _ring(self, partitions: Sequence[Partition] | set[Partition]) -> None:
        for partition in partitions:
            part = self._desk.slices.get(partition)
            if part is not None:
                part.news += 1
        self._desk.wake_fetch.set()

    async def run(self) -> None:
        """Read what there is, until it is cancelled."""
        desk = self._desk
        looked = time.monotonic()
        while True:
            desk.wake_fetch.clear()
            if await self._read_all():
                continue
            left = LOOK_ANYWAY - (time.monotonic() - looked)
            if left > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await desk.wake_fetch.wait()
            else:
                looked = time.monotonic()
                for part in desk.slices.values():
                    part.news += 1

    async def _read_all(self) -> bool:
        """Read on where there is news, in some partitions at a time; whether there may be more."""
        desk = self._desk
        parts = [
            part
            for part in desk.slices.values()
            if part.news and part.is_ours() and len(part.window) < desk.options.read_ahead
        ]
        busy = False
        for first in range(0, len(parts), PARTITIONS_AT_ONCE):
            some = parts[first : first + PARTITIONS_AT_ONCE]
            found = await asyncio.gather(*map(self._try, some))
            busy = busy or any(found)
        return busy

    async def _try(self, part: Slice) -> bool:
        try:
            return await self._read(part)
        except (ConnectionFailed, OutcomeUnknown) as problem:
            logger.warning("%s: %s", self._desk.processor, problem)
        except LogError:
            logger.exception("%s stops with %s", self._desk.processor, part.partition)
            self._desk.drop(part)
        return False

    # ------------------------------------------------------------------ what

    async def _read(self, part: Slice) -> bool:
        """Read on in a partition; whether there may be more."""
        desk, heard = self._desk, part.news
        room = min(PAGE, desk.options.read_ahead - len(part.window))
        if desk.work.depends_on:
            room = min(room, await self._others_reached(part) - part.at.ordinal)
        page = await desk.backend.page(part.partition, part.at, room) if room > 0 else []
        if page:
            blocked = await self._troubles.blocked(part, page)
            await self._look_at_checkpoints(part, page)
            if not part.is_ours():
                return False
            part.at = page[-1].position
            for entry in page:
                self._feed(part, entry, blocked)
            while len(part.known) > KNOWN:
                del part.known[next(iter(part.known))]
            part.to_commit.set()
            desk.wake_work.set()
        if len(page) < room or room <= 0:
            if part.news == heard:
                part.news = 0
            return False
        return True

    async def _others_reached(self, part: Slice) -> int:
        """Up to where all are that ours depends on; of projections, the generation that readers see."""
        desk = self._desk
        while True:
            asked = desk.depends_on
            seen, others = await asyncio.gather(
                desk.backend.generations.seen(desk.work.depends_on),
                desk.backend.positions(part.partition, asked),
            )
            desk.depends_on = seen
            if seen == asked:
                return min(0 if other is None else other.ordinal for other in others)

    async def _look_at_checkpoints(self, part: Slice, page: Sequence[Entry]) -> None:
        """What one before us has processed already is passed over."""
        # While older epochs are there, their checkpoints are taken over when an aggregate is first met.
        takes_over = part.partition.epoch > min(one.epoch for one in self._desk.partitions)
        first_seen = {
            entry.key: entry
            for entry in reversed(page)
            if entry.key not in part.known
            and (takes_over or entry.ordinal <= part.lease.tail)
            and self._is_ours(entry)
        }
        if first_seen:
            keys = list(first_seen)
            loaded = await self._desk.backend.load(self._desk.processor, part.partition, keys)
            for key, its in zip(keys, loaded, strict=True):
                part.known[key] = its.version
        elif not takes_over and page[0].ordinal > part.lease.tail:
            part.known.clear()

    def _is_ours(self, entry: Entry) -> bool:
        wanted = self._desk.work.aggregate_type
        return bool(entry.key) and (wanted == ANY_TYPE or entry.key.split(":", 2)[1] == wanted)

    def _feed(self, part: Slice, entry: Entry, blocked: set[str]) -> None:
        """Give an entry its place: passed over, parked, or in the chain of its aggregate."""
        desk, troubles = self._desk, self._troubles
        slot, key = Slot(entry), entry.key
        self._heed(part, entry)
        part.window.append(slot)
        chain = part.chains.get(key)
        if (chain is None and not self._is_ours(entry)) or entry.version <= part.known.get(key, 0):
            slot.done = True
        elif key in part.parked:
            part.note(More(key, [entry]), [slot])
        elif part.culprit == (key, entry.version):
            troubles.park_culprit(part, slot)
        elif key in blocked:
            troubles.park(part, [slot], troubles.record(entry, "waits"), desk.due(WAIT_FOR_OTHERS))
        elif chain is None and desk.tenant_is_paused(key):
            troubles.park(part, [slot], troubles.record(entry, "paused"), desk.due(WAIT_FOR_OTHERS))
        else:
            if chain is None:
                chain = part.chains[key] = Chain(key, part)
            chain.slots.append(slot)
            if not chain.busy:
                chain.busy = True
                self._processing.stand_in_line(chain)

    def _heed(self, part: Slice, entry: Entry) -> None:
        """Where an entry is a person's decision about this processor, carry it out before it is passed."""
        found = None if entry.erased else decision_of(entry)
        if found is not None and found[1].concerns(self._desk.processor):
            slot = Slot(entry)
            part.window.append(slot)
            self._desk.spawn(part, self._troubles.carry_out(part, slot, *found))
