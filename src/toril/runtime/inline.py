"""Commands without a server: sent ones wait, are debounced, retried and drained in this process.

The rules are those of commands on Redis (``lua/queue/send.lua``): of one id, one waits and one runs at most;
the last payload counts; what is sent while one runs follows it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

from toril.queue import QueueError

log = logging.getLogger("toril.runtime")

Work = TypeVar("Work")

FAILED_KEPT = 1000
"""How many failed commands are remembered."""


class FailedCommand(NamedTuple):
    """A command that has failed for good."""

    job_id: str
    error: BaseException
    attempts: int


class Verdict(NamedTuple):
    """What becomes of a run that has raised: seconds until the next one, or None to give up."""

    again_after: float | None


@dataclass(slots=True)
class _Pending(Generic[Work]):
    """What is to be done, and when."""

    work: Work
    due: float
    first: float
    """When it was first sent, since it last began."""
    attempts: int = 0
    """How many have been made."""


@dataclass(slots=True)
class _Lane(Generic[Work]):
    """All commands of one id."""

    id: str
    changed: asyncio.Event
    pending: _Pending[Work] | None = None
    running: bool = False
    following: tuple[Work, float, float] | None = None
    """What runs after the one that runs now: the work, its delay, and when it was first sent."""


class InlineQueue(Generic[Work]):
    """Runs what it is sent, in this process.

    ``run`` does the work of an attempt (0 for the first), and ``judge`` says what becomes of one that raises.
    Times are seconds.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[str, Work, int], Awaitable[object]],
        judge: Callable[[BaseException, int], Verdict],
        *,
        concurrency: int,
        delay: float,
        max_wait: float,
    ) -> None:
        self.name = name
        self.completed = 0
        """How many commands have been completed."""
        self.failed: deque[FailedCommand] = deque(maxlen=FAILED_KEPT)
        """Commands that have failed for good, the last ones last."""
        self._run = run
        self._judge = judge
        self._room = asyncio.Semaphore(concurrency)
        self._delay = delay
        self._max_wait = max_wait
        self._lanes: dict[str, _Lane[Work]] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._hurries = 0
        """How many calls of :meth:`drain` are under way."""
        self._closed = False

    async def drain(self) -> None:
        """Do now what waits: until that is done, nothing is delayed, also no next attempt."""
        self._hurries += 1
        try:
            while self._tasks:
                for lane in self._lanes.values():
                    lane.changed.set()
                await asyncio.wait(self._tasks)
        finally:
            self._hurries -= 1

    async def close(self) -> None:
        """Take no more, and :meth:`drain`."""
        self._closed = True
        await self.drain()

    @property
    def waiting(self) -> int:
        """How many commands wait, delayed ones and followers included."""
        return sum((lane.pending is not None) + (lane.following is not None) for lane in self._lanes.values())

    def check_open(self) -> None:
        """Refuse what comes after :meth:`close`."""
        if self._closed:
            raise QueueError(f"{self.name} is closed: nothing was sent")

    def send(self, job_id: str | None, work: Work) -> str:
        """Do this, after the delay; the id it is done under."""
        self.check_open()
        now = asyncio.get_running_loop().time()
        job_id = job_id or str(next(self._numbers))
        lane = self._lanes.get(job_id)
        if lane is None:
            lane = self._lanes[job_id] = _Lane(job_id, asyncio.Event())
            lane.pending = _Pending(work, now + self._delay, now)
            task = asyncio.create_task(self._work_on(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif lane.running:
            first = lane.following[2] if lane.following else now
            lane.following = work, self._delay_since(first, now), first
        else:
            assert lane.pending is not None
            self._replace(lane.pending, work, now)
            lane.following = None
            lane.changed.set()
        return job_id

    def _replace(self, pending: _Pending[Work], work: Work, now: float) -> None:
        pending.work = work
        if (
            pending.attempts
        ):  # it waits for its next attempt: at that time, this is done, with all its attempts
            pending.attempts, pending.first = 0, now
        elif now < pending.due:
            pending.due = now + self._delay_since(pending.first, now)

    def _delay_since(self, first: float, now: float) -> float:
        return max(0.0, min(self._delay, first + self._max_wait - now))

    async def _work_on(self, lane: _Lane[Work]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while lane.pending is not None:
                while not self._hurries and (left := lane.pending.due - loop.time()) > 0:
                    lane.changed.clear()
                    try:
                        async with asyncio.timeout(left):
                            await lane.changed.wait()
                    except TimeoutError:
                        pass
                async with self._room:
                    await self._attempt(lane, lane.pending)
        finally:
            del self._lanes[lane.id]

    async def _attempt(self, lane: _Lane[Work], pending: _Pending[Work]) -> None:
        loop = asyncio.get_running_loop()
        lane.pending, lane.running = None, True
        try:
            await self._run(lane.id, pending.work, pending.attempts)
            self.completed += 1
        except Exception as problem:  # noqa: BLE001 - whatever a handler raises is its command's failure
            pending.attempts += 1
            wait = self._judge(problem, pending.attempts).again_after
            if wait is not None:
                pending.due = loop.time() + wait
                lane.pending = pending
                return
            log.error("%s: a command has failed after %d attempts: %s", self.name, pending.attempts, problem)
            self.failed.append(FailedCommand(lane.id, problem, pending.attempts))
        finally:
            lane.running = False
        if lane.following is not None:
            work, delay, first = lane.following
            lane.following = None
            lane.pending = _Pending(work, loop.time() + delay, first)


class InlineWorker(Generic[Work]):
    """What a worker is where there is no server: the queue works by itself, and closing this drains it."""

    def __init__(self, queue: InlineQueue[Work]) -> None:
        self._queue = queue
        self._over = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Nothing: the queue works from the first command on."""

    async def run(self) -> None:
        """Return when this is closed."""
        await self._over.wait()

    async def close(self) -> None:
        """Return when all that was sent is done. More can be sent."""
        await self._queue.drain()
        self._over.set()
