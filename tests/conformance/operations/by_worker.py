"""What a worker does."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.conformance.operations.on_job import OnJob
from tests.conformance.operations.on_queue import OnQueue
from tests.conformance.operations.parts import PAYLOAD, JobRef, Json, Outcome, Thrown, WorkerOptions


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fetch(OnQueue):
    """A worker asks for a job, once, without blocking. A scheduler's job makes the next one.

    ``{"job": view or None, "limitedFor": ms, "nextDelayed": timestamp or 0}``
    """

    op = "fetch"
    token: str
    worker: WorkerOptions = field(default=WorkerOptions())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OnLockedJob(OnJob):
    """A worker's operation on a job it has, or thinks it has.

    The worker knows the job as it was when the token activated it (a job it did not activate: as it is
    stored now). That decides about retries and what is appended to ``stacktrace``.
    """

    token: str
    worker: WorkerOptions = field(default=WorkerOptions())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Complete(OnLockedJob):
    """The job is done. The reply is :class:`Fetch`'s; the next job comes under the same token."""

    op = "complete"
    value: Json = field(default=None, metadata=PAYLOAD)
    fetch_next: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fail(OnLockedJob):
    """The job has failed: it is retried, delayed or over, as a worker decides. Replies like Complete."""

    op = "fail"
    error: Thrown = field(default=Thrown())
    fetch_next: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Process(OnLockedJob):
    """All that a worker does with a job, with a processor that ends so.

    A job with a deferred failure, or started too often, fails without being run. When completing fails,
    that error is the job's failure. Errors that a worker would only report are ``problems`` in the reply.
    """

    op = "process"
    outcome: Outcome = field(default=Outcome())
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
    worker: WorkerOptions = field(default=WorkerOptions())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(OnQueue):
    """The check for stalled jobs; the ids recovered."""

    op = "sweep"
    worker: WorkerOptions = field(default=WorkerOptions())
