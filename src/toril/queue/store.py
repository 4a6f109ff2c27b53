"""The one door to a queue's state: each method is one script, or one command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from toril import codec
from toril.connection import Connection, Durability, Script, load_script
from toril.connection.durability import Level
from toril.connection.wire import Argument
from toril.keyspace import QUEUE_SUFFIXES, QueueKeys
from toril.queue.errors import SCRIPT_FAILED, QueueError, UntaggedName, error_of
from toril.queue.job import JobData
from toril.queue.options import JobOptions, parent_link
from toril.queue.outcomes import HandedBack, Outcome

Clock = Callable[[], int]
"""Milliseconds since 1970. BullMQ's protocol takes its times from the client."""

VERSION = "bullmq:5.62.0"
"""What a queue says it is: the protocol Toril speaks."""

MAX_EVENTS = 10_000


def speaks_v6(version: str) -> bool:
    """Whether a queue belongs to BullMQ 6 or later, which keeps the jobs of a paused queue elsewhere."""
    product, _, number = version.partition(":")
    major = number.split(".")[0]
    return product.startswith("bullmq") and major.isdigit() and int(major) >= 6


def wall_clock() -> int:
    """The machine's clock."""
    return time.time_ns() // 1_000_000


def _script(verb: str) -> Script:
    return load_script(f"queue/{verb}")


ADD, STEP, SWEEP, RENEW, RECLAIM = map(_script, ("add", "step", "sweep", "renew", "reclaim"))
ITERATE, WAIT_FOR_CHILDREN, PAUSE, PROMOTE = map(
    _script, ("iterate", "wait_for_children", "pause", "promote")
)
REQUEUE, REPROCESS, CHANGE_DELAY = map(_script, ("requeue", "reprocess", "change_delay"))
CHANGE_PRIORITY, REMOVE, CLEAN, DRAIN = map(_script, ("change_priority", "remove", "clean", "drain"))
OBLITERATE, LOG, PROGRESS, UPDATE_DATA = map(_script, ("obliterate", "log", "progress", "update_data"))
STATE, OUTCOME, COUNTS, RANGES = map(_script, ("state", "outcome", "counts", "ranges"))
COUNTS_PER_PRIORITY, RATE_LIMIT_TTL = map(_script, ("counts_per_priority", "rate_limit_ttl"))
LEAVE_PARENT, REMOVE_UNPROCESSED = map(_script, ("leave_parent", "remove_unprocessed_children"))


class NewJob(NamedTuple):
    """A job to be added: checked, and in the form it is stored in."""

    name: str
    data: bytes
    options: JobOptions = JobOptions()


class StoredOptions(NamedTuple):
    """Options in the form they are stored in."""

    opts: bytes
    delay: int
    priority: int
    more: bytes
    """What the script ``queue/add`` must know beside that, as JSON; empty for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOptions:
    """How a worker takes jobs."""

    lock_duration: int = 30_000
    limiter_max: int | None = None
    limiter_duration: int | None = None
    worker: str = ""
    """Its name, which its jobs carry."""
    metrics_points: int | None = None


TAKE_DEFAULTS = TakeOptions()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step."""

    codes: list[int]
    """For each job that was given up: 0, or a code of :mod:`toril.queue.errors`; for one handed back, ms of
    the rate limit."""
    jobs: list[JobData] = field(default_factory=list)
    limited_for: int = 0
    """Milliseconds for which the rate limit lets no job through."""
    next_due: int = 0
    """When the next delayed job is due, where there was none to take; 0 for never."""
    failures: dict[str, str] = field(default_factory=dict)
    """By id, why the script failed at a job; it is still active."""


