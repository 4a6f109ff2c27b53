"""What is done to one job."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.conformance.operations.on_queue import OnQueue
from tests.conformance.operations.parts import PAYLOAD, JobRef, Json


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
    data: Json = field(default=None, metadata=PAYLOAD)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UpdateProgress(OnJob):
    """Set the progress."""

    op = "updateProgress"
    progress: Json = field(default=None, metadata=PAYLOAD)


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
