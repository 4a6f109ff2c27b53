"""A worker on one partition: steps that give jobs up and take new ones, and the leases of those it has.

One call to Redis (a *step*) gives up all jobs that have ended since the last one and takes as many new ones
as there is room for. Two steps may be under way at once. So under load a call carries many jobs, and when
little is going on a job that ends is reported at once.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

from toril.connection import CommandRefused, ConnectionFailed, OutcomeUnknown
from toril.connection.wire import Argument
from toril.errors import TorilError
from toril.stream.errors import EntriesLost
from toril.stream.job import Taken
from toril.stream.options import StreamOptions
from toril.stream.store import PartitionStore, StepResult
from toril.stream.worker.schedules import fire_due

STEPS_AT_ONCE = 2
LARGEST_STEP = 100
"""Jobs given up, and jobs taken, in one step."""
FIRST_STEP = 10
"""Jobs asked for when it is not known that many wait: room that stays empty costs time, too."""
LONGEST_BEAT = 5.0
"""Seconds between two signs of life, at most."""
SUSPECT = 3
"""The delivery from which on a job may be what its workers were lost for: of these, one runs at a time."""
REFUSED_PAUSE = 1.0
"""Seconds until a server that has refused a call is asked again."""
_NO_WRITES_NOW = frozenset({"MISCONF", "OOM", "BUSY", "NOPERM", "NOAUTH"})
"""Codes of a server that executed nothing, until somebody sees to it: its disk is full, say."""

Lease = tuple[bytes, bytes, int]
"""Level, entry and delivery: a job that was lost and comes back has another one."""


class Ended(NamedTuple):
    """A job that is to be given up."""

    job: Taken
    args: list[Argument]
    """The outcome, for the script; nothing, where it is plainly done."""
    told: tuple[Any, ...] = ()
    """The event that says so, once it is certain."""


class Crew(Protocol):
    """What a lane needs of its worker."""

    options: StreamOptions
    consumer: str

    def room_for(self, lane: Lane) -> int:
        """How many more jobs a lane may have."""

    def begin(self, lane: Lane, job: Taken) -> None:
        """Work on a job."""

    def stop(self, lane: Lane, job: Taken, why: str) -> None:
        """Stop working on a job: ``lost`` or ``cancelled``."""

    def effect_failed(self, lane: Lane, job: Taken, why: str) -> None:
        """An effect of a job was refused."""

    def freed(self) -> None:
        """There is room again."""

    async def refresh(self) -> None:
        """Read the queue's options again: somebody may have changed them."""

    def emit(self, event: str, *args: Any) -> None:
        """Tell those who listen."""

    def report(self, problem: BaseException) -> None:
        """Log a problem."""