class QueueStore:
    """See the module's text."""

    def __init__(self, redis: Connection, keys: QueueKeys, clock: Clock = wall_clock) -> None:
        if redis.clustered and keys.tag is None:
            raise UntaggedName(
                f"queue {keys.name!r} has no hash tag, so its keys would lie on several servers of the "
                f"cluster: use {keys.cluster_safe_name!r} (toril.make_queue_name), in Node as well"
            )
        self.redis = redis
        self.keys = keys
        self.clock = clock
        # Without a tag, which only a single server takes, `meta` is in another slot (see lua/queue/_queue).
        self._named = (keys.base, keys.base if keys.tag is None else keys.meta)

    async def _run(self, script: Script, *args: Argument, **how: Any) -> Any:
        return await self.redis.run(script, self._named, *args, **how)

    # ------------------------------------------------------------------ adding

    async def announce(self, max_events: int = MAX_EVENTS) -> None:
        """Write down what BullMQ's queues do: the protocol's version, and how many events are kept."""
        version = await self.version()
        say = () if speaks_v6(version) else ("version", VERSION)  # what is newer stays what it is
        await self.redis.command(
            "HSET", self.keys.meta, "opts.maxLenEvents", max_events, *say, repeatable=True
        )

    async def version(self) -> str:
        """What the queue says it is, like ``bullmq:5.62.0``; empty when it says nothing."""
        found = await self.redis.command("HGET", self.keys.meta, "version")
        return found.decode() if found else ""

    async def add(
        self, jobs: Sequence[NewJob], durability: Durability | Level = "memory", now: int | None = None
    ) -> list[str]:
        """Add jobs, all or none; their ids, or those of the jobs that stand in their way."""
        now = self.clock() if now is None else now
        args: list[Argument] = []
        for job, (opts, delay, priority, more) in with_stored_options(jobs):
            options = job.options
            timestamp = options.timestamp or now
            args += (options.job_id or "", job.name, job.data, opts, timestamp, delay, priority, more)
        reply = await self._run(ADD, *args, durability=durability)
        if len(reply) == 2 and isinstance(reply[1], int):
            place, code = reply
            parent = jobs[place - 1].options.parent
            raise error_of(code, "addJob", parent=f"{parent.queue}:{parent.id}" if parent else "")
        return [found.decode() for found in reply]

    # ------------------------------------------------------------------ a worker's work

    async def step(
        self, outcomes: Sequence[Outcome] = (), tokens: Sequence[str] = (), take: TakeOptions = TAKE_DEFAULTS
    ) -> StepResult:
        """Give up jobs, and take one for each token, as far as there are any: one call for all of it."""
        args: list[Argument] = [
            self.clock(),
            _or_empty(take.metrics_points),
            take.lock_duration,
            _or_empty(take.limiter_max),
            _or_empty(take.limiter_duration),
            take.worker,
            len(tokens),
            *tokens,
        ]
        for outcome in outcomes:
            args += outcome.args()
        codes, jobs, limited_for, next_due = await self._run(STEP, *args)
        taken = [
            JobData.read(_text(flat.pop()), flat, token) for flat, token in zip(jobs, tokens, strict=False)
        ]
        failures = {
            outcome.id: code.decode()
            for outcome, code in zip(outcomes, codes, strict=True)
            if isinstance(code, bytes)
        }
        if failures:
            codes = [SCRIPT_FAILED if isinstance(code, bytes) else code for code in codes]
        return StepResult(codes, taken, limited_for, next_due, failures)

    async def reclaim(self, tokens: Sequence[str]) -> list[JobData]:
        """The active jobs locked under tokens: for a worker that asked for jobs and never heard which."""
        found = await self._run(RECLAIM, *tokens)
        return [JobData.read(_text(flat[1]), flat[2:], _text(flat[0])) for flat in found]

    async def give_up(self, outcome: Outcome) -> int:
        """Give up one job; an error where that is refused. For one handed back, ms of the rate limit."""
        (code,) = (await self.step([outcome])).codes
        if code < 0:
            raise error_of(code, outcome.verb, job=outcome.id)
        return code if isinstance(outcome, HandedBack) else 0

    async def wait_for_children(self, job_id: str, token: str, child: str = "") -> bool:
        """Move an active job to waiting for its children; False when there is nothing to wait for."""
        code = await self._run(WAIT_FOR_CHILDREN, job_id, token, self.clock(), child)
        if code < 0:
            raise error_of(code, "moveToWaitingChildren", job=job_id)
        return bool(code == 0)

    async def sweep(self, max_stalled: int = 1, interval: int = 30_000) -> list[str]:
        """Put back jobs whose worker is gone; their ids."""
        return _texts(await self._run(SWEEP, max_stalled, self.clock(), interval))

    async def renew(self, locks: Sequence[tuple[str, str]], duration: int = 30_000) -> list[tuple[str, str]]:
        """Renew locks (id and token of each job); those that are lost."""
        args = [part for lock in locks for part in lock]
        lost = await self._run(RENEW, duration, *args, repeatable=True)
        return [locks[place - 1] for place in lost]

    async def iterate(
        self, scheduler_id: str, producer: str, next_run: int | None, opts: Any, data: bytes
    ) -> str | None:
        """Make a scheduler's next job, when its present one was taken; its id."""
        raw = codec.encode("options", opts)
        reply = await self._run(ITERATE, scheduler_id, producer, self.clock(), _or_empty(next_run), raw, data)
        return reply.decode() if reply else None

    # ------------------------------------------------------------------ one job

    async def job(self, job_id: str) -> JobData | None:
        """A job, or None."""
        flat = await self.redis.command("HGETALL", self.keys.job(job_id))
        return JobData.read(job_id, flat) if flat else None

    async def state(self, job_id: str) -> str:
        """The state a job is in, or ``unknown``."""
        found: bytes = await self._run(STATE, job_id)
        return found.decode()

    async def outcome(self, job_id: str) -> tuple[int, bytes | None]:
        """How a job ended: 0 not yet, 1 completed, 2 failed, -1 no such job; and its result or reason."""
        code, *value = await self._run(OUTCOME, job_id)
        return code, value[0] if value else None

    async def remove(self, job_id: str, children: bool = True) -> bool:
        """Remove a job; False when it, or a child, is being worked on."""
        if job_id in QUEUE_SUFFIXES:
            return True  # not a job, and not to be removed: the queue itself has such a key
        code = await self._run(REMOVE, job_id, int(children))
        return bool(_checked(code, "removeJob", job_id))

    async def reprocess(self, job_id: str, state: str, lifo: bool = False) -> None:
        """Run a finished job again."""
        _checked(await self._run(REPROCESS, job_id, state, int(lifo)), "reprocessJob", job_id, state)

    async def promote(self, job_id: str) -> None:
        """Let a delayed job run now."""
        _checked(await self._run(PROMOTE, job_id), "promote", job_id, "delayed")

    async def change_delay(self, job_id: str, delay: int) -> None:
        """Let a delayed job run after ``delay`` ms from now."""
        code = await self._run(CHANGE_DELAY, job_id, self.clock(), delay)
        _checked(code, "changeDelay", job_id, "delayed")

    async def change_priority(self, job_id: str, priority: int, lifo: bool = False) -> None:
        """Give a job another priority."""
        _checked(await self._run(CHANGE_PRIORITY, job_id, priority, int(lifo)), "changePriority", job_id)

    async def update_data(self, job_id: str, data: bytes) -> None:
        """Replace a job's data."""
        _checked(await self._run(UPDATE_DATA, job_id, data), "updateData", job_id)

    async def progress(self, job_id: str, progress: bytes) -> None:
        """Note a job's progress."""
        _checked(await self._run(PROGRESS, job_id, progress), "updateProgress", job_id)

    async def log(self, job_id: str, line: str, keep: int | None = None) -> int:
        """Add a line to a job's log; how many there are."""
        code = await self._run(LOG, job_id, line, _or_empty(keep))
        return int(_checked(code, "addLog", job_id))

    async def leave_parent(self, job_id: str, parent_key: str) -> bool:
        """Break the link to a job's parent; whether there was one."""
        code = await self._run(LEAVE_PARENT, job_id, parent_key)
        if code < 0:
            raise error_of(code, "removeChildDependency", job=job_id, parent=parent_key)
        return bool(code == 0)

    async def remove_unprocessed_children(self, job_id: str) -> None:
        """Remove the children a job still waits for."""
        await self._run(REMOVE_UNPROCESSED, job_id)

    # ------------------------------------------------------------------ the whole queue

    async def pause(self) -> None:
        """Stop all workers from taking jobs."""
        await self._run(PAUSE, "paused")

    async def resume(self) -> None:
        """Let workers take jobs again."""
        await self._run(PAUSE, "resumed")

    async def drain(self, count: int, delayed: bool = False) -> bool:
        """Remove what waits, ``count`` jobs at a time; whether there may be more."""
        return bool(await self._run(DRAIN, int(delayed), count))

    async def clean(self, state: str, newest: int, limit: int = 0) -> list[str]:
        """Remove jobs of a state that are not newer than a time; their ids."""
        return _texts(await self._run(CLEAN, state, newest, limit))

    async def requeue(self, state: str, count: int, highest: int | str) -> bool:
        """Move jobs of a state back to waiting, ``count`` at most; whether there may be more."""
        return bool(await self._run(REQUEUE, state, count, highest))

    async def obliterate(self, count: int, force: bool = False) -> bool:
        """Remove a paused queue, ``count`` jobs at a time; whether there is more to remove."""
        code = await self._run(OBLITERATE, count, int(force))
        if code < 0:
            what = "non-paused queue" if code == -1 else "queue with active jobs"
            raise QueueError(f"Cannot obliterate {what}")
        return bool(code)

    async def counts(self, *states: str) -> list[int]:
        """How many jobs are in each state (a key suffix)."""
        found: list[int] = await self._run(COUNTS, *states)
        return found

    async def ranges(
        self, states: Sequence[str], first: int, last: int, oldest_first: bool
    ) -> list[list[str]]:
        """The ids at places of states."""
        reply = await self._run(RANGES, first, last, int(oldest_first), *states)
        return [_texts(ids) for ids in reply]

    async def counts_per_priority(self, priorities: Sequence[int]) -> list[int]:
        """How many jobs wait with each priority."""
        found: list[int] = await self._run(COUNTS_PER_PRIORITY, *priorities)
        return found

    async def rate_limit_ttl(self, max_jobs: int = 0) -> int:
        """For how many ms the rate limit holds."""
        return int(await self._run(RATE_LIMIT_TTL, max_jobs))


