"""The worker: runs handlers on the jobs of all partitions of a queue."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from toril import codec
from toril.connection import Connection, Subscription, connect
from toril.errors import InvalidValue, TorilError
from toril.handler import Handler, Handlers, Runner, UnfitPayload, UnrecoverableError
from toril.stream.errors import LeaseLost, StreamError
from toril.stream.job import Outcome, Taken, cancelled, dead, done, later
from toril.stream.options import StreamOptions, check_text, check_whole
from toril.stream.partitions import Partitions
from toril.stream.worker.desks import Desks
from toril.stream.worker.job import StreamJob
from toril.stream.worker.lane import Ended, Lane, Lease
from toril.stream.worker.verdict import verdict_on

if TYPE_CHECKING:  # it needs OpenTelemetry, which is an extra
    from toril.stream.telemetry import Telemetry

log = logging.getLogger("toril.stream")

CANCELLED_FOR = 60_000
"""Milliseconds that it is known of a job that it was cancelled, at least."""


@dataclass(slots=True)
class _Running:
    """A job under way."""

    lane: Lane
    job: StreamJob
    task: asyncio.Task[None]
    stopped: str = ""
    """Why its handler was stopped: ``close``, ``lost`` or ``cancelled``."""


class StreamWorker(Handlers):
    """Works on the jobs of a stream queue, in all its partitions.

    ::

        worker = StreamWorker("fd:step_queue", concurrency=20)

        @worker.handler("llm")
        async def think(job, step: StepJob):
            return {"answer": 42}

        async with worker:
            await worker.run()       # until worker.close(), or a signal under `toril worker`

    ``redis`` is a URL, a connection (the worker opens one of its own to the same place), or None for the
    embedded server. ``prefetch`` jobs are taken ahead, and wait here. ``consumer`` is what the worker is
    called in the group; each needs a name of its own. ``options`` are those of the queue: see
    :class:`~toril.stream.StreamQueue`. ``grace``: seconds that jobs may still take when the worker is closed.

    ``@worker.on(event)`` hears of ``active(job)``, ``completed(job, value)``, ``failed(job, error)`` (it is
    tried again), ``dead(job, error)``, ``cancelled(job)``, ``lease_lost(job)``, ``reclaimed(job_id)`` (from a
    worker that was lost), ``lost(entries, count)`` (jobs that somebody has deleted), ``skipped(schedule)``
    (the backlog was full) and ``error(error)``.
    """

    EVENTS: ClassVar[tuple[str, ...]] = (
        *("active", "completed", "failed", "dead", "cancelled", "lease_lost", "reclaimed", "lost", "skipped"),
        "error",
    )

    def __init__(
        self,
        name: str,
        redis: Connection | str | None = None,
        *,
        concurrency: int = 1,
        prefetch: int = 0,
        consumer: str | None = None,
        options: StreamOptions | None = None,
        telemetry: Telemetry | None = None,
        grace: float = 30.0,
    ) -> None:
        super().__init__(name, log)
        self.name = name
        self.concurrency = check_whole("concurrency", concurrency, 1)
        self.prefetch = check_whole("prefetch", prefetch, 0)
        host = "".join(char if char.isalnum() or char in ".-_" else "_" for char in socket.gethostname())
        unique = f"consumer-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.consumer = check_text("consumer", unique if consumer is None else consumer)
        self.options = options or StreamOptions()
        self._given = options
        self._redis_or_url = redis
        self._redis: Connection | None = None
        self._telemetry = telemetry
        self._grace = grace
        self._runner = Runner()
        self._lanes: list[Lane] = []
        self._running: dict[tuple[int, Lease], _Running] = {}
        self._waiting: deque[tuple[Lane, Taken]] = deque()
        """Jobs that nobody works on yet."""
        self._desks: Desks | None = None
        self._quiet = asyncio.Event()
        """Set when the worker closes, and no job is under way any more."""
        self._paused = False
        self._closing = False
        self._over = asyncio.Event()
        self._news: Subscription | None = None
        self._listening: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ life

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
            raise InvalidValue("worker", self.name, "it has no handler: use @worker.handler(…)")
        if self._redis is not None:
            raise InvalidValue("worker", self.name, "it was started already")
        client = f"toril:stream:{self.name}:{self.consumer}".replace(" ", "_")
        if isinstance(self._redis_or_url, Connection):
            self._redis = await self._redis_or_url.another(client)
        else:
            self._redis = await connect(self._redis_or_url, client_name=client)
        try:
            self._partitions = Partitions(self.name, self._redis, self._given, None)
            opened = await self._partitions.open()
            self._desks = Desks(self.concurrency, self._next_job)
            self.options = opened.options
            self._lanes = [Lane(self, store, self.concurrency + self.prefetch) for store in opened.stores]
            for lane in self._lanes:
                await lane.start()
        except BaseException:
            await self._redis.close()
            raise
        self._news = self._redis.subscribe([lane.store.keys.news for lane in self._lanes])
        self._listening = asyncio.create_task(self._listen(self._news))

    async def run(self) -> None:
        """Work until the worker is closed; starts it where that was not done."""
        if self._redis is None:
            await self.start()
        await self._over.wait()

    def pause(self) -> None:
        """Take no more jobs for now; those under way go on. The queue's own pause is for all its workers."""
        self._paused = True

    def resume(self) -> None:
        """Take jobs again."""
        self._paused = False
        for lane in self._lanes:
            lane.hear_news()

    @property
    def is_busy(self) -> bool:
        """Whether jobs are under way."""
        return bool(self._running)

    async def close(self, *, force: bool = False, grace: float | None = None) -> None:
        """Take no more jobs, let those under way end within the grace time, and hand the rest back.

        ``force``: hand them back at once. The next worker runs what was handed back from its start.
        """
        if self._redis is None or self._over.is_set():
            return
        self._closing = True
        while self._waiting:
            self._hand_back(*self._waiting.popleft())
        wait = 0.0 if force else (self._grace if grace is None else grace)
        if self._running and wait > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._quiet.wait()
        # A step that was under way may still bring jobs, so this is asked again until nothing is left.
        while any(lane.busy for lane in self._lanes):
            for running in self._running.values():
                if not running.stopped:
                    running.stopped = "close"
                    running.task.cancel()
            for lane in self._lanes:
                lane.wake.set()
            await asyncio.sleep(0.005)
        await asyncio.gather(*(lane.close() for lane in self._lanes))
        if self._desks is not None:
            await self._desks.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        self._runner.close()
        await self._redis.close()
        self._over.set()

    async def _listen(self, news: Subscription) -> None:
        """A running job is to be stopped: the leases say which."""
        try:
            async with news:
                async for rung in news:
                    for lane in self._lanes:
                        if lane.store.keys.news in rung:
                            lane.renew_now.set()
        except TorilError as problem:
            self.report(problem)  # it is heard of when the leases are renewed, then

    # ------------------------------------------------------------------ what the lanes ask for

    def room_for(self, lane: Lane) -> int:
        """How many more jobs a lane may have: its share, if others have some."""
        if self._closing or self._paused:
            return 0
        capacity = self.concurrency + self.prefetch
        room = capacity - sum(each.load for each in self._lanes)
        if len(self._lanes) == 1:
            return room
        busy = sum(not each.drained or each is lane for each in self._lanes)
        return min(room, -(-capacity // busy) - lane.load)

    def freed(self) -> None:
        """Wake the lanes: they may use the room that another one has left, or may wait for news again."""
        if len(self._lanes) > 1:
            for lane in self._lanes:
                lane.wake.set()

    async def refresh(self) -> None:
        """Work by the options that the queue has by now."""
        self.options = await self._partitions.read()

    def begin(self, lane: Lane, job: Taken) -> None:
        """Work on a job, or keep it for when there is somebody to."""
        if self._closing:
            self._hand_back(lane, job)
        else:
            self._waiting.append((lane, job))
            assert self._desks is not None
            self._desks.call(len(self._waiting))

    def stop(self, lane: Lane, job: Taken, why: str) -> None:
        """Stop working on a job that is another worker's by now, or is not wanted any more."""
        running = self._running.get((id(lane), job.lease))
        if running is None:
            waiting = (lane, job)
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                if why == "cancelled":
                    self._end_cancelled(lane, StreamJob(lane.store, job))
            elif why == "lost":
                self._tell_lost(StreamJob(lane.store, job))
        elif not running.stopped:
            running.stopped = why
            running.task.cancel()
            if why == "lost":
                self._tell_lost(running.job)

    def _tell_lost(self, job: StreamJob) -> None:
        self.report(
            LeaseLost(f"the lease of job {job.id} is lost: another worker has it, or it was cancelled")
        )
        self.emit("lease_lost", job)

    def effect_failed(self, lane: Lane, job: Taken, why: str) -> None:
        """What the handler wanted to take place with the end of its job, cannot: so the job has failed."""
        self._end_failed(
            lane, StreamJob(lane.store, job), UnrecoverableError(f"an effect was refused: {why}")
        )

    # ------------------------------------------------------------------ jobs

    def _next_job(self, task: asyncio.Task[None]) -> Awaitable[None] | None:
        """Begin with the next job that waits."""
        if not self._waiting:
            return None
        lane, taken = self._waiting.popleft()
        if self._waiting and self._desks is not None:
            self._desks.call(len(self._waiting))
        return self._work_on(_Running(lane, StreamJob(lane.store, taken), task))

    async def _work_on(self, running: _Running) -> None:
        lane, job, task = running.lane, running.job, running.task
        place = (id(lane), job.taken.lease)
        self._running[place] = running
        if "active" in self._listeners:
            self.emit("active", job)
        try:
            value = await self._run_handler(job)
            ttl = job.brought.result_ttl if job.taken.options else 0
            result = Outcome("completed", value).text() if ttl else b""
            lane.end(Ended(job.taken, done(job.taken, ttl, result, job.effects), ("completed", job, value)))
        except asyncio.CancelledError:
            if running.stopped:
                self._end_stopped(running)
            else:
                self._end_failed(lane, job, StreamError("the handler was cancelled, and not by its worker"))
        except Exception as problem:  # noqa: BLE001 - whatever a handler raises is its job's failure
            self._end_failed(lane, job, problem)
        finally:
            del self._running[place]
            if self._closing and not self._running:
                self._quiet.set()
            while task.cancelling():  # the task goes on with another job
                task.uncancel()

    def _run_handler(self, job: StreamJob) -> Awaitable[Any]:
        try:
            job.data = codec.decode(job.taken.data)
        except ValueError as problem:
            raise UnfitPayload(f"the data is not JSON: {problem}") from None
        handler = self.handler_for(job.name)
        if handler is None:
            raise UnrecoverableError(f"no handler for jobs named {job.name!r}")
        if self._telemetry is not None:
            return self._traced(handler, job)
        return self._runner.run(handler, job, job.brought.timeout if job.taken.options else None)

    async def _traced(self, handler: Handler, job: StreamJob) -> Any:
        assert self._telemetry is not None
        with self._telemetry.processing(self.name, job):
            return await self._runner.run(handler, job, timeout=job.brought.timeout)

    def _end_stopped(self, running: _Running) -> None:
        if running.stopped == "close":
            self._hand_back(running.lane, running.job.taken)
        elif running.stopped == "cancelled":
            self._end_cancelled(running.lane, running.job)

    def _hand_back(self, lane: Lane, taken: Taken) -> None:
        lane.end(Ended(taken, later(taken, 0, taken.attempts, "")))

    def _end_cancelled(self, lane: Lane, job: StreamJob) -> None:
        ttl = max(job.brought.result_ttl, CANCELLED_FOR)
        args = cancelled(job.taken, ttl, Outcome("cancelled").text())
        lane.end(Ended(job.taken, args, ("cancelled", job)))

    def _end_failed(self, lane: Lane, job: StreamJob, problem: BaseException) -> None:
        verdict = verdict_on(problem, job.attempts_made, job.brought.retries, self.options)
        if verdict.delay is not None:
            args = later(job.taken, verdict.delay, verdict.attempts, verdict.error)
            lane.end(Ended(job.taken, args, ("failed", job, problem)))
            return
        ttl = job.brought.result_ttl
        outcome = Outcome("dead", reason=verdict.reason, error=verdict.error).text() if ttl else b""
        args = dead(job.taken, verdict.reason, verdict.attempts, verdict.error, ttl, outcome)
        lane.end(Ended(job.taken, args, ("dead", job, problem)))
