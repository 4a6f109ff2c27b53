"""A job queue on Redis Streams: leases, retries, dead letters, order per key.

:class:`StreamQueue` adds jobs, looks at them and decides about them. :class:`StreamWorker` runs handlers on
them. A handler says what kind of failure it has met by what it raises: :class:`TransientError` (it is tried
again, after ``retry_after`` seconds where that is known), :class:`UnrecoverableError`, :class:`PolicyDenied`,
:class:`BudgetExceeded` (it is a dead letter at once); anything else is tried again, longer apart each time.
"""

from toril.handler import (
    BudgetExceeded,
    PolicyDenied,
    TimedOut,
    TransientError,
    UnfitPayload,
    UnrecoverableError,
)
from toril.stream.errors import (
    BacklogFull,
    BulkFailed,
    EntriesLost,
    JobCancelled,
    JobDead,
    JobMissing,
    LeaseLost,
    ResultNotKept,
    ResultTimeout,
    StreamError,
)
from toril.stream.handle import JobHandle
from toril.stream.job import AddJob
from toril.stream.options import Backoff, Route, StreamOptions
from toril.stream.partitions import partition_of
from toril.stream.queue import DEFAULT_QUEUE, StreamQueue, stream_queues
from toril.stream.schedules import Schedule
from toril.stream.step_job import STEP_ROUTE, StepJob
from toril.stream.views import DeadLetter, JobView, PartitionMetrics, PendingJob, StreamMetrics, WorkerView
from toril.stream.worker import StreamJob, StreamWorker

__all__ = [
    "DEFAULT_QUEUE",
    "STEP_ROUTE",
    "AddJob",
    "BacklogFull",
    "Backoff",
    "BudgetExceeded",
    "BulkFailed",
    "DeadLetter",
    "EntriesLost",
    "JobCancelled",
    "JobDead",
    "JobHandle",
    "JobMissing",
    "JobView",
    "LeaseLost",
    "PartitionMetrics",
    "PendingJob",
    "PolicyDenied",
    "ResultNotKept",
    "ResultTimeout",
    "Route",
    "Schedule",
    "StepJob",
    "StreamError",
    "StreamJob",
    "StreamMetrics",
    "StreamOptions",
    "StreamQueue",
    "StreamWorker",
    "TimedOut",
    "TransientError",
    "UnfitPayload",
    "UnrecoverableError",
    "WorkerView",
    "partition_of",
    "stream_queues",
]
