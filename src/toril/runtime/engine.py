"""The engine of one processor in one worker.

It holds leases on partitions (:mod:`~toril.runtime.leases`), reads ahead in each, bounded
(:mod:`~toril.runtime.reading`), lets tenants take turns and keeps the events of an aggregate in order
(:mod:`~toril.runtime.handling`, :mod:`~toril.runtime.folding`), parks what fails
(:mod:`~toril.runtime.trouble`), and commits what is done: checkpoints, states and the position of a partition
in one step (:mod:`~toril.runtime.committing`). A worker that lost a lease can commit nothing, whatever it
still does.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from toril.connection.errors import ConnectionFailed, OutcomeUnknown
from toril.log.entry import Partition
from toril.runtime.backend import Backend
from toril.runtime.committing import Committing
from toril.runtime.desk import Counts, Desk, EngineOptions
from toril.runtime.folding import Folding
from toril.runtime.handling import Handling
from toril.runtime.leases import Leases
from toril.runtime.processing import Processing
from toril.runtime.reading import Reading
from toril.runtime.slice import Slice
from toril.runtime.trouble import Troubles
from toril.runtime.work import HandlerWork, ProjectionWork, Work

__all__ = ["Counts", "Engine", "EngineOptions"]


class Engine:
    """See the module's text."""

    def __init__(self, backend: Backend, work: Work, worker: str, options: EngineOptions) -> None:
        self.work = work
        self._desk = desk = Desk(backend, work, worker, options)
        self._leases = Leases(desk, Committing(desk))
        self._troubles = Troubles(desk)
        self._processing = self._troubles.processing = self._made_for(work)
        self._reading = Reading(desk, self._processing, self._troubles)

    def _made_for(self, work: Work) -> Processing:
        if isinstance(work, ProjectionWork):
            return Folding(self._desk, work, self._troubles)
        assert isinstance(work, HandlerWork)
        return Handling(self._desk, work, self._troubles)

    @property
    def counts(self) -> Counts:
        """What it has done so far."""
        return self._desk.counts

    @property
    def slices(self) -> dict[Partition, Slice]:
        """The partitions it has."""
        return self._desk.slices

    async def run(self) -> None:
        """Work until it is cancelled: then it leaves at once, and leases that it has run out."""
        desk = self._desk
        await desk.patiently(self._leases.register)
        loops = (
            self._leases.run(),
            self._reading.listen(),
            self._reading.run(),
            self._processing.run(),
            self._troubles.run(),
        )
        try:
            async with asyncio.TaskGroup() as group:
                for loop in loops:
                    group.create_task(loop)
        finally:
            for part in list(desk.slices.values()):
                desk.drop(part)

    async def stop(self) -> None:
        """Give everything back: what runs may end within the grace time, nothing new is begun."""
        desk = self._desk
        desk.stopping = True
        with suppress(
            ConnectionFailed, OutcomeUnknown
        ):  # others know from now on that there is more for them
            await desk.backend.members(desk.processor, desk.worker, 0)
        await asyncio.gather(*(self._leases.give_back(part) for part in list(desk.slices.values())))
