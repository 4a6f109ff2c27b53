"""Leases: which partitions a worker has. They are renewed, shared with other workers, and given back."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress

from toril.connection.errors import ConnectionFailed, OutcomeUnknown
from toril.log.entry import Partition
from toril.runtime.backend import Lease, Stage
from toril.runtime.committing import Committing
from toril.runtime.desk import Desk, told
from toril.runtime.slice import Slice

logger = logging.getLogger("toril.runtime")


class Leases:
    """See the module's text."""

    def __init__(self, desk: Desk, committing: Committing) -> None:
        self._desk = desk
        self._committing = committing
        self._registered: set[Partition] = set()
        self._finished: set[Partition] = set()

    async def run(self) -> None:
        """Keep the worker's share of the partitions, until it is cancelled."""
        while True:
            try:
                await self._balance()
            except (ConnectionFailed, OutcomeUnknown) as problem:
                logger.warning("%s: leases could not be renewed: %s", self._desk.processor, problem)
            await asyncio.sleep(self._desk.options.lease / 5 * (0.75 + random.random() / 2))

    async def register(self) -> None:
        """Have the processor known as a reader of all partitions."""
        desk = self._desk
        partitions = await desk.backend.partitions()
        if await desk.backend.generations.may_begin(desk.processor, desk.work.start):
            await desk.backend.register(desk.processor, desk.work.start)
            self._registered.update(partitions)

    async def _balance(self) -> None:
        """Renew what we have, give back what is more than our share, take what is less."""
        desk, backend = self._desk, self._desk.backend
        await self._renew()
        if desk.stopping:
            return
        desk.clock = await backend.now() - time.monotonic() * 1000
        desk.paused = await backend.paused()
        if not await backend.generations.may_begin(desk.processor, desk.work.start):
            return
        partitions = await self._to_work_on()
        members = await backend.members(desk.processor, desk.worker, desk.options.lease)
        place = members.index(desk.worker) if desk.worker in members else 0
        share = len(partitions) // len(members) + (place < len(partitions) % len(members))
        mine = sorted(one for one, part in desk.slices.items() if not part.draining)
        there = set(partitions)
        held = [one for one in mine if one in there]
        for partition in (*held[share:], *(one for one in mine if one not in there)):
            part = desk.slices[partition]
            part.draining = True
            desk.aside(self.give_back(part))
        free = [one for one in partitions if one not in desk.slices]
        random.shuffle(free)
        wanted = share - len(held)
        while wanted > 0 and free and not desk.stopping:
            some, free = free[:wanted], free[wanted:]
            asked_at = time.monotonic()
            taken = await backend.take(desk.processor, desk.worker, some, desk.options.lease)
            wanted -= len(taken)
            await asyncio.gather(*(self._take(lease, asked_at + desk.options.lease) for lease in taken))

    async def _renew(self) -> None:
        desk = self._desk
        asked_at = time.monotonic()
        asked = list(desk.slices.values())
        ours = await desk.backend.keep(
            desk.processor, desk.worker, [part.partition for part in asked], desk.options.lease
        )
        for part in asked:
            if part.dropped:
                continue
            if ours.get(part.partition) == part.lease.fence:
                part.keep_until = asked_at + desk.options.lease
            else:
                desk.lose(part, "another worker has it")

    async def _to_work_on(self) -> list[Partition]:
        """The partitions whose turn has come and that are not finished."""
        desk = self._desk
        stages: dict[Partition, Stage] = await desk.backend.stages(desk.processor, self._finished)
        if not self._registered.issuperset(stages):  # an epoch has begun
            await self.register()
        self._finished = {one for one, stage in stages.items() if stage == "finished"}
        partitions = [one for one in stages if one not in self._finished]
        if partitions != desk.partitions:
            desk.partitions = partitions
            desk.moved.set()
        for part in desk.slices.values():
            part.over = stages.get(part.partition) in ("over", "finished", None)
        return [one for one in partitions if stages[one] in ("open", "over")]

    async def _take(self, lease: Lease, keep_until: float) -> None:
        desk = self._desk
        part = Slice(lease, desk.options.read_ahead)
        part.keep_until = keep_until
        for key, due in (await desk.backend.parked(desk.processor, lease.partition)).items():
            part.park(key, due)
        if desk.stopping:
            await desk.backend.release(desk.processor, desk.worker, [lease.partition])
            return
        if part.careful:
            logger.warning(
                "%s: %d workers died over %s; its events run one by one",
                desk.processor,
                lease.deaths,
                lease.partition,
            )
        desk.slices[lease.partition] = part
        part.committer = asyncio.create_task(self._committing.run(part))
        part.committer.add_done_callback(told)
        desk.wake_fetch.set()

    async def give_back(self, part: Slice) -> None:
        """Let what runs end within the grace time, commit it, and let others have the partition."""
        desk = self._desk
        part.draining = True
        part.turns.clear()
        if part.tasks:
            await asyncio.wait(list(part.tasks), timeout=desk.options.grace)
        with suppress(TimeoutError):
            async with asyncio.timeout(desk.options.grace):
                await part.idle.wait()
        if not part.dropped:
            desk.drop(part)
            with suppress(ConnectionFailed, OutcomeUnknown):
                await desk.backend.release(desk.processor, desk.worker, [part.partition])
