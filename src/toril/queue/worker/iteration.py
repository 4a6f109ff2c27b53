"""A scheduler's job was taken: its next one is made (a.11)."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim

from toril.queue.job import JobData
from toril.queue.store import QueueStore


async def make_next_run(store: QueueStore, job: JobData) -> str | None:
    """Make the next run of the scheduler that a job comes from; its id, or None when there is none."""
    scheduler = job.scheduler_id
    # Ids of BullMQ 4's repeatable jobs have five parts, and are not made by schedulers.
    if scheduler is None or len(scheduler.split(":")) >= 5:
        return None
    options = dict(job.opts)
    repeat = dict(options.get("repeat") or {})
    count = (repeat.get("count") or 0) + 1
    now = store.clock()
    end = repeat.get("endDate")
    if (repeat.get("limit") or count) < count or (end is not None and now > end):
        return None
    due = None
    if repeat.get("pattern"):
        after = max(now, options.get("prevMillis") or 0, repeat.get("startDate") or 0)
        due = next_match(repeat["pattern"], after, repeat.get("tz"))
        if due is None or (end is not None and due > end):
            return None
        options["prevMillis"] = due
    elif not repeat.get("every"):
        return None
    options |= {"repeat": {**repeat, "count": count}, "timestamp": now, "repeatJobKey": scheduler}
    return await store.iterate(scheduler, job.id, due, options, job.fields.get(b"data", b"{}"))


def next_match(pattern: str, after: int, timezone: str | None) -> int | None:
    """When a cron pattern (five fields, or six with seconds first) next matches, in ms; None for never.

    Without a time zone it is the machine's, as in Node.
    """
    start: Any = datetime.fromtimestamp(after / 1000, ZoneInfo(timezone) if timezone else None)
    found = next(CronSim(pattern, start), None)
    return None if found is None else round(found.timestamp() * 1000)
