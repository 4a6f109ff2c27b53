"""What can be seen of a queue and its jobs. Plain data, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from toril import codec
from toril.stream.job import Outcome, options_brought
from toril.stream.store import Letter


def time_of(entry: str) -> datetime:
    """When an entry, or a job, came into being: its id says it."""
    return datetime.fromtimestamp(int(entry.split("-", 1)[0]) / 1000, UTC)


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")


def _data(raw: bytes) -> Any:
    try:
        return codec.decode(raw)
    except ValueError:  # an entry of the inlet that is no job, or a job that will be found to be none
        return raw.decode(errors="replace")


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job, as it was when it was looked at."""

    id: str
    state: str
    """waiting (for others with its key), ready, running, delayed, completed, dead or cancelled."""
    name: str = ""
    data: Any = None
    key: str = ""
    tenant: str = ""
    priority: int = 0
    attempts: int = 0
    """Runs that failed."""
    deliveries: int = 0
    """How often it was given to a worker since it was last ready."""
    consumer: str = ""
    """Who has it, or had it last."""
    idle: float | None = None
    """Seconds since its worker was last heard of, while it is running."""
    due: datetime | None = None
    reason: str = ""
    """Why it is dead: the kind of failure."""
    first_error: str = ""
    last_error: str = ""
    value: Any = None
    """What its handler returned, where that is kept."""
    keeps_result: bool = False
    """Whether what its handler returns will be kept."""

    @classmethod
    def read(cls, job_id: str, found: Sequence[Any]) -> JobView:
        """From what the script ``stream/look`` answers; the state is not ``missing``."""
        state, flat, where = found[0].decode(), found[1], found[2]
        fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
        if state == "ended":
            outcome = Outcome.read(fields[b"outcome"])
            return cls(
                id=job_id,
                state=outcome.state,
                value=outcome.value,
                reason=outcome.reason,
                last_error=outcome.error,
            )
        if state == "dead":
            letter = DeadLetter.read(job_id, Letter(where[0], fields))
            return cls(
                id=job_id,
                state=state,
                name=letter.name,
                data=letter.data,
                key=letter.key,
                tenant=letter.tenant,
                priority=letter.priority,
                attempts=letter.attempts,
                deliveries=letter.deliveries,
                consumer=letter.consumer,
                reason=letter.reason,
                first_error=letter.first_error,
                last_error=letter.last_error,
            )
        running = state == "running"
        level = fields.get(b"l") or (where[0] if where and state != "delayed" else b"0")
        return cls(
            id=job_id,
            state=state,
            name=_text(fields.get(b"n", b"job")),
            data=_data(fields.get(b"d", b"null")),
            key=_text(fields.get(b"k")),
            tenant=_text(fields.get(b"t")),
            priority=int(level),
            attempts=int(fields.get(b"a", 0)),
            deliveries=where[4] if running else 0,
            consumer=_text(where[2]) if running else "",
            idle=where[3] / 1000 if running else None,
            due=datetime.fromtimestamp(float(where[0]) / 1000, UTC) if state == "delayed" else None,
            first_error=_text(fields.get(b"f")),
            last_error=_text(fields.get(b"e")),
            keeps_result=options_brought(fields.get(b"o", b"")).result_ttl > 0,
        )


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has failed for good, and why."""

    id: str
    """The job's."""
    entry: str
    """Its place among the dead letters."""
    died_at: datetime
    reason: str
    """permanent, policy, budget, unfit, exhausted (its retries), crashed, dropped or unparsable."""
    name: str
    data: Any
    key: str
    tenant: str
    priority: int
    attempts: int
    """Runs that failed."""
    deliveries: int
    """How often it was given to a worker, those included that were lost with it."""
    consumer: str
    """Who had it last, or found that its worker was lost."""
    first_error: str
    last_error: str
    origin: str
    """The level and entry that it was, or ``inlet`` and the entry there."""

    @classmethod
    def read(cls, job_id: str, letter: Letter) -> DeadLetter:
        """From its entry."""
        fields = letter.fields
        entry = letter.entry.decode()
        return cls(
            id=job_id,
            entry=entry,
            died_at=time_of(entry),
            reason=_text(fields.get(b"reason")),
            name=_text(fields.get(b"name")),
            data=_data(fields.get(b"data", b"null")),
            key=_text(fields.get(b"key")),
            tenant=_text(fields.get(b"tenant")),
            priority=int(fields.get(b"level", 0)),
            attempts=int(fields.get(b"attempts", 0)),
            deliveries=int(fields.get(b"deliveries", 0)),
            consumer=_text(fields.get(b"consumer")),
            first_error=_text(fields.get(b"first")),
            last_error=_text(fields.get(b"last")),
            origin=_text(fields.get(b"origin")),
        )


class PendingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a worker has."""

    id: str
    entry: str
    priority: int
    consumer: str
    idle: float
    """Seconds since its lease was renewed."""
    deliveries: int


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of a queue."""

    consumer: str
    pending: int
    """Jobs it has."""
    alive: bool
    """Whether it is heard of."""


class PartitionMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What an autoscaler and an operator want to know of a partition, or of a whole queue."""

    lag: int
    """Jobs that are ready and nobody has: ``lag`` of the groups, summed over the levels."""
    lag_by_level: tuple[int, ...]
    oldest_waiting: float
    """Seconds that the first of those has been ready for; 0 where there is none."""
    pending: int
    """Jobs that workers have."""
    oldest_idle: float
    """Seconds since the oldest of those was last renewed."""
    waiting: int
    """Jobs that wait for others with their key, for a time or for another attempt."""
    delayed: int
    """Of those, the ones that wait for a time."""
    backlog: int
    """All jobs that have not ended."""
    backlog_bytes: int
    """Bytes of their data."""
    backlog_limit: int
    inlet: int
    """Entries of foreign producers that were not taken in yet."""
    dead: int
    """Dead letters that wait for somebody to look at them."""
    oldest_dead: float
    """Seconds since the oldest of those died."""
    keys: int
    """Order keys that have jobs."""
    schedules: int
    workers: int
    """Consumers of the group; a worker is one on each partition."""
    paused: bool
    added_total: int
    done_total: int
    retried_total: int
    dead_total: int
    cancelled_total: int
    redriven_total: int
    lost_total: int
    """Jobs that were deleted from their stream before they were done: always a reason for alarm."""
    skipped_total: int
    """Jobs of schedules that fell out because the backlog was full."""
    added_per_second: float
    """Over the last minute or so."""
    done_per_second: float
    time_to_drain: float | None
    """Seconds until nothing is left at that rate; None where nothing moves."""
    memory: int
    """Bytes that the queue takes up in Redis, about."""


class StreamMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a queue."""

    queue: str
    total: PartitionMetrics
    partitions: tuple[PartitionMetrics, ...]


_SUMMED = (
    *(
        "lag",
        "pending",
        "waiting",
        "delayed",
        "backlog",
        "backlog_bytes",
        "backlog_limit",
        "inlet",
        "dead",
        "keys",
    ),
    *(
        "schedules",
        "added_total",
        "done_total",
        "retried_total",
        "dead_total",
        "cancelled_total",
        "redriven_total",
    ),
    *("lost_total", "skipped_total", "added_per_second", "done_per_second", "memory"),
)
RATE_PERIOD, RATE_PERIODS = 10, 6
"""Seconds of a period, and how many full ones a rate is taken over."""
JOB_OVERHEAD = 250
"""Bytes that a job outside a stream takes up besides its data, about."""


def partition_metrics(measured: Sequence[Any], backlog_limit: int, memory: int) -> PartitionMetrics:
    """From what the script ``stream/measure`` answers."""
    raw_now, flat, flat_rates, sizes, _due, letter, levels = measured
    now = int(raw_now)
    counts: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    rates: dict[bytes, bytes] = dict(zip(flat_rates[::2], flat_rates[1::2], strict=True))

    def total(name: bytes) -> int:
        return int(counts.get(name, 0))

    jobs, pending = total(b"jobs"), sum(row[1] for row in levels)
    # Where somebody has deleted an entry that nobody had, the server does not know the lag for a while.
    lags = tuple(row[2] if row[2] >= 0 else row[0] - row[1] for row in levels)
    firsts = [int(row[3].split(b"-", 1)[0]) for row in levels if row[3]]
    done_rate = _rate(rates, b"done", now)
    average = total(b"bytes") / jobs if jobs else 0.0
    return PartitionMetrics(
        lag=sum(lags),
        lag_by_level=lags,
        oldest_waiting=max(0.0, (now - min(firsts)) / 1000) if firsts else 0.0,
        pending=pending,
        oldest_idle=max(row[5] for row in levels) / 1000,
        waiting=max(0, jobs - sum(lags) - pending),
        delayed=sizes[0],
        backlog=jobs,
        backlog_bytes=total(b"bytes"),
        backlog_limit=backlog_limit,
        inlet=sizes[2],
        dead=sizes[1],
        oldest_dead=max(0.0, (now - int(letter.split(b"-", 1)[0])) / 1000) if letter else 0.0,
        keys=sizes[3],
        schedules=sizes[4],
        workers=max(row[4] for row in levels),
        paused=b"paused" in counts,
        added_total=total(b"added"),
        done_total=total(b"done"),
        retried_total=total(b"retried"),
        dead_total=total(b"dead"),
        cancelled_total=total(b"cancelled"),
        redriven_total=total(b"redriven"),
        lost_total=total(b"lost"),
        skipped_total=total(b"skipped"),
        added_per_second=_rate(rates, b"added", now),
        done_per_second=done_rate,
        time_to_drain=_drain(jobs, done_rate),
        memory=memory + round(total(b"held") * (average + JOB_OVERHEAD)),
    )


def _rate(rates: Mapping[bytes, bytes], what: bytes, now: int) -> float:
    """Per second, over the full periods and the part of the current one."""
    seconds = now / 1000
    current = int(seconds // RATE_PERIOD)
    first = current - RATE_PERIODS
    count = sum(int(rates.get(b"%d %s" % (period, what), 0)) for period in range(first, current + 1))
    return count / (seconds - first * RATE_PERIOD)


def _drain(jobs: int, rate: float) -> float | None:
    if jobs == 0:
        return 0.0
    return jobs / rate if rate > 0 else None


def summed(parts: Sequence[PartitionMetrics]) -> PartitionMetrics:
    """The metrics of a whole queue from those of its partitions."""
    if len(parts) == 1:
        return parts[0]
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in _SUMMED}
    return PartitionMetrics(
        **sums,
        lag_by_level=tuple(map(sum, zip(*(part.lag_by_level for part in parts), strict=True))),
        oldest_waiting=max(part.oldest_waiting for part in parts),
        oldest_idle=max(part.oldest_idle for part in parts),
        oldest_dead=max(part.oldest_dead for part in parts),
        workers=max(part.workers for part in parts),
        paused=any(part.paused for part in parts),
        time_to_drain=_drain(sums["backlog"], sums["done_per_second"]),
    )
