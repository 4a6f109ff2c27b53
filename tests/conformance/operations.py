"""The vocabulary of the differential tests: what can be done to a queue, one value per operation.

Every operation is a frozen value that both sides execute (see ``sides.py``), and that has a JSON form
for the oracle. Names and defaults are BullMQ's, in Python's spelling; ``None`` means "not given". The
text of each says what its reply is; a job's *view* is the fields of Node's ``Job`` (``node/view.mjs``).

A job is meant by a reference: :class:`Id` names it, :class:`Held` is the one that a lock token activated
last, :class:`At` is the one that stands at a place of a state when the operation runs.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar

Json = Any
"""A value that JSON can carry: job data, progress, results."""


_PAYLOAD = {"payload": True}
"""Marks a field that is passed as it is, also when it is None."""


@cache
def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


def _plain(value: Any, prefix: str) -> Any:
    if isinstance(value, _Part):
        return value.to_json(prefix)
    if isinstance(value, tuple):
        return [_plain(item, prefix) for item in value]
    return value


class _Part:
    """A value inside of an operation."""

    def __repr__(self) -> str:
        given = [
            f"{part.name}={value!r}"
            for part in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, part.name)) != part.default
            and not (part.default_factory is not MISSING and value == part.default_factory())
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def to_json(self, prefix: str) -> Any:
        """What the oracle reads. ``prefix`` is the key prefix of the queues."""
        found = {}
        for part in fields(self):  # type: ignore[arg-type]
            value = getattr(self, part.name)
            if value is not None or part.metadata.get("payload"):
                found[_camel(part.name)] = _plain(value, prefix)
        return found


# ---------------------------------------------------------------------- which job


@dataclass(frozen=True, slots=True, repr=False)
class Id(_Part):
    """The job with this id, whether it exists or not."""

    id: str


@dataclass(frozen=True, slots=True, repr=False)
class Held(_Part):
    """The job that this token activated last, also when it has lost it since."""

    held: str


STATES = ("wait", "paused", "active", "prioritized", "delayed", "completed", "failed", "waiting-children")
"""The keys that say in which state a job is."""


@dataclass(frozen=True, slots=True, repr=False)
class At(_Part):
    """The job at this index of a state's list or sorted set.

    With ``or_next`` the states after it in :data:`STATES` are tried too, and then those before it, until
    one has a job there.
    """

    state: str
    index: int = 0
    or_next: bool = False

    def to_json(self, prefix: str) -> Any:  # noqa: ARG002
        return {"at": list(self.states), "index": self.index}

    @property
    def states(self) -> tuple[str, ...]:
        """The states to look in, in turn."""
        if not self.or_next:
            return (self.state,)
        first = STATES.index(self.state)
        return STATES[first:] + STATES[:first]


JobRef = Id | Held | At


# ---------------------------------------------------------------------- options of jobs


@dataclass(frozen=True, slots=True, repr=False)
class Backoff(_Part):
    """How long a retry waits."""

    type: str = "fixed"
    delay: int = 1000
    jitter: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Deduplication(_Part):
    """Five modes: see a.13 in the reference."""

    id: str
    ttl: int | None = None
    extend: bool | None = None
    replace: bool | None = None


@dataclass(frozen=True, slots=True, repr=False)
class KeepJobs(_Part):
    """How many finished jobs stay, and for how many seconds."""

    count: int | None = None
    age: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Parent(_Part):
    """The parent of a job that is added by itself."""

    id: str
    queue: str

    def to_json(self, prefix: str) -> Any:
        return {"id": self.id, "queue": f"{prefix}:{self.queue}"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobOptions(_Part):
    """Everything BullMQ lets a producer say about a job."""

    job_id: str | None = None
    delay: int | None = None
    priority: int | None = None
    lifo: bool | None = None
    attempts: int | None = None
    backoff: int | Backoff | None = None
    remove_on_complete: bool | int | KeepJobs | None = None
    remove_on_fail: bool | int | KeepJobs | None = None
    deduplication: Deduplication | None = None
    keep_logs: int | None = None
    size_limit: int | None = None
    stack_trace_limit: int | None = None
    timestamp: int | None = None
    parent: Parent | None = None
    fail_parent_on_failure: bool | None = None
    continue_parent_on_failure: bool | None = None
    ignore_dependency_on_failure: bool | None = None
    remove_dependency_on_failure: bool | None = None


@dataclass(frozen=True, slots=True, repr=False)
class NewJob(_Part):
    """One of the jobs of a bulk."""

    name: str = "job"
    data: Json = field(default_factory=dict, metadata=_PAYLOAD)
    opts: JobOptions = JobOptions()


@dataclass(frozen=True, slots=True, repr=False)
class Flow(_Part):
    """A job with the jobs it waits for. The options of every job name its id: Node would draw one."""

    queue: str
    opts: JobOptions
    children: tuple[Flow, ...] = ()
    name: str = "node"
    data: Json = field(default_factory=dict, metadata=_PAYLOAD)

    def to_json(self, prefix: str) -> Any:
        found = {
            "name": self.name,
            "queueName": self.queue,
            "data": self.data,
            "opts": self.opts.to_json(prefix),
        }
        if self.children:
            found["children"] = [child.to_json(prefix) for child in self.children]
        return found


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Repeat(_Part):
    """When a scheduler makes jobs."""

    every: int | None = None
    pattern: str | None = None
    tz: str | None = None
    limit: int | None = None
    start_date: int | None = None
    end_date: int | None = None
    immediately: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Template(_Part):
    """What a scheduler's jobs are like."""

    name: str | None = None
    data: Json = None
    opts: JobOptions | None = None


