"""Job queues on the state that BullMQ 5.62.0 keeps in Redis, so that Python and Node share them."""

from toril.queue.errors import (
    ChildrenFailed,
    ChildrenPending,
    DelayedError,
    JobMissing,
    JobScheduled,
    LockLost,
    ParentMissing,
    ParentTaken,
    QueueError,
    RateLimitError,
    UnrecoverableError,
    UntaggedName,
    WaitingChildrenError,
    WrongState,
)
from toril.queue.events import Event, EventsClosed, JobFailed, QueueEvents, ResultTimeout
from toril.queue.handle import Job
from toril.queue.options import Backoff, Deduplication, JobOptions, KeepJobs, Parent
from toril.queue.queue import AddJob, BulkFailed, Metrics, Queue, Scheduler
from toril.queue.worker import Limiter, TimedOut, Worker

__all__ = [
    "AddJob",
    "Backoff",
    "BulkFailed",
    "ChildrenFailed",
    "ChildrenPending",
    "Deduplication",
    "DelayedError",
    "Event",
    "EventsClosed",
    "Job",
    "JobFailed",
    "JobMissing",
    "JobOptions",
    "JobScheduled",
    "KeepJobs",
    "Limiter",
    "LockLost",
    "Metrics",
    "Parent",
    "ParentMissing",
    "ParentTaken",
    "Queue",
    "QueueError",
    "QueueEvents",
    "RateLimitError",
    "ResultTimeout",
    "Scheduler",
    "TimedOut",
    "UnrecoverableError",
    "UntaggedName",
    "WaitingChildrenError",
    "Worker",
    "WrongState",
]
