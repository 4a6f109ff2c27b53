"""The worker: takes jobs in batches, runs them side by side, and gives them up in batches.

One call to Redis (a *step*) gives up all jobs that have ended since the last one and takes as many new ones
as there is room for. Two steps may be under way at once. So under load a call carries many jobs, and when
little is going on a job that ends is reported at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import traceback
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from toril.connection import (
    CommandRefused,
    Connection,
    ConnectionFailed,
    OutcomeUnknown,
    ScriptFailed,
    connect,
)
from toril.errors import InvalidValue, TorilError
from toril.handler import HandlerFailed, Handlers, Runner, UnfitPayload
from toril.keyspace import QueueKeys
from toril.queue.errors import (
    DelayedError,
    QueueError,
    RateLimitError,
    UnrecoverableError,
    WaitingChildrenError,
    error_of,
)
from toril.queue.handle import Job
from toril.queue.job import JobData
from toril.queue.options import KeepJobs, Milliseconds, milliseconds
from toril.queue.outcomes import BackoffStrategy, Delayed, HandedBack, Outcome, completed, failed
from toril.queue.queue import client_name
from toril.queue.store import Clock, QueueStore, StepResult, TakeOptions, wall_clock
from toril.queue.worker.iteration import make_next_run
from toril.queue.worker.steps import REFUSED_PAUSE, Steps
from toril.queue.worker.verdict import unrecoverable_reason

if TYPE_CHECKING:  # it needs OpenTelemetry, which is an extra
    from toril.queue.telemetry import Telemetry

log = logging.getLogger("toril.queue")

STEPS_AT_ONCE = 2
LARGEST_STEP = 100
"""Jobs given up, and jobs taken, in one step: Redis is busy for about 30 µs with each."""
FIRST_STEP = 10
"""Jobs asked for when it is not known that many wait: room that stays empty costs time, too."""

TURNS_APART = 4
"""Turns of the event loop from a step's reply to the next step: jobs start, end, are given up, and sent."""

LONGEST_BLOCK = 10.0
"""Seconds; a worker that waits for a delayed job looks again after this, as Node's does."""


@dataclass(frozen=True, slots=True)
class Limiter:
    """At most ``max`` jobs in ``duration``, over all workers with this limiter."""

    max: int
    duration: Milliseconds

    def __post_init__(self) -> None:
        if isinstance(self.max, bool) or not isinstance(self.max, int) or self.max < 1:
            raise InvalidValue("limiter max", self.max, "a whole number from 1 up")
        if milliseconds("limiter duration", self.duration) < 1:
            raise InvalidValue("limiter duration", self.duration, "at least a millisecond")


@dataclass(slots=True)
class _Running:
    """A job under way."""

    job: Job
    task: asyncio.Task[None]
    stopped: str = ""
    """Why its handler was stopped: ``close``, ``lost`` (its lock), or a reason to fail with."""


class _Ended(NamedTuple):
    """A job that is to be given up."""

    job: Job
    outcome: Outcome
    value: Any = None
    problem: BaseException | None = None