# ---------------------------------------------------------------------- workers


@dataclass(frozen=True, slots=True, repr=False)
class Limiter(_Part):
    """At most so many jobs in so many milliseconds."""

    max: int
    duration: int


@dataclass(frozen=True, slots=True, repr=False)
class Metrics(_Part):
    """How many minutes of counts are kept."""

    max_data_points: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WorkerOptions(_Part):
    """What of a worker's options shows in the state.

    ``custom_backoff`` stands for a backoff strategy: the attempt times it, or give up when it is -1.
    """

    name: str | None = None
    lock_duration: int | None = None
    stalled_interval: int | None = None
    max_stalled_count: int | None = None
    max_started_attempts: int | None = None
    limiter: Limiter | None = None
    metrics: Metrics | None = None
    remove_on_complete: KeepJobs | None = None
    remove_on_fail: KeepJobs | None = None
    custom_backoff: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Thrown(_Part):
    """What a processor throws. ``kind``: error, unrecoverable or rateLimit."""

    message: str = "boom"
    kind: str = "error"

    def to_json(self, prefix: str) -> Any:  # noqa: ARG002
        return {"message": self.message, "kind": self.kind, "stack": self.stack}

    @property
    def stack(self) -> str:
        """What must be found in the job's ``stacktrace``, to the letter."""
        return f"Error: {self.message}\n{GIVEN_STACK}"


GIVEN_STACK = "    at processor (conformance)"
"""The last line of every stack that comes from a test, and so must be the same on both sides."""


@dataclass(frozen=True, slots=True, repr=False)
class Outcome(_Part):
    """How the processing of a job ends: with a value, or with what was thrown."""

    value: Json = field(default=None, metadata=_PAYLOAD)
    error: Thrown | None = None


