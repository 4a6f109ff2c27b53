"""What a producer can say about a job, checked once, and as it is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from toril.errors import InvalidValue
from toril.keyspace import QUEUE_SUFFIXES

HIGHEST_PRIORITY = 2**21
"""Priorities are 1 (first) to this; 0 is none, and goes before all of them."""

LARGEST = 2**53 - 1
"""The largest number that is the same in Python, JavaScript and Lua."""

Milliseconds = int | timedelta
"""Times are whole milliseconds, as in BullMQ, or a timedelta."""

_SHORT = {
    "deduplication": "de",
    "fail_parent_on_failure": "fpof",
    "continue_parent_on_failure": "cpof",
    "ignore_dependency_on_failure": "idof",
    "remove_dependency_on_failure": "rdof",
    "keep_logs": "kl",
    "remove_on_complete": "removeOnComplete",
    "remove_on_fail": "removeOnFail",
    "job_id": "jobId",
    "size_limit": "sizeLimit",
    "stack_trace_limit": "stackTraceLimit",
    "telemetry": "tm",
}
"""Options that are stored under another name (a.3); the others keep theirs."""

PARENT_OPTIONS = (
    "remove_dependency_on_failure",
    "fail_parent_on_failure",
    "continue_parent_on_failure",
    "ignore_dependency_on_failure",
)
"""What the failure of a child does to its parent: at most one of them."""


def milliseconds(name: str, value: Milliseconds) -> int:
    """A time as whole milliseconds, from 0 up."""
    number = round(value / timedelta(milliseconds=1)) if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LARGEST:
        raise InvalidValue(name, value, f"whole milliseconds from 0 to {LARGEST}, or a timedelta")
    return number


def check_whole(name: str, value: object, lowest: int = 0) -> None:
    """Refuse what is not a whole number that Node can count to."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= LARGEST:
        raise InvalidValue(name, value, f"a whole number from {lowest} to {LARGEST}")


def check_text(name: str, value: object) -> None:
    """Refuse what is not text."""
    if not isinstance(value, str) or not value:
        raise InvalidValue(name, value, "it must be a string with at least one character")
    if value != value.encode(errors="replace").decode():
        raise InvalidValue(name, value, "it must be text that UTF-8 can encode")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidValue(name, value, "True or False")


def check_priority(priority: object) -> None:
    """Refuse what is not a priority."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= HIGHEST_PRIORITY:
        raise InvalidValue("priority", priority, f"a whole number from 0 to {HIGHEST_PRIORITY}")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt.

    ``fixed``: always ``delay``. ``exponential``: ``delay`` × 1, 2, 4, 8 … Any other type is a strategy that
    the worker has. ``jitter`` (0 to 1) makes that share of it random.
    """

    type: str = "fixed"
    delay: Milliseconds = 0
    jitter: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not self.type:
            raise InvalidValue("backoff type", self.type, "fixed, exponential, or a strategy of the worker")
        milliseconds("backoff delay", self.delay)
        is_number = isinstance(self.jitter, int | float) and not isinstance(self.jitter, bool)
        if self.jitter is not None and not (is_number and 0 <= self.jitter <= 1):
            raise InvalidValue("backoff jitter", self.jitter, "a number from 0 to 1")

    def stored(self) -> dict[str, Any]:
        """As BullMQ stores it."""
        made: dict[str, Any] = {"type": self.type, "delay": milliseconds("backoff delay", self.delay)}
        return made if self.jitter is None else {**made, "jitter": self.jitter}


@dataclass(frozen=True, slots=True)
class KeepJobs:
    """How many finished jobs to keep, and for how many seconds. Both at most; neither keeps all."""

    count: int | None = None
    age: float | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            check_whole("kept count", self.count, -1)
        if self.age is not None:
            check_whole("kept age", self.age)

    def stored(self) -> dict[str, float]:
        """As BullMQ stores it."""
        given = {"count": self.count, "age": self.age}
        return {name: value for name, value in given.items() if value is not None}


KEEP_ALL = KeepJobs(count=-1)


