"""The queue: adding jobs, looking at them, and deciding about them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from toril.connection import Connection, Durability
from toril.connection.durability import Level
from toril.errors import InvalidValue
from toril.keyspace import STREAM_METAS, Key, StreamKeys, stream_of
from toril.stream.adding import add_jobs, check_job
from toril.stream.errors import BulkFailed, JobMissing
from toril.stream.handle import JobHandle
from toril.stream.job import AddJob, Outcome
from toril.stream.options import Route, StreamOptions, check_text
from toril.stream.partitions import Opened, Partitions, local_id, partition_of, public_id
from toril.stream.results import Results
from toril.stream.schedules import Plan, Schedule, next_match, schedule_of
from toril.stream.step_job import STEP_ROUTE, StepJob
from toril.stream.store import PartitionStore
from toril.stream.views import (
    DeadLetter,
    JobView,
    PendingJob,
    StreamMetrics,
    WorkerView,
    partition_metrics,
    summed,
)

if TYPE_CHECKING:  # it needs OpenTelemetry, which is an extra
    from toril.stream.telemetry import Telemetry

DEFAULT_QUEUE = "fd:step_queue"

CANCELLED_FOR = 60_000
"""Milliseconds that it is known of a job that it was cancelled."""


class StreamQueue:
    """A job queue on Redis Streams, on a connection that the caller closes.

    ::

        queue = StreamQueue("fd:step_queue", redis)
        job = await queue.add(StepJob(run_id="r1", step_id="s1", step_type="llm", …), result_ttl=60)
        await job.result()

    ``schema`` is the type of the data: :class:`StepJob`, a type of your own, or None for any JSON. ``route``
    says which of its fields are the job's name, order key, tenant and priority. ``options`` and ``route`` are
    written down in Redis; without them the queue has those it had, or the usual ones.
    """

    def __init__(
        self,
        name: str,
        redis: Connection,
        *,
        options: StreamOptions | None = None,
        schema: Any = StepJob,
        route: Route | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        if route is None and schema is StepJob:
            route = STEP_ROUTE
        self.name = name
        self.redis = redis
        self.schema = schema
        self._partitions = Partitions(name, redis, options, route)
        self._telemetry = telemetry
        self._turns = itertools.count()
        self.results = Results(redis)
        """Tells those who wait for results when to look."""

    def __repr__(self) -> str:
        return f"StreamQueue({self.name!r})"

    async def open(self) -> Opened:
        """Make the queue where it is missing, and read its options. Every call does this at first."""
        return await self._partitions.open()

    @property
    def home(self) -> StreamKeys:
        """Where the queue describes itself; with one partition, all its keys."""
        return self._partitions.home

    async def options(self) -> StreamOptions:
        """The options that the queue has."""
        return (await self.open()).options

    # ------------------------------------------------------------------ adding

    async def add(
        self,
        data: Any,
        *,
        name: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        priority: int | None = None,
        delay: float = 0.0,
        unique: str | None = None,
        unique_for: float | None = None,
        result_ttl: float | None = None,
        retries: int | None = None,
        timeout: float | None = None,
        durability: Durability | Level = "memory",
    ) -> JobHandle:
        """Add a job. What the arguments mean is written at :class:`AddJob`.

        Raises :class:`BacklogFull` where the queue has as much as it may have, and
        :class:`~toril.handler.UnfitPayload` where the data does not fit the queue's schema.
        """
        job = AddJob(
            data=data, name=name, key=key, tenant=tenant, priority=priority, delay=delay, unique=unique,
            unique_for=unique_for, result_ttl=result_ttl, retries=retries, timeout=timeout,
        )  # fmt: skip
        try:
            (added,) = await self.add_bulk([job], durability=durability)
        except BulkFailed as failed:
            raise failed.problem from None
        return added

    async def add_bulk(
        self, jobs: Sequence[AddJob], *, durability: Durability | Level = "memory"
    ) -> list[JobHandle]:
        """Add many jobs.

        In each partition all of them are added or none, up to 500 jobs and a megabyte of
        data. Beyond that they are added in steps, after a look at whether all fit. Where some were added and
        others not, :class:`BulkFailed` says which.
        """
        if not jobs:
            return []
        opened = await self.open()
        checked = [check_job(job, self.schema, opened) for job in jobs]
        if self._telemetry is None:
            added = await add_jobs(checked, opened, self._turns, durability)
        else:
            with self._telemetry.adding(self.name, [job.name for job in checked]) as (span, context):
                checked = [check_job(job, self.schema, opened, context) for job in jobs]
                added = await add_jobs(checked, opened, self._turns, durability)
                if len(added) == 1:
                    self._telemetry.added(span, added[0].id)
        return [JobHandle(self, each.id, is_new=each.is_new) for each in added]

    # ------------------------------------------------------------------ jobs

    def job(self, job_id: str) -> JobHandle:
        """A job by its id. Whether there is one is found out when it is asked for something."""
        return JobHandle(self, job_id, is_new=False)

    async def look(self, job_id: str) -> JobView:
        """One job, wherever it is; :class:`JobMissing` where there is none."""
        store, local = await self.place_of(job_id)
        found = await store.look(local)
        if found[0] == b"missing":
            raise JobMissing(
                f"there is no job {job_id} in {self.name!r}, or it is done and its result is not kept"
            )
        return JobView.read(job_id, found)

    async def cancel(self, job_id: str) -> str:
        """Cancel a job: ``removed`` where it waited, ``asked`` where its worker has been told to stop it.

        :class:`JobMissing` where there is none, or it has ended.
        """
        store, local = await self.place_of(job_id)
        answer = await store.cancel(local, CANCELLED_FOR, Outcome("cancelled").text())
        if answer == "missing":
            raise JobMissing(f"there is no job {job_id} in {self.name!r} that could be cancelled")
        return answer

    async def place_of(self, job_id: str) -> tuple[PartitionStore, str]:
        """The partition of a job, and its id there."""
        opened = await self.open()
        number, local = local_id(job_id, opened.options.partitions)
        return opened.stores[number], local

    async def pending(self, count: int = 100) -> list[PendingJob]:
        """Jobs that workers have, the oldest of each partition and level first."""
        opened = await self.open()
        found: list[PendingJob] = []
        for store in opened.stores:
            for level in range(opened.options.levels):
                rows = await store.redis.command(
                    "XPENDING", store.keys.level(str(level)), opened.options.group, "-", "+", count
                )
                if not rows:
                    continue
                bound = await store.redis.command(
                    "HMGET", store.keys.bound, *(f"{level}:{row[0].decode()}" for row in rows)
                )
                for (entry, consumer, idle, deliveries), job in zip(rows, bound, strict=True):
                    found.append(
                        PendingJob(
                            id=public_id((job or entry).decode(), store.keys.number),
                            entry=entry.decode(),
                            priority=level,
                            consumer=consumer.decode(errors="replace"),
                            idle=idle / 1000,
                            deliveries=deliveries,
                        )
                    )
        return found[:count]

    async def workers(self) -> list[WorkerView]:
        """The consumers of the queue's group, over all partitions."""
        opened = await self.open()
        pending: dict[str, int] = {}
        alive: set[str] = set()
        for store in opened.stores:
            for level in range(opened.options.levels):
                stream = store.keys.level(str(level))
                for row in await store.redis.command("XINFO", "CONSUMERS", stream, opened.options.group):
                    fields = dict(zip(row[::2], row[1::2], strict=True))
                    name = fields[b"name"].decode(errors="replace")
                    pending[name] = pending.get(name, 0) + fields[b"pending"]
            for name in pending:
                if await store.redis.command("EXISTS", store.keys.heartbeat(name)):
                    alive.add(name)
        return [
            WorkerView(consumer=name, pending=count, alive=name in alive)
            for name, count in sorted(pending.items())
        ]

    # ------------------------------------------------------------------ dead letters

    async def dead(self, count: int = 100) -> list[DeadLetter]:
        """Dead letters, the oldest of each partition first."""
        return [letter async for letter in self.each_dead(page=min(count, 100), most=count)]

    async def each_dead(self, *, page: int = 100, most: int | None = None) -> AsyncIterator[DeadLetter]:
        """All dead letters, read in pages."""
        opened = await self.open()
        left = most
        for store in opened.stores:
            after = ""
            while left is None or left > 0:
                letters = await store.letters(page if left is None else min(page, left), after)
                for letter in letters:
                    job_id = public_id(letter.fields[b"id"].decode(), store.keys.number)
                    yield DeadLetter.read(job_id, letter)
                if not letters:
                    break
                after = letters[-1].entry.decode()
                left = None if left is None else left - len(letters)

    async def redrive(self, job_ids: Sequence[str]) -> list[str]:
        """Give dead letters another chance, each as the job it was; the ids of those that were there.

        Their attempts start anew. An entry of the inlet that was no job goes back into the inlet.
        """
        return await self._letters(job_ids, "redrive")

    async def discard(self, job_ids: Sequence[str]) -> list[str]:
        """Throw dead letters away; the ids of those that were there. What they held up goes on."""
        return await self._letters(job_ids, "discard")

    async def _letters(self, job_ids: Sequence[str], verb: str) -> list[str]:
        opened = await self.open()
        places: dict[int, list[tuple[str, str]]] = {}
        for job_id in job_ids:
            number, local = local_id(job_id, opened.options.partitions)
            places.setdefault(number, []).append((job_id, local))
        found: list[str] = []
        for number, mine in places.items():
            for first in range(0, len(mine), 100):
                part = mine[first : first + 100]
                codes = await getattr(opened.stores[number], verb)([local for _, local in part])
                found += [job_id for (job_id, _), code in zip(part, codes, strict=True) if code]
        return found

    # ------------------------------------------------------------------ the whole queue

    async def pause(self) -> None:
        """Let no worker take jobs. What runs goes on; jobs may be added."""
        for store in (await self.open()).stores:
            await store.pause(True)

    async def resume(self) -> None:
        """Let workers take jobs again."""
        for store in (await self.open()).stores:
            await store.pause(False)

    async def metrics(self) -> StreamMetrics:
        """What an autoscaler and an operator want to know."""
        opened = await self.open()
        parts = []
        for store in opened.stores:
            measured = await store.measure()
            keys = store.keys
            levels = [keys.level(str(level)) for level in range(opened.options.levels)]
            sized = (*levels, keys.dead, keys.inlet, keys.delayed, keys.heads, keys.bound, keys.buried)
            memory = await asyncio.gather(
                *(self.redis.command("MEMORY", "USAGE", key, repeatable=True) for key in sized)
            )
            parts.append(
                partition_metrics(measured, opened.options.backlog, sum(size or 0 for size in memory))
            )
        return StreamMetrics(queue=self.name, total=summed(parts), partitions=tuple(parts))

    def effect_key(self, name: str) -> Key:
        """A key of your own in the queue's slot, which the end of a job may change; with one partition."""
        return self.home.effect(name)

    # ------------------------------------------------------------------ schedules

    async def schedule(
        self,
        schedule_id: str,
        cron: str,
        data: Any,
        *,
        timezone: str = "UTC",
        name: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        priority: int | None = None,
        retries: int | None = None,
        timeout: float | None = None,
    ) -> Schedule:
        """Add a job at every time that a cron pattern names, until the schedule is ended.

        Setting it again changes it. A time at which no worker was there is made up for once.
        """
        opened = await self.open()
        check_text("schedule id", schedule_id)
        job = check_job(
            AddJob(
                data=data,
                name=name,
                key=key,
                tenant=tenant,
                priority=priority,
                retries=retries,
                timeout=timeout,
            ),
            self.schema,
            opened,
        )
        store = opened.stores[partition_of(schedule_id, len(opened.stores))]
        due = next_match(cron, await store.now(), timezone)
        if not due:
            raise InvalidValue("cron", cron, "a pattern that matches some time to come")
        plan = Plan(
            cron,
            timezone,
            msgspec.Raw(job.data),
            job.name,
            job.key,
            job.tenant,
            job.level,
            job.options.decode(),
        )
        raw = msgspec.json.encode(plan)
        await store.schedule(schedule_id, due, raw)
        return schedule_of(schedule_id, due, raw)

    async def unschedule(self, schedule_id: str) -> bool:
        """End a schedule; whether there was one."""
        opened = await self.open()
        return await opened.stores[partition_of(schedule_id, len(opened.stores))].schedule(schedule_id, 0)

    async def schedules(self) -> list[Schedule]:
        """All schedules, by when they are due."""
        found = [schedule_of(*row) for store in (await self.open()).stores for row in await store.schedules()]
        return sorted(found, key=lambda schedule: str(schedule.due))


async def stream_queues(redis: Connection) -> list[str]:
    """The names of all stream queues on a server or cluster."""
    names = {name async for key in redis.scan(STREAM_METAS) if (name := stream_of(key)) is not None}
    return sorted(names)
