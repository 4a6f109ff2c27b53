"""What operations are made of: which job, its options, a worker's, and what a handler does."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any

Json = Any
"""A value that JSON can carry: job data, progress, results."""


PAYLOAD = {"payload": True}
"""Marks a field that is passed as it is, also when it is None."""


@cache
def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


def _plain(value: Any, prefix: str) -> Any:
    if isinstance(value, Part):
        return value.to_json(prefix)
    if isinstance(value, tuple):
        return [_plain(item, prefix) for item in value]
    return value


class Part:
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
class Id(Part):
    """The job with this id, whether it exists or not."""

    id: str


@dataclass(frozen=True, slots=True, repr=False)
class Held(Part):
    """The job that this token activated last, also when it has lost it since."""

    held: str


STATES = ("wait", "paused", "active", "prioritized", "delayed", "completed", "failed", "waiting-children")
"""The keys that say in which state a job is."""


@dataclass(frozen=True, slots=True, repr=False)
class At(Part):
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
class Backoff(Part):
    """How long a retry waits."""

    type: str = "fixed"
    delay: int = 1000
    jitter: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Deduplication(Part):
    """Five modes: see a.13 in the reference."""

    id: str
    ttl: int | None = None
    extend: bool | None = None
    replace: bool | None = None


@dataclass(frozen=True, slots=True, repr=False)
class KeepJobs(Part):
    """How many finished jobs stay, and for how many seconds."""

    count: int | None = None
    age: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Parent(Part):
    """The parent of a job that is added by itself."""

    id: str
    queue: str

    def to_json(self, prefix: str) -> Any:
        return {"id": self.id, "queue": f"{prefix}:{self.queue}"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobOptions(Part):
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
class NewJob(Part):
    """One of the jobs of a bulk."""

    name: str = "job"
    data: Json = field(default_factory=dict, metadata=PAYLOAD)
    opts: JobOptions = JobOptions()


@dataclass(frozen=True, slots=True, repr=False)
class Flow(Part):
    """A job with the jobs it waits for. The options of every job name its id: Node would draw one."""

    queue: str
    opts: JobOptions
    children: tuple[Flow, ...] = ()
    name: str = "node"
    data: Json = field(default_factory=dict, metadata=PAYLOAD)

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
class Repeat(Part):
    """When a scheduler makes jobs."""

    every: int | None = None
    pattern: str | None = None
    tz: str | None = None
    limit: int | None = None
    start_date: int | None = None
    end_date: int | None = None
    immediately: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Template(Part):
    """What a scheduler's jobs are like."""

    name: str | None = None
    data: Json = None
    opts: JobOptions | None = None


# ---------------------------------------------------------------------- workers


@dataclass(frozen=True, slots=True, repr=False)
class Limiter(Part):
    """At most so many jobs in so many milliseconds."""

    max: int
    duration: int


@dataclass(frozen=True, slots=True, repr=False)
class Metrics(Part):
    """How many minutes of counts are kept."""

    max_data_points: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WorkerOptions(Part):
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
class Thrown(Part):
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
class Outcome(Part):
    """How the processing of a job ends: with a value, or with what was thrown."""

    value: Json = field(default=None, metadata=PAYLOAD)
    error: Thrown | None = None
