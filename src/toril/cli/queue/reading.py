"""Reading jobs for people: what is stored wrongly is shown as it is, and ids that are none are found out."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from toril.cli.queue.target import Target
from toril.connection import CommandRefused
from toril.errors import TorilError
from toril.queue import Job
from toril.queue.job import JobData

_FIELDS = {
    "name": b"name",
    "data": b"data",
    "opts": b"opts",
    "progress": b"progress",
    "return_value": b"returnvalue",
    "stack_traces": b"stacktrace",
    "parent": b"parent",
    "failed_reason": b"failedReason",
    "deferred_failure": b"defa",
    "processed_by": b"pb",
    "scheduler_id": b"rjk",
    "deduplication_id": b"deid",
}


class NoSuchJob(TorilError):
    """There is no such job."""


async def find_job(at: Target, job_id: str) -> tuple[Job, str]:
    """A job and its state. Ids of other keys (``meta``, ``wait``) are no jobs, though keys are there."""
    state = await at.queue.state(job_id)
    try:
        job = await at.queue.job(job_id)
    except CommandRefused as problem:
        if problem.code != "WRONGTYPE":
            raise
        job = None
    if state == "unknown" and (job is None or b"timestamp" not in job.fields):
        raise NoSuchJob(f"there is no job {job_id!r} in queue {at.name!r}")
    # An id in a list or set whose hash is gone is something to look at, and to remove.
    return job or Job(at.queue.store, job_id, {}), state


def told(job: JobData, what: str) -> Any:
    """What a job says; where another program stored something unreadable, that text as it is."""
    try:
        return getattr(job, what)
    except (ValueError, TypeError, AttributeError, msgspec.MsgspecError):
        return text(job.fields.get(_FIELDS[what], b""))


def moment(job: JobData, what: str) -> int | None:
    """A time of a job's, or a count; None where there is no number."""
    try:
        found: int | None = getattr(job, what)
    except ValueError:
        return None
    return found


def options(job: JobData) -> dict[str, Any]:
    """A job's options."""
    found = told(job, "opts")
    return found if isinstance(found, dict) else {}


def traces(job: JobData) -> list[str]:
    """A job's stack traces."""
    found = told(job, "stack_traces")
    return [str(trace) for trace in found] if isinstance(found, list) else [str(found)] if found else []


def text(raw: bytes) -> str:
    """Bytes as text, whatever they are."""
    return raw.decode(errors="replace")


def compact(value: Any) -> str:
    """A value in a cell."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