def with_stored_options(jobs: Iterable[NewJob]) -> Iterator[tuple[NewJob, StoredOptions]]:
    """Each job with its options as they are stored. Jobs of a bulk often share them: that is done once."""
    last: tuple[JobOptions, StoredOptions] | None = None
    for job in jobs:
        if last is None or last[0] is not job.options:
            last = job.options, _stored(job.options)
        yield job, last[1]


def _stored(options: JobOptions) -> StoredOptions:
    stored = options.stored()
    more: dict[str, Any] = {}
    if options.lifo:
        more["lifo"] = True
    if options.deduplication is not None:
        more["de"] = stored["de"]
    if (link := parent_link(options)) is not None:
        more["parentKey"] = f"{link['queueKey']}:{link['id']}"
        more["parent"] = codec.encode("parent", link).decode()
    return StoredOptions(
        codec.encode("options", stored),
        stored.get("delay", 0),
        stored.get("priority", 0),
        codec.encode("options", more) if more else b"",
    )


def _checked(code: int, verb: str, job: str, state: str = "active") -> int:
    if code < 0:
        raise error_of(code, verb, job=job, state=state)
    return code


def _or_empty(number: int | None) -> Argument:
    return "" if number is None else number


def _text(raw: bytes) -> str:
    """An id. One that is not UTF-8, which no BullMQ has made, is shown as Node shows it."""
    return raw.decode(errors="replace")


def _texts(found: Sequence[bytes]) -> list[str]:
    return [_text(raw) for raw in found]