def kept(stored: Any, worker: KeepJobs | None) -> KeepJobs:
    """What becomes of a finished job: its own option as stored, else the worker's, else it is kept."""
    if stored is None:
        return worker or KEEP_ALL
    if isinstance(stored, bool):
        return KeepJobs(count=0) if stored else KEEP_ALL
    if isinstance(stored, int | float):
        return KeepJobs(count=int(stored))
    made = object.__new__(KeepJobs)  # Node lets more through than we do, half a second for one
    object.__setattr__(made, "count", stored.get("count"))
    object.__setattr__(made, "age", stored.get("age"))
    return made


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Jobs with one deduplication ``id`` stand for one another.

    ``id`` alone: while the first one is not finished, others are ignored. With ``ttl``: for that long,
    finished or not. ``extend``: each ignored job starts the time anew. ``replace``: as long as the first one
    is delayed, the last one takes its place. All of them and a delay: a debounce.
    """

    id: str
    ttl: Milliseconds | None = None
    extend: bool = False
    replace: bool = False

    def __post_init__(self) -> None:
        check_text("deduplication id", self.id)
        if self.ttl is not None:
            milliseconds("deduplication ttl", self.ttl)
        _check_bool("deduplication extend", self.extend)
        _check_bool("deduplication replace", self.replace)

    def stored(self) -> dict[str, Any]:
        """As BullMQ stores it."""
        made: dict[str, Any] = {"id": self.id}
        if self.ttl is not None:
            made["ttl"] = milliseconds("deduplication ttl", self.ttl)
        if self.extend:
            made["extend"] = True
        if self.replace:
            made["replace"] = True
        return made


@dataclass(frozen=True, slots=True)
class Parent:
    """The job that waits for this one: its id, and its queue's key (``bull:{reports}``)."""

    id: str
    queue: str

    def __post_init__(self) -> None:
        check_text("parent id", self.id)
        check_text("parent queue", self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Everything that can be said about a job when it is added. Times are milliseconds, or timedeltas."""

    delay: Milliseconds | None = None
    """Run it no sooner than so long from now."""
    priority: int | None = None
    """1 (first) to 2,097,152. Jobs without a priority go before all others."""
    lifo: bool | None = None
    """Run it next, before all that wait."""
    attempts: int | None = None
    """How often it is tried in all."""
    backoff: Backoff | Milliseconds | None = None
    """How long a failed job waits before it is tried again."""
    remove_on_complete: bool | int | KeepJobs | None = None
    """Whether a completed job is removed; or how many completed jobs are kept, and how long."""
    remove_on_fail: bool | int | KeepJobs | None = None
    """The same for failed jobs."""
    job_id: str | None = None
    """An id of your own. While a job with that id exists, adding another one does nothing."""
    deduplication: Deduplication | None = None
    keep_logs: int | None = None
    """How many lines of its log are kept."""
    size_limit: int | None = None
    """Refuse data with more bytes than this, as JSON."""
    stack_trace_limit: int | None = None
    """How many stack traces of failed attempts are kept."""
    timestamp: int | None = None
    """When it was made, in ms since 1970; now if not given."""
    parent: Parent | None = None
    fail_parent_on_failure: bool | None = None
    continue_parent_on_failure: bool | None = None
    ignore_dependency_on_failure: bool | None = None
    remove_dependency_on_failure: bool | None = None
    telemetry: str | None = field(default=None, repr=False)
    """Trace context; set by the queue."""

    def __post_init__(self) -> None:
        if self.delay is not None:
            milliseconds("delay", self.delay)
        if self.priority is not None:
            check_priority(self.priority)
        for name in ("attempts", "keep_logs", "size_limit", "stack_trace_limit", "timestamp"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value)
        if self.job_id is not None:
            check_job_id(self.job_id)
        for name in ("remove_on_complete", "remove_on_fail"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool | int | KeepJobs):
                raise InvalidValue(name, value, "True, False, a number of jobs, or KeepJobs(count, age)")
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            milliseconds("backoff", self.backoff)
        for name in ("lifo", *PARENT_OPTIONS):
            if getattr(self, name) is not None:
                _check_bool(name, getattr(self, name))
        if self.deduplication is not None and not isinstance(self.deduplication, Deduplication):
            raise InvalidValue("deduplication", self.deduplication, "it must be a Deduplication(id, …)")
        if self.parent is not None and not isinstance(self.parent, Parent):
            raise InvalidValue("parent", self.parent, "it must be a Parent(id, queue)")
        chosen = [name for name in PARENT_OPTIONS if getattr(self, name)]
        if len(chosen) > 1:
            raise InvalidValue("options", ", ".join(chosen), "they cannot be used together")

    def stored(self) -> dict[str, Any]:
        """The options as BullMQ stores them: short names, and only what was said."""
        made: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, Backoff | KeepJobs | Deduplication):
                value = value.stored()
            elif isinstance(value, Parent):
                value = {"id": value.id, "queue": value.queue}
            elif name in ("delay", "backoff"):
                value = milliseconds(name, value)
                if name == "backoff":
                    value = {"type": "fixed", "delay": value}
            made[_SHORT.get(name, name)] = value
        made.setdefault("attempts", 0)
        return made


def check_job_id(job_id: object) -> None:
    """Node's rules for ids of one's own: BullMQ counts, and puts its own meaning into some."""
    check_text("job id", job_id)
    assert isinstance(job_id, str)
    if job_id in QUEUE_SUFFIXES:
        raise InvalidValue("job id", job_id, "it is the name of a key that the queue itself has")
    if job_id == "0" or job_id.startswith("0:"):
        raise InvalidValue("job id", job_id, "it cannot be '0' or start with '0:'")
    if job_id == "NaN" or re.fullmatch(r"-?(0|[1-9][0-9]*)", job_id):
        raise InvalidValue("job id", job_id, "it cannot be a whole number: BullMQ counts its own ids")
    if ":" in job_id and len(job_id.split(":")) != 3:
        raise InvalidValue(
            "job id", job_id, "it cannot contain ':' (but in three parts, as schedulers have it)"
        )


def parent_link(options: JobOptions) -> Mapping[str, Any] | None:
    """What a child knows of its parent, as stored in its ``parent`` field."""
    if options.parent is None:
        return None
    made: dict[str, Any] = {"id": options.parent.id, "queueKey": options.parent.queue}
    for name in PARENT_OPTIONS:
        if getattr(options, name):
            made[_SHORT[name]] = True
    return made
