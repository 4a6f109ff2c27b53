"""What can go wrong with stream queues and their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toril.connection import CommandRefused
from toril.errors import TorilError


class StreamError(TorilError):
    """A stream queue refused, or a job did not end well."""


class BacklogFull(CommandRefused):
    """The queue has as many jobs, or bytes, as it may have. Nothing was added: try again later."""


class Unconfigured(CommandRefused):
    """The queue has no options in Redis; it was flushed. They are written again, and the call is repeated."""


class BulkFailed(StreamError):
    """A bulk was added in part.

    ``ids`` has the id of each job of the bulk that was added, and None for each that was not; ``problem`` is
    why. Where that is a broken connection (:class:`~toril.connection.OutcomeUnknown`), jobs with None may
    have been added; those with unique names can be added again.
    """

    def __init__(self, ids: Sequence[str | None], problem: Exception) -> None:
        done = sum(each is not None for each in ids)
        super().__init__(f"{done} of {len(ids)} jobs were added: {problem}")
        self.ids = list(ids)
        self.problem = problem


class JobMissing(StreamError):
    """There is no such job: it never was, or it is done and its result is not kept (any more)."""


class JobDead(StreamError):
    """The job is a dead letter. ``reason`` is the kind of failure, ``error`` what was said last."""

    def __init__(self, job_id: str, reason: str, error: str) -> None:
        super().__init__(f"job {job_id} is a dead letter ({reason}): {error}")
        self.job_id = job_id
        self.reason = reason
        self.error = error


class JobCancelled(StreamError):
    """The job was cancelled."""


class ResultTimeout(StreamError):
    """The job has not ended in the time given."""


class ResultNotKept(StreamError):
    """The job was added without ``result_ttl``: what its handler returns is not kept."""


class LeaseLost(StreamError):
    """The worker was too long without renewing its lease, and another one has the job."""


class EntriesLost(StreamError):
    """Jobs were deleted from their stream before they were done: not by Toril, which never trims them."""

    def __init__(self, where: str, entries: Sequence[Any], count: int) -> None:
        named = f": {', '.join(map(str, entries))}" if entries else ""
        super().__init__(f"{count} jobs of {where} were deleted before they were done{named}")
        self.entries = list(entries)
        self.count = count
