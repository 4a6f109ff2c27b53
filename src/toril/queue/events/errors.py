"""What can go wrong for those who follow events, or wait for a result."""

from __future__ import annotations

from toril.queue.errors import QueueError


class JobFailed(QueueError):
    """The job that was waited for has failed for good. ``reason`` says why."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id} has failed: {reason}")
        self.job_id = job_id
        self.reason = reason


class ResultTimeout(QueueError, TimeoutError):
    """What was waited for, a job's end or an event, has not come in time. It may still come."""


class EventsClosed(QueueError):
    """Nobody follows the events: the :class:`QueueEvents` was closed, or never entered."""
