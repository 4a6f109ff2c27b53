"""Schedules that are due: any worker adds their jobs, and two that do it at once add each once."""

from __future__ import annotations

import msgspec

from toril.stream.job import NewJob
from toril.stream.schedules import Plan, next_match
from toril.stream.store import PartitionStore


async def fire_due(store: PartitionStore) -> list[str]:
    """Add the jobs of the schedules that are due; the schedules whose jobs fell out: the backlog was full."""
    skipped: list[str] = []
    for schedule, due, raw in await store.schedules(due_only=True):
        plan = msgspec.json.decode(raw, type=Plan)
        # Times that passed while no worker was there are made up for once: the next one is to come.
        next_due = next_match(plan.cron, max(due, await store.now()), plan.timezone)
        job = NewJob(
            *(plan.name, bytes(plan.data), plan.options.encode(), plan.key, plan.tenant, plan.level),
            delay=0,
            unique="",
            unique_for=0,
        )
        if await store.fire(schedule, due, next_due, job) == "!":
            skipped.append(schedule)
    return skipped
