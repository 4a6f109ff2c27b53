"""What the parts of an engine share: the partitions it has, the clock, what is paused, how it is woken."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from toril.connection.errors import ConnectionFailed, OutcomeUnknown
from toril.errors import InvalidValue
from toril.log.entry import Partition
from toril.runtime.backend import Backend
from toril.runtime.slice import Slice
from toril.runtime.work import Work

logger = logging.getLogger("toril.runtime")

T = TypeVar("T")

LOOK_ANYWAY = 1.0
"""Seconds after which is looked for work though nobody has called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How a worker runs its processors."""

    lease: float = 10.0
    """Seconds that a partition, or a sent command, is a worker's without being renewed."""
    read_ahead: int = 2000
    """Entries read ahead in each partition: within these, tenants take turns.

    Beyond them they cannot: an event that so many others of its partition are before waits until enough of
    those are processed (or parked), whoever's they are.
    """
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


class Desk:
    """See the module's text."""

    def __init__(self, backend: Backend, work: Work, worker: str, options: EngineOptions) -> None:
        self.backend = backend
        self.work = work
        self.processor = work.processor
        self.worker = worker
        self.options = options
        self.counts = Counts()
        self.slices: dict[Partition, Slice] = {}
        self.partitions: list[Partition] = []
        """All there are, oldest epoch first, but for those that are finished."""
        self.moved = asyncio.Event()
        """The partitions are others than before."""
        self.depends_on: tuple[str, ...] = work.depends_on
        """Processors that must be done with an event before it comes here: of projections, the generation
        that readers see."""
        self.paused: set[str] = set()
        self.clock = 0.0
        """The server's milliseconds, less our own."""
        self.free = asyncio.Semaphore(work.concurrency)
        self.wake_fetch = asyncio.Event()
        self.wake_work = asyncio.Event()
        self.stopping = False
        self._background: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ what is paused

    def is_paused(self) -> bool:
        """Whether the processor is."""
        return bool(self.paused) and f"processor {self.processor}" in self.paused

    def tenant_is_paused(self, key: str) -> bool:
        """Whether the tenant of an aggregate is."""
        return bool(self.paused) and f"tenant {key.partition(':')[0]}" in self.paused

    # ------------------------------------------------------------------ time

    def due(self, seconds: float) -> float:
        """The server's milliseconds, so many seconds from now."""
        return self.clock + (time.monotonic() + seconds) * 1000

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Through outages of the server."""
        pause = 0.05
        while True:
            try:
                return await call()
            except (ConnectionFailed, OutcomeUnknown) as problem:
                logger.warning("%s: %s", self.processor, problem)
                await asyncio.sleep(pause * (0.5 + random.random() / 2))
                pause = min(pause * 2, 1.0)

    # ------------------------------------------------------------------ partitions

    def drop(self, part: Slice) -> None:
        """Have no more to do with a partition."""
        part.drop()
        if self.slices.get(part.partition) is part:
            del self.slices[part.partition]

    def lose(self, part: Slice, why: str) -> None:
        """The same, and it was not meant to be."""
        logger.warning("%s: %s is no longer this worker's: %s", self.processor, part.partition, why)
        self.counts.leases_lost += 1
        self.drop(part)

    def still_has(self, part: Slice) -> bool:
        """Whether something new may be begun in a partition; one whose lease ran out is dropped."""
        if part.is_ours() and time.monotonic() > part.keep_until:
            self.lose(part, "the lease ran out")
        return part.is_ours()

    # ------------------------------------------------------------------ tasks

    def spawn(self, part: Slice, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something for a partition; it is cancelled where that is dropped."""
        task = asyncio.create_task(work)
        part.tasks.add(task)
        task.add_done_callback(part.tasks.discard)
        task.add_done_callback(told)
        return task

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(told)


def told(task: asyncio.Task[None]) -> None:
    """What a task could not know what to do with is said."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("a task of a processor failed", exc_info=task.exception())