# ---------------------------------------------------------------------- operations


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Operation(_Part):
    """One thing to do. ``op`` is its name for the oracle."""

    op: ClassVar[str]

    def to_json(self, prefix: str) -> Any:
        # not super(): a dataclass with slots is another class than the one this method was written in
        return {"op": self.op, **_Part.to_json(self, prefix)}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Advance(Operation):
    """Let time pass, for the clients' clocks and for keys that expire."""

    op = "advance"
    ms: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Random(Operation):
    """What chance says from here on (jitter)."""

    op = "random"
    value: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OnQueue(Operation):
    """An operation on one queue."""

    queue: str = "q"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Add(OnQueue):
    """Add a job; its id, or the id of the job that stands in its way."""

    op = "add"
    name: str = "job"
    data: Json = field(default_factory=dict, metadata=_PAYLOAD)
    opts: JobOptions = JobOptions()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AddBulk(OnQueue):
    """Add jobs; their ids. A code of an error stands in place of an id."""

    op = "addBulk"
    jobs: tuple[NewJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AddFlow(Operation):
    """Add a tree of jobs; the ids as ``{"id": …, "children": […]}``."""

    op = "addFlow"
    flow: Flow


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pause(OnQueue):
    """Stop the queue for all workers."""

    op = "pause"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Resume(OnQueue):
    """Let the queue go on."""

    op = "resume"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Drain(OnQueue):
    """Remove what waits, and what is delayed if so asked."""

    op = "drain"
    delayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Clean(OnQueue):
    """Remove jobs of one state that are older than ``grace`` ms; the ids removed."""

    op = "clean"
    grace: int
    limit: int = 0
    type: str = "completed"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Obliterate(OnQueue):
    """Remove the queue."""

    op = "obliterate"
    force: bool | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RetryJobs(OnQueue):
    """Move finished jobs back to waiting."""

    op = "retryJobs"
    state: str | None = None
    count: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PromoteJobs(OnQueue):
    """Move all delayed jobs to waiting."""

    op = "promoteJobs"
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SetGlobalConcurrency(OnQueue):
    """At most so many active jobs, over all workers."""

    op = "setGlobalConcurrency"
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RemoveGlobalConcurrency(OnQueue):
    """No such limit any more."""

    op = "removeGlobalConcurrency"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetGlobalConcurrency(OnQueue):
    """The limit, or None."""

    op = "getGlobalConcurrency"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SetGlobalRateLimit(OnQueue):
    """At most ``max`` jobs in ``duration`` ms, over all workers."""

    op = "setGlobalRateLimit"
    max: int
    duration: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RemoveGlobalRateLimit(OnQueue):
    """No such limit any more."""

    op = "removeGlobalRateLimit"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetGlobalRateLimit(OnQueue):
    """``{"max", "duration"}`` or None."""

    op = "getGlobalRateLimit"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RateLimit(OnQueue):
    """Stop workers that have a limiter, for so long."""

    op = "rateLimit"
    ms: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RemoveRateLimitKey(OnQueue):
    """Start the limiter's window anew; how many keys were deleted."""

    op = "removeRateLimitKey"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetRateLimitTtl(OnQueue):
    """``{"ttl": ms}``."""

    op = "getRateLimitTtl"
    max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetJobCounts(OnQueue):
    """State → number."""

    op = "getJobCounts"
    types: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetRanges(OnQueue):
    """Ids of some states, in order."""

    op = "getRanges"
    types: tuple[str, ...]
    start: int | None = None
    end: int | None = None
    asc: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetJobs(OnQueue):
    """Jobs of some states, as views; None for one whose hash is gone."""

    op = "getJobs"
    types: tuple[str, ...]
    start: int | None = None
    end: int | None = None
    asc: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetCountsPerPriority(OnQueue):
    """Priority (as text) → number."""

    op = "getCountsPerPriority"
    priorities: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetMetrics(OnQueue):
    """Finished jobs by minute."""

    op = "getMetrics"
    type: str
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IsMaxed(OnQueue):
    """Whether the global concurrency is reached."""

    op = "isMaxed"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IsPaused(OnQueue):
    """Whether the queue is paused."""

    op = "isPaused"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrimEvents(OnQueue):
    """Shorten the stream of events, about; how many went."""

    op = "trimEvents"
    max_length: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetDeduplicationJobId(OnQueue):
    """The id of the job that owns a deduplication id, or None."""

    op = "getDeduplicationJobId"
    deduplication_id: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RemoveDeduplicationKey(OnQueue):
    """Forget the owner of a deduplication id; how many keys were deleted."""

    op = "removeDeduplicationKey"
    deduplication_id: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UpsertJobScheduler(OnQueue):
    """Make or change a scheduler; ``{"id", "delay"}`` of its next job, None when there is none."""

    op = "upsertJobScheduler"
    scheduler: str
    repeat: Repeat
    template: Template = Template()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RemoveJobScheduler(OnQueue):
    """Whether there was one."""

    op = "removeJobScheduler"
    scheduler: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetJobScheduler(OnQueue):
    """A scheduler, or None."""

    op = "getJobScheduler"
    scheduler: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetJobSchedulers(OnQueue):
    """The schedulers by their next run."""

    op = "getJobSchedulers"
    start: int | None = None
    end: int | None = None
    asc: bool | None = None


# ---------------------------------------------------------------------- on one job


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OnJob(OnQueue):
    """An operation on one job. When the reference means none, the reply is :data:`NOTHING`."""

    job: JobRef


NOTHING: Json = {"nothing": True}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetJob(OnJob):
    """The job as a view, or None."""

    op = "getJob"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetJobState(OnJob):
    """Its state, or ``unknown``."""

    op = "getJobState"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetJobLogs(OnJob):
    """``{"logs", "count"}``."""

    op = "getJobLogs"
    start: int | None = None
    end: int | None = None
    asc: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Remove(OnJob):
    """1 removed (or not there), 0 locked, error -8 for a scheduler's next job."""

    op = "remove"
    remove_children: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Retry(OnJob):
    """Move a finished job back to waiting."""

    op = "retry"
    state: str = "failed"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Promote(OnJob):
    """Move a delayed job to waiting."""

    op = "promote"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChangeDelay(OnJob):
    """Delay a delayed job anew, from now."""

    op = "changeDelay"
    delay: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChangePriority(OnJob):
    """Another priority; where it waits, it waits there."""

    op = "changePriority"
    priority: int | None = None
    lifo: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UpdateData(OnJob):
    """Replace the data."""

    op = "updateData"
    data: Json = field(default=None, metadata=_PAYLOAD)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UpdateProgress(OnJob):
    """Set the progress."""

    op = "updateProgress"
    progress: Json = field(default=None, metadata=_PAYLOAD)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Log(OnJob):
    """Add a row to the log, kept as the job's ``keep_logs`` says; how many rows there are."""

    op = "log"
    row: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClearLogs(OnJob):
    """Remove the log, or all but its last rows."""

    op = "clearLogs"
    keep: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetDependencies(OnJob):
    """``{"processed", "unprocessed", "failed", "ignored"}``."""

    op = "getDependencies"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetDependenciesCount(OnJob):
    """The same, counted."""

    op = "getDependenciesCount"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetChildrenValues(OnJob):
    """Child's key → its result."""

    op = "getChildrenValues"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GetIgnoredChildrenFailures(OnJob):
    """Child's key → why it failed."""

    op = "getIgnoredChildrenFailures"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RemoveChildDependency(OnJob):
    """Take the job from its parent; whether it was pending."""

    op = "removeChildDependency"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RemoveUnprocessedChildren(OnJob):
    """Remove the children that are neither finished nor locked."""

    op = "removeUnprocessedChildren"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoseLock(OnJob):
    """The job's lock expires. Done by the rig, not by the implementation; how many keys were deleted."""

    op = "loseLock"


# ---------------------------------------------------------------------- by a worker


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fetch(OnQueue):
    """A worker asks for a job, once, without blocking. A scheduler's job makes the next one.

    ``{"job": view or None, "limitedFor": ms, "nextDelayed": timestamp or 0}``
    """

    op = "fetch"
    token: str
    worker: WorkerOptions = WorkerOptions()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OnLockedJob(OnJob):
    """A worker's operation on a job it has, or thinks it has.

    The worker knows the job as it was when the token activated it (a job it did not activate: as it is
    stored now). That decides about retries and what is appended to ``stacktrace``.
    """

    token: str
    worker: WorkerOptions = WorkerOptions()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Complete(OnLockedJob):
    """The job is done. The reply is :class:`Fetch`'s; the next job comes under the same token."""

    op = "complete"
    value: Json = field(default=None, metadata=_PAYLOAD)
    fetch_next: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fail(OnLockedJob):
    """The job has failed: it is retried, delayed or over, as a worker decides. Replies like Complete."""

    op = "fail"
    error: Thrown = Thrown()
    fetch_next: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Process(OnLockedJob):
    """All that a worker does with a job, with a processor that ends so.

    A job with a deferred failure, or started too often, fails without being run. When completing fails,
    that error is the job's failure. Errors that a worker would only report are ``problems`` in the reply.
    """

    op = "process"
    outcome: Outcome = Outcome()
    fetch_next: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MoveToDelayed(OnLockedJob):
    """From active to delayed, not counted as an attempt."""

    op = "moveToDelayed"
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MoveToWait(OnLockedJob):
    """From active to the front of what waits; ``{"ttl": ms}`` of the limiter."""

    op = "moveToWait"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MoveToWaitingChildren(OnLockedJob):
    """From active to waiting for children; False when there are none to wait for."""

    op = "moveToWaitingChildren"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExtendLock(OnLockedJob):
    """1 or 0."""

    op = "extendLock"
    duration: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExtendLocks(OnQueue):
    """Extend the locks of several jobs; the ids of those that are lost."""

    op = "extendLocks"
    locks: tuple[tuple[JobRef, str], ...]
    worker: WorkerOptions = WorkerOptions()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(OnQueue):
    """The check for stalled jobs; the ids recovered."""

    op = "sweep"
    worker: WorkerOptions = WorkerOptions()
