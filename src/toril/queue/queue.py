"""A queue: adding jobs, looking at them, and keeping order among them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from toril import codec
from toril.connection import Connection, Durability, DurabilityNotReached
from toril.connection.durability import Level
from toril.errors import InvalidValue
from toril.keyspace import QueueKeys, slot_of
from toril.queue.errors import QueueError
from toril.queue.handle import Job
from toril.queue.options import (
    LARGEST,
    JobOptions,
    Milliseconds,
    check_priority,
    check_whole,
    milliseconds,
)
from toril.queue.store import (
    MAX_EVENTS,
    Clock,
    NewJob,
    QueueStore,
    speaks_v6,
    wall_clock,
    with_stored_options,
)

if TYPE_CHECKING:  # it needs OpenTelemetry, which is an extra
    from toril.queue.telemetry import Telemetry

BULK_JOBS, BULK_BYTES = 200, 1 << 20
"""How much one call adds, all or nothing: a thousand jobs would stop the server for about 17 ms."""

DRAIN_JOBS = 1000
"""How many jobs one call drains: the server is busy with them for about 7 ms."""

FOREVER_LIMITED = 2**53 - 1
"""What BullMQ counts a limiter to when it is set by hand."""

State = Literal[
    "waiting", "paused", "active", "prioritized", "delayed", "completed", "failed", "waiting-children"
]
ALL_STATES: tuple[State, ...] = tuple(sorted(get_args(State)))

_NOTHING: Any = object()


class BulkFailed(QueueError):
    """A bulk was too large for one call, and a later part failed. ``added`` are the jobs that are in."""

    def __init__(self, added: Sequence[Job], total: int, problem: Exception) -> None:
        super().__init__(f"{len(added)} of {total} jobs were added, in order, before this: {problem}")
        self.added = added


@dataclass(frozen=True, slots=True)
class AddJob:
    """One job of a bulk."""

    name: str
    data: Any = _NOTHING
    options: JobOptions | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Finished jobs by minute, the newest first."""

    count: int
    """Of all finished jobs."""
    data: list[int]
    points: int
    """How many minutes are kept in all."""
    previous_time: int
    previous_count: int


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A job scheduler: it makes a job again and again."""

    id: str
    name: str
    next_run: int | None
    every: int | None = None
    pattern: str | None = None
    timezone: str | None = None
    limit: int | None = None
    start: int | None = None
    end: int | None = None
    offset: int | None = None
    iterations: int | None = None
    template: dict[str, Any] | None = None
    """``data`` and ``opts`` of its jobs."""


class Queue:
    """A BullMQ queue, on a connection that the caller closes.

    ``name`` is as Node has it: :func:`toril.make_queue_name` makes one that is safe on a cluster.
    """

    def __init__(
        self,
        name: str,
        redis: Connection,
        *,
        prefix: str = "bull",
        defaults: JobOptions | None = None,
        telemetry: Telemetry | None = None,
        max_events: int = MAX_EVENTS,
        clock: Clock = wall_clock,
    ) -> None:
        if defaults is not None and not isinstance(defaults, JobOptions):
            raise InvalidValue("defaults", defaults, "they must be JobOptions(…)")
        check_whole("max_events", max_events)
        self.store = QueueStore(redis, QueueKeys(name, prefix), clock)
        self.name = name
        self.keys = self.store.keys
        self._redis = redis
        self._defaults = defaults
        self._plain = defaults or JobOptions()
        """The options of jobs that bring none."""
        self._telemetry = telemetry
        self._max_events = max_events
        self._announced = False

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # ------------------------------------------------------------------ adding

    async def announce(self) -> None:
        """Write the queue's ``meta`` key, as Node's queues do when they are made. Adding does it too."""
        await self.store.announce(self._max_events)
        self._announced = True

    async def add(
        self,
        name: str,
        data: Any = _NOTHING,
        options: JobOptions | None = None,
        *,
        durability: Durability | Level = "memory",
    ) -> Job:
        """Add a job. One that gives way to another (same id, same deduplication id) has that one's id."""
        new = self._checked(AddJob(name, data, options))
        durability = Durability.of(durability)
        return (await self._add([new], durability))[0]

    async def add_bulk(
        self, jobs: Iterable[AddJob], *, durability: Durability | Level = "memory"
    ) -> list[Job]:
        """Add jobs, in order. All are checked before the first is sent.

        Up to 200 jobs and 1 MiB of data are one call: all or nothing. More are added in such parts; when a
        later part fails, :class:`BulkFailed` says which jobs are in.
        """
        if not isinstance(jobs, Iterable):
            raise InvalidValue("jobs", jobs, "they must be AddJob(name, data, options)")
        new = [self._checked(job) for job in jobs]
        durability = Durability.of(durability)
        added: list[Job] = []
        for part in _parts(new):
            try:
                added += await self._add(part, durability)
            except Exception as problem:
                if isinstance(problem, DurabilityNotReached):  # these are in, too
                    ids: Any = problem.result
                    added += self._added([job_id.decode() for job_id in ids], part, self.store.clock())
                if not added or len(new) == len(part):
                    raise
                raise BulkFailed(added, len(new), problem) from problem
        return added

    async def _add(self, jobs: Sequence[NewJob], durability: Durability | Level) -> list[Job]:
        if not self._announced:
            await self.announce()
        now = self.store.clock()
        if self._telemetry is None:
            ids = await self.store.add(jobs, durability, now)
        else:
            with self._telemetry.adding(self.name, [job.name for job in jobs]) as (span, context):
                jobs = [job._replace(options=replace(job.options, telemetry=context)) for job in jobs]
                ids = await self.store.add(jobs, durability, now)
                if len(ids) == 1:
                    self._telemetry.added(span, ids[0])
        return self._added(ids, jobs, now)

    def _checked(self, job: AddJob) -> NewJob:
        if not isinstance(job, AddJob):
            raise InvalidValue("job", job, "it must be an AddJob(name, data, options)")
        if not isinstance(job.name, str) or job.name != job.name.encode(errors="replace").decode():
            raise InvalidValue("job name", job.name, "it must be a string that UTF-8 can encode")
        options = self._plain if job.options is None else job.options
        if not isinstance(options, JobOptions):
            raise InvalidValue("job options", options, "they must be JobOptions(…)")
        if self._defaults is not None and options is not self._plain:
            given = {
                name: value for name in options.__slots__ if (value := getattr(options, name)) is not None
            }
            options = replace(self._defaults, **given)
        parent = options.parent
        if parent is not None and self._redis.clustered and slot_of(f"{parent.queue}:") != self.keys.slot:
            rule = "a job and its parent must be in one slot: give their queues the same hash tag"
            raise InvalidValue("parent queue", parent.queue, rule)
        raw = b"{}" if job.data is _NOTHING else codec.encode("data", job.data)
        if options.size_limit is not None and len(raw) > options.size_limit:
            raise InvalidValue("data", f"{len(raw)} bytes", f"the job's size_limit is {options.size_limit}")
        return NewJob(job.name, raw, options)

    def _added(self, ids: Sequence[str], jobs: Sequence[NewJob], now: int) -> list[Job]:
        added = []
        for job_id, (new, stored) in zip(ids, with_stored_options(jobs), strict=True):
            fields = {
                b"name": new.name.encode(),
                b"data": new.data,
                b"opts": stored.opts,
                b"timestamp": b"%d" % (new.options.timestamp or now),
                b"delay": b"%d" % stored.delay,
                b"priority": b"%d" % stored.priority,
            }
            added.append(Job(self.store, job_id, fields))
        return added

    # ------------------------------------------------------------------ looking

    async def job(self, job_id: str) -> Job | None:
        """A job by its id."""
        found = await self.store.job(job_id)
        return Job(self.store, job_id, found.fields) if found else None

    async def state(self, job_id: str) -> str:
        """The state a job is in: one of :data:`ALL_STATES`, or ``unknown``."""
        return await self.store.state(job_id)

    async def counts(self, *states: State) -> dict[str, int]:
        """How many jobs there are in each state. Waiting jobs of a paused queue count as ``paused``."""
        wanted = _with_paused(states or ALL_STATES)
        found = await self.store.counts(*map(_suffix, wanted))
        return dict(zip(wanted, found, strict=True))

    async def ids(
        self, *states: State, start: int = 0, end: int = -1, oldest_first: bool = False
    ) -> list[str]:
        """The ids of jobs in some states, from place ``start`` to ``end`` (included) of each."""
        wanted = _with_paused(states or ALL_STATES)
        check_whole("start", start, -LARGEST)
        check_whole("end", end, -LARGEST)
        found: dict[str, None] = {}
        ranges = await self.store.ranges([_suffix(state) for state in wanted], start, end, oldest_first)
        for state, ids in zip(wanted, ranges, strict=True):
            is_list = state in ("waiting", "paused", "active")
            found.update(dict.fromkeys(reversed(ids) if is_list and oldest_first else ids))
        return list(found)

    async def jobs(
        self, *states: State, start: int = 0, end: int = -1, oldest_first: bool = False
    ) -> list[Job]:
        """The same as jobs; those that were removed meanwhile are left out."""
        ids = await self.ids(*states, start=start, end=end, oldest_first=oldest_first)
        found = [await self.job(job_id) for job_id in ids]
        return [job for job in found if job is not None]

    async def counts_per_priority(self, *priorities: int) -> dict[int, int]:
        """How many jobs wait with each priority; 0 for those without one."""
        for priority in priorities:
            check_priority(priority)
        found = await self.store.counts_per_priority(priorities)
        return dict(zip(priorities, found, strict=True))

    async def metrics(self, which: Literal["completed", "failed"], start: int = 0, end: int = -1) -> Metrics:
        """Finished jobs by minute, as far as workers keep such metrics."""
        if which not in ("completed", "failed"):
            raise InvalidValue("metrics", which, "completed or failed")
        key = self.keys.metrics_completed if which == "completed" else self.keys.metrics_failed
        data = self.keys.metrics_completed_data if which == "completed" else self.keys.metrics_failed_data
        count, time, before = await self._redis.command("HMGET", key, "count", "prevTS", "prevCount")
        points = await self._redis.command("LRANGE", data, start, end)
        total = await self._redis.command("LLEN", data)
        return Metrics(int(count or 0), [int(n) for n in points], total, int(time or 0), int(before or 0))

    async def workers(self) -> list[dict[str, str]]:
        """The workers that are connected, Node's and Toril's, as CLIENT LIST has them."""
        mine = client_name(self.keys)
        found = []
        # A worker is connected to the server that has its queue; on others it may be, to look around.
        reply = await self._redis.command("CLIENT", "LIST", near=self.keys.meta)
        for line in reply.decode(errors="replace").splitlines():
            client = dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
            own = client.get("name", "")
            if own == mine or own.startswith(f"{mine}:w:"):
                client["rawname"], client["name"] = own, own.removeprefix(mine).removeprefix(":w:")
                found.append(client)
        return found

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return bool(await self._redis.command("HEXISTS", self.keys.meta, "paused"))

    async def is_maxed(self) -> bool:
        """Whether as many jobs are active as the global concurrency allows."""
        limit = await self.global_concurrency()
        return limit is not None and await self._redis.command("LLEN", self.keys.active) >= limit

    async def schedulers(
        self, start: int = 0, end: int = -1, *, latest_first: bool = False
    ) -> list[Scheduler]:
        """The job schedulers, by their next run."""
        command = "ZREVRANGE" if latest_first else "ZRANGE"
        flat = await self._redis.command(command, self.keys.repeat, start, end, "WITHSCORES")
        found = [
            await self._scheduler(name.decode(), int(float(due)))
            for name, due in zip(flat[::2], flat[1::2], strict=True)
        ]
        return [scheduler for scheduler in found if scheduler is not None]

    async def scheduler(self, scheduler_id: str) -> Scheduler | None:
        """A job scheduler by its id."""
        due = await self._redis.command("ZSCORE", self.keys.repeat, scheduler_id)
        return await self._scheduler(scheduler_id, int(float(due)) if due else None)

    async def _scheduler(self, scheduler_id: str, next_run: int | None) -> Scheduler | None:
        flat = await self._redis.command("HGETALL", self.keys.scheduler(scheduler_id))
        said = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        if not said:
            return None

        def number(name: str) -> int | None:
            return int(said[name]) if name in said else None

        template = {part: codec.decode(said[part]) for part in ("data", "opts") if part in said}
        return Scheduler(
            id=scheduler_id,
            name=said["name"].decode(),
            next_run=next_run,
            every=number("every"),
            pattern=said["pattern"].decode() if "pattern" in said else None,
            timezone=said["tz"].decode() if "tz" in said else None,
            limit=number("limit"),
            start=number("startDate"),
            end=number("endDate"),
            offset=number("offset"),
            iterations=number("ic"),
            template=template or None,
        )

    # ------------------------------------------------------------------ keeping order

    async def pause(self) -> None:
        """Stop all workers from taking jobs. What they have, they finish."""
        await self._refuse_v6("pause")
        await self.store.pause()

    async def resume(self) -> None:
        """Let workers take jobs again."""
        await self._refuse_v6("resume")
        await self.store.resume()

    async def _refuse_v6(self, verb: str) -> None:
        version = await self.store.version()
        if speaks_v6(version):
            raise QueueError(
                f"cannot {verb} queue {self.name!r}: it belongs to {version}, which keeps the jobs "
                "of a paused queue elsewhere than BullMQ 5 does, and jobs would be lost between the two. "
                f"{verb.title()} it from a client of that version"
            )

    async def drain(self, *, delayed: bool = False) -> None:
        """Remove all waiting jobs, and delayed ones if so asked. Schedulers keep their next job."""
        while await self.store.drain(DRAIN_JOBS, delayed):
            pass

    async def clean(self, grace: Milliseconds, *, limit: int = 0, state: State = "completed") -> list[str]:
        """Remove jobs of a state that are older than ``grace``, ``limit`` at most (0: all); their ids."""
        newest = self.store.clock() - milliseconds("grace", grace)
        check_whole("limit", limit)
        gone: list[str] = []
        while not limit or len(gone) < limit:
            per_call = min(10_000, limit - len(gone)) if limit else 10_000
            ids = await self.store.clean(_suffix(state), newest, per_call)
            gone += ids
            if len(ids) < per_call:
                break
        return gone

    async def obliterate(self, *, force: bool = False, count: int = 1000) -> None:
        """Remove the queue with all its jobs. Active jobs are in the way, unless ``force``."""
        check_whole("count", count, 1)
        await self._refuse_v6("obliterate")
        await self.store.pause()
        while await self.store.obliterate(count, force):
            pass

    async def remove(self, job_id: str, *, children: bool = True) -> bool:
        """Remove a job with its children; False when it, or a child, is being worked on."""
        return await self.store.remove(job_id, children)

    async def retry_jobs(
        self,
        state: Literal["failed", "completed"] = "failed",
        *,
        until: int | None = None,
        count: int = 1000,
    ) -> None:
        """Run all failed (or completed) jobs again, finished up to ``until``; ``count`` in each step."""
        if state not in ("failed", "completed"):
            raise InvalidValue("state", state, "failed or completed")
        check_whole("count", count, 1)
        highest = self.store.clock() if until is None else until
        while await self.store.requeue(state, count, highest):
            pass

    async def promote_jobs(self, *, count: int = 1000) -> None:
        """Let all delayed jobs run now; ``count`` in each step."""
        check_whole("count", count, 1)
        while await self.store.requeue("delayed", count, "+inf"):
            pass

    async def trim_events(self, length: int) -> int:
        """Shorten the stream of events to about ``length``; how many went."""
        check_whole("length", length)
        return int(await self._redis.command("XTRIM", self.keys.events, "MAXLEN", "~", length))

    async def deduplication_owner(self, dedup_id: str) -> str | None:
        """The job that a deduplication id belongs to."""
        found = await self._redis.command("GET", self.keys.deduplication(dedup_id))
        return found.decode() if found else None

    async def forget_deduplication(self, dedup_id: str) -> bool:
        """Let the next job with a deduplication id in; whether there was an owner."""
        return bool(await self._redis.command("DEL", self.keys.deduplication(dedup_id)))

    # ------------------------------------------------------------------ limits over all workers

    async def set_global_concurrency(self, concurrency: int) -> int:
        """Let at most so many jobs be active, over all workers; 1 when there was no such limit, else 0."""
        check_whole("global concurrency", concurrency, 1)
        return int(await self._redis.command("HSET", self.keys.meta, "concurrency", concurrency))

    async def remove_global_concurrency(self) -> int:
        """Lift that limit; 1 when there was one, else 0."""
        return int(await self._redis.command("HDEL", self.keys.meta, "concurrency"))

    async def global_concurrency(self) -> int | None:
        """The limit, or None."""
        found = await self._redis.command("HGET", self.keys.meta, "concurrency")
        return int(found) if found else None

    async def set_global_rate_limit(self, max_jobs: int, duration: Milliseconds) -> int:
        """Let at most so many jobs start in ``duration``, over all workers; how many settings are new."""
        check_whole("global rate limit", max_jobs, 1)
        time = milliseconds("duration", duration)
        return int(await self._redis.command("HSET", self.keys.meta, "max", max_jobs, "duration", time))

    async def remove_global_rate_limit(self) -> int:
        """Lift that limit; how many settings there were."""
        return int(await self._redis.command("HDEL", self.keys.meta, "max", "duration"))

    async def global_rate_limit(self) -> tuple[int, int] | None:
        """The limit as jobs and ms, or None."""
        most, time = await self._redis.command("HMGET", self.keys.meta, "max", "duration")
        return (int(most), int(time)) if most and time else None

    async def rate_limit(self, duration: Milliseconds) -> None:
        """Stop workers that have a limiter (or a queue with a global one) for so long."""
        time = milliseconds("duration", duration)
        check_whole("duration", time, 1)
        await self._redis.command("SET", self.keys.limiter, FOREVER_LIMITED, "PX", time)

    async def rate_limit_ttl(self, max_jobs: int = 0) -> int:
        """For how many ms the rate limit holds, for workers with that limit; negative where there is none."""
        return await self.store.rate_limit_ttl(max_jobs)

    async def remove_rate_limit(self) -> bool:
        """Start the rate limit's window anew; whether there was one."""
        return bool(await self._redis.command("DEL", self.keys.limiter))


def client_name(keys: QueueKeys, worker: str = "") -> str:
    """What a worker's connection is called, so that Node's ``getWorkers`` finds it (a.12)."""
    name = f"{keys.prefix}:{base64.b64encode(keys.name.encode()).decode()}"
    return f"{name}:w:{worker}" if worker else name


def _parts(jobs: Sequence[NewJob]) -> Iterable[list[NewJob]]:
    """Jobs in parts that one call may add."""
    part: list[NewJob] = []
    size = 0
    for job in jobs:
        if part and (len(part) == BULK_JOBS or size + len(job.data) > BULK_BYTES):
            yield part
            part, size = [], 0
        part.append(job)
        size += len(job.data)
    if part:
        yield part


def _suffix(state: str) -> str:
    """The key of a state."""
    if state not in ALL_STATES:
        raise InvalidValue("state", state, f"one of {', '.join(ALL_STATES)}")
    return "wait" if state == "waiting" else state


def _with_paused(states: Sequence[State]) -> list[State]:
    """Who asks for waiting jobs means those of a paused queue too."""
    found = list(dict.fromkeys(states))
    if "waiting" in found and "paused" not in found:
        found.append("paused")
    return found