class Worker(Handlers):
    """Works on the jobs of a queue.

    ::

        worker = Worker(make_queue_name("emails"), concurrency=20)

        @worker.handler("welcome")
        async def welcome(job, email: Email):
            await job.update_progress(50)
            return {"sent": True}

        async with worker:
            await worker.run()       # until worker.close(), or a signal under `toril worker`

    ``redis`` is a URL, a connection (the worker opens one of its own to the same place), or None for the
    embedded server. Times are milliseconds as in BullMQ, or timedeltas; ``grace`` and ``drain_delay`` are
    seconds.

    ``@worker.on(event)`` hears of ``active(job)``, ``completed(job, value)``, ``failed(job, error)``,
    ``stalled(job_id)``, ``lock_lost(job)`` and ``error(error)``.
    """

    EVENTS: ClassVar[tuple[str, ...]] = ("active", "completed", "failed", "stalled", "lock_lost", "error")

    def __init__(
        self,
        name: str,
        redis: Connection | str | None = None,
        *,
        prefix: str = "bull",
        concurrency: int = 1,
        worker_name: str = "",
        lock_duration: Milliseconds = 30_000,
        stalled_interval: Milliseconds = 30_000,
        max_stalled_count: int = 1,
        max_started_attempts: int | None = None,
        limiter: Limiter | None = None,
        drain_delay: float = 5.0,
        remove_on_complete: KeepJobs | None = None,
        remove_on_fail: KeepJobs | None = None,
        metrics_points: int | None = None,
        backoff_strategy: BackoffStrategy | None = None,
        telemetry: Telemetry | None = None,
        grace: float = 30.0,
        clock: Clock = wall_clock,
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidValue("concurrency", concurrency, "a whole number from 1 up")
        if any(char.isspace() for char in worker_name):
            raise InvalidValue("worker name", worker_name, "it must not contain spaces (CLIENT SETNAME)")
        self.keys = QueueKeys(name, prefix)
        super().__init__(self.keys.name, log)
        self.concurrency = concurrency
        self.name = worker_name
        self._redis_or_url = redis
        self._redis: Connection | None = None
        self._clock = clock
        self._lock_ms = max(1, milliseconds("lock_duration", lock_duration))
        self._sweep_ms = max(1, milliseconds("stalled_interval", stalled_interval))
        self._max_stalled = max_stalled_count
        self._max_started = max_started_attempts
        self._drain_delay = drain_delay
        self._keep_completed, self._keep_failed = remove_on_complete, remove_on_fail
        self._backoff = backoff_strategy
        self._grace = grace
        self._telemetry = telemetry
        self._take = TakeOptions(
            lock_duration=self._lock_ms,
            limiter_max=limiter.max if limiter else None,
            limiter_duration=milliseconds("limiter duration", limiter.duration) if limiter else None,
            worker=worker_name,
            metrics_points=metrics_points,
        )
        self._runner = Runner()
        self._token = str(uuid.uuid4())
        self._count = itertools.count(1)
        self._running: dict[str, _Running] = {}
        """By lock token: a job that stalled and came back has another one."""
        self._ended: deque[_Ended] = deque()
        # While one step is on its way, the jobs of the other one are worked on.
        self._largest_step = min(LARGEST_STEP, -(-concurrency // STEPS_AT_ONCE))
        self._many_wait = False
        """Whether the last step brought all it asked for."""
        self._asked = 0
        """Jobs asked for in steps under way: they take up room already."""
        self._settled_now = False
        """Whether the reply to a step came in this turn of the event loop."""
        self._drained = False
        self._heard = 0
        """How often there was news of work: a step that was sent before must not say there is none."""
        self._limited_until = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        """Rings when the next delayed job is due."""
        self._paused = False
        self._closing = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------ life

    @property
    def store(self) -> QueueStore:
        """The queue's state; after :meth:`start`."""
        assert self._redis is not None, "the worker has not been started"
        return self._store

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(force=problem is not None)

    async def start(self) -> None:
        """Connect, and begin to work. Returns at once."""
        if not self._handlers:
            raise InvalidValue("worker", self.keys.name, "it has no handler: use @worker.handler(…)")
        if self._redis is not None:
            raise InvalidValue("worker", self.keys.name, "it was started already")
        name = client_name(self.keys, self.name)
        if isinstance(self._redis_or_url, Connection):
            self._redis = await self._redis_or_url.another(name)
        else:
            self._redis = await connect(self._redis_or_url, client_name=name)
        try:
            self._store = QueueStore(self._redis, self.keys, self._clock)
        except BaseException:
            await self._redis.close()
            raise
        self._steps = Steps(self._store, self._take, report=self.report, start=self._start_job)
        work = [self._keep_stepping() for _ in range(STEPS_AT_ONCE)]
        work += [self._keep_waiting(), self._keep_locks(), self._keep_sweeping()]
        self._tasks = [asyncio.create_task(each) for each in work]
        self._wake.set()

    async def run(self) -> None:
        """Return when the worker is closed."""
        await self._over.wait()

    def pause(self) -> None:
        """Take no more jobs; those under way go on."""
        self._paused = True

    def resume(self) -> None:
        """Take jobs again."""
        self._paused = False
        self._hear_news()

    def cancel(self, job_id: str, reason: str = "cancelled") -> bool:
        """Stop a job that this worker has: it fails for good, with that reason. False: it has no such job."""
        for running in self._running.values():
            if running.job.id == job_id and not running.stopped:
                running.stopped = reason or "cancelled"
                running.task.cancel()
                return True
        return False

    async def close(self, *, force: bool = False, grace: float | None = None) -> None:
        """Take no more jobs, let those under way end within the grace time, and hand the rest back.

        ``force``: hand them back at once. The next worker runs what was handed back from its start.
        """
        if self._redis is None or self._over.is_set():
            return
        self._closing = True
        wait = 0.0 if force else (self._grace if grace is None else grace)
        if self._running and wait > 0:
            await asyncio.wait([running.task for running in self._running.values()], timeout=wait)
        # A step that was under way may still bring jobs, so this is asked again until nothing is left.
        while self._running or self._ended or self._asked:
            for running in self._running.values():
                if not running.stopped:
                    running.stopped = "close"
                    running.task.cancel()
            self._wake.set()
            await asyncio.sleep(0.005)
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._runner.close()
        await self._redis.close()
        self._over.set()

    # ------------------------------------------------------------------ steps

    async def _keep_stepping(self) -> None:
        while True:
            ended, wanted = self._next_step()
            if not ended and not wanted:
                self._wake.clear()
                self._let_wait()
                await self._wake.wait()
                continue
            tokens = [f"{self._token}:{next(self._count)}" for _ in range(wanted)]
            self._asked += wanted
            heard = self._heard
            try:
                result = await self._steps.step([each.outcome for each in ended], tokens)
                await self._keep_apart()
            finally:
                self._asked -= wanted
            self._settle(ended, result, wanted, heard)

    async def _keep_apart(self) -> None:
        """When the replies to two steps come at once, send the first one's next step before the second one's.

        Steps that are sent together are answered together, again and again: the worker would wait while the
        server works, and the server while the worker does.
        """
        if self._settled_now:
            for _ in range(TURNS_APART):
                await asyncio.sleep(0)
        self._settled_now = True
        asyncio.get_running_loop().call_soon(self._turn_over)

    def _turn_over(self) -> None:
        self._settled_now = False

    @property
    def _room(self) -> int:
        """How many more jobs may be taken now."""
        if self._closing or self._paused:
            return 0
        return self.concurrency - len(self._running) - self._asked

    def _next_step(self) -> tuple[list[_Ended], int]:
        ended = [self._ended.popleft() for _ in range(min(len(self._ended), self._largest_step))]
        # With nothing to give up, asking is worth a call only when there may be something to take.
        if self._room <= 0 or (self._drained and not ended) or time.monotonic() < self._limited_until:
            return ended, 0
        if self._many_wait:
            return ended, min(self._room, self._largest_step)
        if self._asked and not ended:
            return ended, 0  # the step under way finds out whether there is more than it asks for
        return ended, min(self._room, self._largest_step, FIRST_STEP)

    def _settle(self, ended: Sequence[_Ended], result: StepResult, wanted: int, heard: int) -> None:
        refused = False
        for text in result.failures.values():
            self.report(ScriptFailed(text))
        for each, code in zip(ended, result.codes, strict=True):
            if isinstance(each.outcome, HandedBack) and code > 0:
                self._limit(code)
            elif code < 0:
                refused = True
                self._refused(each, code)
            elif each.problem is None:
                self.emit("completed", each.job, each.value)
            elif not isinstance(each.outcome, HandedBack):
                self.emit("failed", each.job, each.problem)
        for job in result.jobs:
            self._start_job(job)
        if wanted and not refused:
            self._many_wait = len(result.jobs) == wanted
            if self._many_wait:
                self._drained = False
                self._wake.set()
            else:
                self._drained = not self._limit(result.limited_for) and heard == self._heard
                if result.next_due:
                    self._wake_at(result.next_due)

    def _refused(self, each: _Ended, code: int) -> None:
        problem = error_of(code, each.outcome.verb, job=each.job.id)
        self.report(problem)
        if code in (-4, -9) and each.problem is None:
            # It cannot be completed while it has children that are pending or have failed: so it has failed.
            reason = UnrecoverableError(str(problem)) if code == -9 else problem
            self._end_failed(each.job, reason)

    def _limit(self, for_ms: int) -> bool:
        """Take no jobs while a rate limit holds."""
        if for_ms <= 0:
            return False
        self._limited_until = time.monotonic() + for_ms / 1000
        asyncio.get_running_loop().call_later(for_ms / 1000, self._wake.set)
        return True

    # ------------------------------------------------------------------ waiting for work

    def _hear_news(self) -> None:
        """There may be something to take."""
        self._heard += 1
        self._drained = False
        self._wake.set()

    def _wake_at(self, due: int) -> None:
        """Look for jobs when a delayed one is due, whatever else happens until then."""
        loop = asyncio.get_running_loop()
        wait = min(max(0.001, (due - self._clock()) / 1000), LONGEST_BLOCK)
        if self._alarm is not None:
            if loop.time() < self._alarm.when() <= loop.time() + wait:
                return
            self._alarm.cancel()
        self._alarm = loop.call_later(wait, self._hear_news)

    def _let_wait(self) -> None:
        """Let the waiting begin, when there is room and nothing to take."""
        if self._drained and self._room > 0:
            self._idle.set()

    async def _keep_waiting(self) -> None:
        """Block on the marker (a.12): whoever adds a job ends the wait."""
        wait = self._drain_delay
        while True:
            await self._idle.wait()
            self._idle.clear()
            try:
                popped = await self._store.redis.command(
                    "BZPOPMIN", self.keys.marker, round(wait, 3), blocks_for=wait, repeatable=True
                )
                if popped and self._room <= 0:
                    # Another worker may have use for it.
                    _, member, score = popped
                    await self._store.redis.command(
                        "ZADD", self.keys.marker, "LT", score, member, repeatable=True
                    )
                    continue
            except (ConnectionFailed, OutcomeUnknown) as problem:
                self.report(problem)
                popped = None
            except CommandRefused as problem:
                self.report(problem)
                await asyncio.sleep(REFUSED_PAUSE)
                popped = None
            due = int(float(popped[2])) if popped else 0
            if due > self._clock():
                self._wake_at(due)
                self._idle.set()
            else:
                self._hear_news()

    # ------------------------------------------------------------------ jobs

    def _start_job(self, taken: JobData) -> None:
        job = Job.of(self._store, taken)
        task = asyncio.create_task(self._work_on(job))
        self._running[job.token] = _Running(job, task)
        task.add_done_callback(lambda _: self._stopped_before_it_began(job))
        self.emit("active", job)

    def _stopped_before_it_began(self, job: Job) -> None:
        """A task that is cancelled before its first turn runs nothing, also not what would clean up."""
        running = self._running.pop(job.token, None)
        if running is not None:
            self._end_stopped(job, running.stopped)

    async def _work_on(self, job: Job) -> None:
        try:
            value = await self._run_handler(job)
            self._end(_Ended(job, completed(job, value, self._keep_completed), value))
        except RateLimitError as problem:
            self._end(_Ended(job, HandedBack(job.id, job.token), problem=problem))
        except (DelayedError, WaitingChildrenError):
            pass  # the handler has moved it already
        except asyncio.CancelledError:
            stopped = self._running[job.token].stopped
            if stopped:
                self._end_stopped(job, stopped)
            else:
                self._end_failed(job, QueueError("the handler was cancelled, and not by its worker"))
        except Exception as problem:  # noqa: BLE001 - whatever a handler raises is its job's failure
            self._end_failed(job, problem)
        finally:
            del self._running[job.token]
            self._wake.set()

    def _end_stopped(self, job: Job, why: str) -> None:
        if why == "close":
            self._end(_Ended(job, HandedBack(job.id, job.token), problem=QueueError("handed back")))
        elif why != "lost":
            self._end_failed(job, UnrecoverableError(why))

    async def _run_handler(self, job: Job) -> Any:
        reason = unrecoverable_reason(job, self._max_started)
        if reason is not None:
            raise UnrecoverableError(reason)
        if job.scheduler_id is not None:
            await self._schedule_next(job)
        handler = self.handler_for(job.name)
        if handler is None:
            raise UnrecoverableError(f"no handler for jobs named {job.name!r}")
        try:
            if self._telemetry is None:
                return await self._runner.run(handler, job)
            with self._telemetry.processing(self.keys.name, job):
                return await self._runner.run(handler, job)
        except UnfitPayload as problem:
            raise UnrecoverableError(str(problem)) from None

    async def _schedule_next(self, job: Job) -> None:
        """Make the scheduler's next job; when that fails, this one comes back later and tries again."""
        try:
            await make_next_run(self._store, job)
        except Exception as problem:
            self.report(problem)
            wait = min(1000 * 2**job.attempts_started, 300_000)
            await self._store.give_up(Delayed(job.id, job.token, wait, keeps_attempt=True))
            raise DelayedError from problem

    def _end_failed(self, job: Job, problem: BaseException) -> None:
        trace = (
            problem.trace
            if isinstance(problem, HandlerFailed)
            else "".join(traceback.format_exception(problem))
        )
        try:
            outcome = failed(job, problem, trace, keep=self._keep_failed, strategy=self._backoff)
        except TorilError as unknown:
            # As in Node: a job with a backoff that nobody knows stays active, and will stall.
            self.report(unknown)
            return
        self._end(_Ended(job, outcome, problem=problem))

    def _end(self, ended: _Ended) -> None:
        self._ended.append(ended)
        self._wake.set()

    # ------------------------------------------------------------------ locks and lost workers

    async def _keep_locks(self) -> None:
        while True:
            await asyncio.sleep(self._lock_ms / 4000)
            held = [(running.job.id, token) for token, running in self._running.items()]
            for start in range(0, len(held), LARGEST_STEP):
                try:
                    lost = await self._store.renew(held[start : start + LARGEST_STEP], self._lock_ms)
                except TorilError as problem:
                    self.report(problem)
                    continue
                self._stop_lost([token for _, token in lost])

    def _stop_lost(self, tokens: Sequence[str]) -> None:
        """Another worker may have these jobs by now: stop working on them, and report nothing."""
        for token in tokens:
            running = self._running.get(token)
            if running is not None and not running.stopped:
                running.stopped = "lost"
                running.task.cancel()
                self.report(error_of(-2, "extendLocks", job=running.job.id))
                self.emit("lock_lost", running.job)

    async def _keep_sweeping(self) -> None:
        while True:
            try:
                for job_id in await self._store.sweep(self._max_stalled, self._sweep_ms):
                    self.emit("stalled", job_id)
            except TorilError as problem:
                self.report(problem)
            await asyncio.sleep(self._sweep_ms / 1000)
