"""What can go wrong with jobs and queues."""

from __future__ import annotations

from toril.errors import TorilError
from toril.handler import UnrecoverableError as UnrecoverableError


class QueueError(TorilError):
    """A queue refused. ``code`` is BullMQ's number for it, where it has one."""

    code: int | None = None

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class JobMissing(QueueError):
    """There is no such job."""


class LockLost(QueueError):
    """The worker's lock on the job has expired, or another worker has it: it may not finish the job."""


class WrongState(QueueError):
    """The job is not in the state that this needs."""


class ChildrenPending(QueueError):
    """The job waits for children."""


class ParentMissing(QueueError):
    """There is no such parent."""


class ParentTaken(QueueError):
    """The job has another parent, which is alive."""


class JobScheduled(QueueError):
    """The job is the next run of a scheduler, and goes away only with it."""


class ChildrenFailed(QueueError):
    """A child has failed, and so must this job."""


class UntaggedName(QueueError):
    """A queue name without a hash tag, on a cluster."""


SCRIPT_FAILED = -100
"""No code of BullMQ's: the script met something broken at a job."""

# The wording is BullMQ's: a worker that cannot finish a job writes it into the job's failedReason.
_TEXTS: dict[int, tuple[type[QueueError], str]] = {
    -1: (JobMissing, "Missing key for job {job}. {verb}"),
    -2: (LockLost, "Missing lock for job {job}. {verb}"),
    -3: (WrongState, "Job {job} is not in the {state} state. {verb}"),
    -4: (ChildrenPending, "Job {job} has pending dependencies. {verb}"),
    -5: (ParentMissing, "Missing key for parent job {parent}. {verb}"),
    -6: (LockLost, "Lock mismatch for job {job}. Cmd {verb} from {state}"),
    -7: (ParentTaken, "The parent job {parent} cannot be replaced. {verb}"),
    -8: (JobScheduled, "Job {job} belongs to a job scheduler and cannot be removed directly. {verb}"),
    -9: (ChildrenFailed, "Cannot complete job {job} because it has at least one failed child. {verb}"),
    SCRIPT_FAILED: (QueueError, "The script failed at job {job}, which is left as it is. {verb}"),
}


def error_of(code: int, verb: str, *, job: str = "", parent: str = "", state: str = "active") -> QueueError:
    """The error that one of BullMQ's codes stands for."""
    kind, text = _TEXTS[code]
    return kind(text.format(job=job, parent=parent, verb=verb, state=state), code)


# ---------------------------------------------------------------------------- raised by handlers


class RateLimitError(TorilError):
    """Raise it in a handler after :meth:`Queue.rate_limit`: the job goes back to the front of the queue."""

    def __init__(self) -> None:
        super().__init__("bullmq:rateLimitExceeded")


class DelayedError(TorilError):
    """Raise it in a handler after :meth:`Job.move_to_delayed`: the job is where it should be."""

    def __init__(self) -> None:
        super().__init__("bullmq:movedToDelayed")


class WaitingChildrenError(TorilError):
    """Raise it in a handler after :meth:`Job.move_to_waiting_children`: the job is where it should be."""

    def __init__(self) -> None:
        super().__init__("bullmq:movedToWaitingChildren")
