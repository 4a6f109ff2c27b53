"""What a worker must decide about a job before it runs it."""

from __future__ import annotations

from toril.queue.job import JobData


def unrecoverable_reason(job: JobData, max_started: int | None) -> str | None:
    """Why a job must fail without being run; None when it may run."""
    if job.deferred_failure:
        return job.deferred_failure
    if max_started and job.attempts_started > max_started:
        return "job started more than allowable limit"
    return None
