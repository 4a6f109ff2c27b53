"""What is done to a queue, and to the time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.conformance.operations.parts import PAYLOAD, Flow, JobOptions, Json, NewJob, Part, Repeat, Template


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Operation(Part):
    """One thing to do. ``op`` is its name for the oracle."""

    op: ClassVar[str]

    def to_json(self, prefix: str) -> Any:
        # not super(): a dataclass with slots is another class than the one this method was written in
        return {"op": self.op, **Part.to_json(self, prefix)}


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
    data: Json = field(default_factory=dict, metadata=PAYLOAD)
    opts: JobOptions = field(default=JobOptions())


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
    template: Template = field(default=Template())


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