class Lane:
    """One partition, for one worker."""

    def __init__(self, worker: Crew, store: PartitionStore, capacity: int) -> None:
        self.store = store
        self.held: dict[Lease, Taken] = {}
        """The jobs it has, until it is certain that they were given up."""
        self.asked = 0
        """Jobs asked for in calls under way: they take up room already."""
        self.drained = False
        self._worker = worker
        self._ended: deque[Ended] = deque()
        self._giving_up: set[Lease] = set()
        """Jobs whose outcome is on its way: when they are no longer ours, that is as it should be."""
        self._largest_step = min(LARGEST_STEP, -(-capacity // STEPS_AT_ONCE))
        self._most = 2 * capacity + LARGEST_STEP
        """How many entries the worker may have here, with those whose reply was lost."""
        self._many_wait = False
        self._heard = 0
        """How often there was news of work: a step that was sent before must not say there is none."""
        self._flying = 0
        """Calls under way that bring jobs: a recovery must not take those for lost."""
        self._just_sent = False
        """In this turn of the event loop. The other step waits for the next one: two in one write are also
        answered together, and then server and worker only ever wait for each other."""
        self._landed = asyncio.Event()
        self._landed.set()
        self._recovering = asyncio.Lock()
        self._cursors: list[bytes] = []
        self._firing = False
        self._alarm: asyncio.TimerHandle | None = None
        self.wake = asyncio.Event()
        self.renew_now = asyncio.Event()
        self._idle = asyncio.Event()
        self._beat = min(worker.options.claim_idle / 4, LONGEST_BEAT)
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Be heard of, and begin."""
        await self.store.renew(self._worker.consumer, self._alive_for, [])
        loops = [self._keep_stepping() for _ in range(STEPS_AT_ONCE)]
        loops += [self._keep_waiting(), self._keep_leases(), self._keep_looking_after()]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def close(self) -> None:
        """Be heard of no more. The jobs are given up by now."""
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.store.bury_heartbeat(self._worker.consumer)
        except TorilError as problem:
            self._worker.report(problem)

    @property
    def load(self) -> int:
        """The jobs it works on, and those it has asked for: a job that has ended takes up no room."""
        return len(self.held) - len(self._giving_up) + self.asked

    @property
    def busy(self) -> bool:
        """Whether something is under way that must be waited for."""
        return bool(self.held or self._ended or self.asked)

    def end(self, ended: Ended) -> None:
        """Let the next step give a job up."""
        self._giving_up.add(ended.job.lease)
        self._ended.append(ended)
        self.wake.set()

    # ------------------------------------------------------------------ steps

    async def _keep_stepping(self) -> None:
        while True:
            if self._just_sent:
                await asyncio.sleep(0)
            ended, wanted = self._next_step()
            if not ended and not wanted:
                self.wake.clear()
                self._let_wait()
                await self.wake.wait()
                continue
            self.asked += wanted
            heard = self._heard
            self._just_sent = True
            asyncio.get_running_loop().call_soon(self._sent)
            try:
                result = await self._step(ended, wanted)
            finally:
                self.asked -= wanted
            self._settle(ended, result, wanted, heard)

    def _sent(self) -> None:
        self._just_sent = False

    def _next_step(self) -> tuple[list[Ended], int]:
        room = self._worker.room_for(self)
        if self._many_wait and self._flying and max(len(self._ended), room) < self._largest_step:
            return [], 0  # under load little waits until there is more, or the step under way is back
        ended = [self._ended.popleft() for _ in range(min(len(self._ended), self._largest_step))]
        # With nothing to give up, asking is worth a call only when there may be something to take.
        if room <= 0 or (self.drained and not ended):
            return ended, 0
        if self._many_wait:
            return ended, min(room, self._largest_step)
        if self.asked and not ended:
            return ended, 0  # the step under way finds out whether there is more than it asks for
        return ended, min(room, self._largest_step, FIRST_STEP)

    async def _step(self, ended: Sequence[Ended], wanted: int) -> StepResult:
        """A step, repeated until its outcome is known: a job that is done must not be run again."""
        given_up = [(each.job, each.args) for each in ended]
        repeated = False
        while True:
            try:
                async with self._in_flight():
                    result = await self.store.step(self._worker.consumer, wanted, self._most, given_up)
            except ConnectionFailed as problem:
                self._worker.report(problem)  # not executed; the connection has waited already
            except (OutcomeUnknown, CommandRefused) as problem:
                self._worker.report(problem)
                if isinstance(problem, CommandRefused):
                    await asyncio.sleep(REFUSED_PAUSE)
                    if problem.code in _NO_WRITES_NOW:
                        continue
                # It may have been executed. Giving up twice is harmless: the lease says whose a job is.
                repeated, wanted = True, 0
            else:
                if repeated:
                    result = result._replace(codes=[1 if code == 0 else code for code in result.codes])
                return result
            if repeated:
                await self._recover()

    @asynccontextmanager
    async def _in_flight(self) -> AsyncIterator[None]:
        async with self._recovering:
            self._flying += 1
            self._landed.clear()
        try:
            yield
        finally:
            self._flying -= 1
            if not self._flying:
                self._landed.set()

    async def _recover(self) -> None:
        """Find the jobs that came with a reply that was lost."""
        async with self._recovering:
            while True:
                await self._landed.wait()
                try:
                    found = await self.store.own(self._worker.consumer, self._most, list(self.held.values()))
                except TorilError as problem:
                    self._worker.report(problem)
                    await asyncio.sleep(REFUSED_PAUSE * random.random())
                    continue
                for job in found:
                    self._receive(job)
                return

    def _settle(self, ended: Sequence[Ended], result: StepResult, wanted: int, heard: int) -> None:
        for each, code in zip(ended, result.codes, strict=True):
            self._giving_up.discard(each.job.lease)
            if code in (0, 1):
                self.held.pop(each.job.lease, None)
                if code and each.told:
                    self._worker.emit(*each.told)
                elif not code:
                    self._worker.stop(self, each.job, "lost")
            elif code == b"LOST":
                self.held.pop(each.job.lease, None)
                self._lost([each.job.entry], 1)
            else:
                self._worker.effect_failed(self, each.job, code.decode(errors="replace"))
        for job in result.jobs:
            self._receive(job)
        if wanted:
            self._many_wait = len(result.jobs) == wanted
            self.drained = not self._many_wait and heard == self._heard
            if self._many_wait:
                self.wake.set()
            elif result.due_in is not None:
                self._wake_in(result.due_in)
            if result.schedules_due and not self._firing:
                self._firing = True
                self._tasks.append(asyncio.create_task(self._fire_due()))
        if ended or len(result.jobs) < wanted:
            self._worker.freed()

    def _receive(self, job: Taken) -> None:
        """A job has come: from a step, from another worker, or with a reply that was lost."""
        for lease in (
            [each for each in self.held if each[:2] == (job.level, job.entry)] if job.delivery > 1 else ()
        ):
            self._worker.stop(self, self.held.pop(lease), "lost")  # it was ours, and came back to us
        self.held[job.lease] = job
        self._worker.begin(self, job)

    def _lost(self, entries: Sequence[bytes], count: int) -> None:
        names = [entry.decode() for entry in entries]
        problem = EntriesLost(self.store.keys.label, names, count)
        self._worker.emit("lost", names, count)
        self._worker.report(problem)

    # ------------------------------------------------------------------ waiting for work

    def hear_news(self) -> None:
        """There may be something to take."""
        self._heard += 1
        self.drained = False
        self.wake.set()

    def _wake_in(self, seconds: float) -> None:
        """Look for jobs when something is due, whatever else happens until then."""
        loop = asyncio.get_running_loop()
        wait = min(max(0.001, seconds), self._worker.options.block)
        if self._alarm is not None:
            if loop.time() < self._alarm.when() <= loop.time() + wait:
                return
            self._alarm.cancel()
        self._alarm = loop.call_later(wait, self.hear_news)

    def _let_wait(self) -> None:
        """Let the waiting begin, when there is room and nothing to take."""
        if self.drained and self._worker.room_for(self) > 0:
            self._idle.set()

    async def _keep_waiting(self) -> None:
        """Block on the bell: whoever adds a job rings it."""
        options = self._worker.options
        while True:
            await self._idle.wait()
            self._idle.clear()
            try:
                rung = await self.store.wait(options.group, options.block)
                if rung and self._worker.room_for(self) <= 0:
                    await self.store.ring()  # another worker may have use for it
            except (ConnectionFailed, OutcomeUnknown) as problem:
                self._worker.report(problem)
            except CommandRefused as problem:
                if problem.code == "NOGROUP":  # the server was flushed
                    await self._repair()
                else:
                    self._worker.report(problem)
                    await asyncio.sleep(REFUSED_PAUSE)
            self.hear_news()

    async def _repair(self) -> None:
        try:
            await self.store.repair()
        except TorilError as problem:
            self._worker.report(problem)
            await asyncio.sleep(REFUSED_PAUSE)

    # ------------------------------------------------------------------ leases, lost workers, upkeep

    @property
    def _alive_for(self) -> int:
        return round(3000 * self._beat)

    async def _keep_leases(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._beat):
                    await self.renew_now.wait()
            except TimeoutError:
                pass
            self.renew_now.clear()
            held = list(self.held.values())
            try:
                codes = await self.store.renew(self._worker.consumer, self._alive_for, held)
            except TorilError as problem:
                self._worker.report(problem)
                await asyncio.sleep(self._beat / 10)
                continue
            for job, code in zip(held, codes, strict=True):
                if job.lease in self._giving_up:
                    continue
                if code == 0 and job.lease in self.held:
                    del self.held[job.lease]
                    self._worker.stop(self, job, "lost")
                elif code == 2:
                    self._worker.stop(self, job, "cancelled")

    async def _keep_looking_after(self) -> None:
        """Take over what lost workers had, and look after the partition, one worker at a time."""
        while True:
            try:
                await self._reclaim()
                await self._worker.refresh()
                self._beat = min(self._worker.options.claim_idle / 4, LONGEST_BEAT)
                if await self.store.may_look_after(round(1000 * self._beat)):
                    _, lost = await self.store.upkeep()
                    if lost:
                        self._lost([], lost)
            except TorilError as problem:
                self._worker.report(problem)
            await asyncio.sleep(self._beat * random.uniform(0.75, 1.25))

    async def _reclaim(self) -> None:
        idle = round(1000 * self._worker.options.claim_idle)
        while (wanted := min(self._worker.room_for(self), LARGEST_STEP)) > 0:
            self.asked += wanted
            try:
                async with self._in_flight():
                    suspects = int(all(job.delivery < SUSPECT for job in self.held.values()))
                    found = await self.store.reclaim(
                        self._worker.consumer, idle, wanted, suspects, self._cursors
                    )
            except OutcomeUnknown as problem:
                self._worker.report(problem)
                await self._recover()
                return
            finally:
                self.asked -= wanted
                self.wake.set()  # a step may have found no room meanwhile
                self._worker.freed()
            self._cursors = found.cursors
            for job in found.jobs:
                self._worker.emit("reclaimed", job.local_id)
                self._receive(job)
            if found.lost:
                self._lost(found.lost, len(found.lost))
            if len(found.jobs) < wanted:
                return

    async def _fire_due(self) -> None:
        """Add the jobs of schedules that are due."""
        try:
            for schedule in await fire_due(self.store):
                self._worker.emit("skipped", schedule)
        except TorilError as problem:
            self._worker.report(problem)
        finally:
            self._firing = False
            current = asyncio.current_task()
            self._tasks = [task for task in self._tasks if task is not current]
        self.hear_news()
