"""Schedules: jobs that are added again and again, at times that a cron pattern names."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from toril.errors import InvalidValue


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule of a queue."""

    id: str
    cron: str
    """Five fields (minute, hour, day, month, weekday), or six with seconds first."""
    timezone: str = "UTC"
    due: datetime | None = None
    """When it is due next."""
    data: Any = None
    name: str = "job"
    key: str = ""
    tenant: str = ""
    priority: int = 0


class Plan(msgspec.Struct, frozen=True):
    """What is kept of a schedule."""

    cron: str
    timezone: str
    data: msgspec.Raw
    name: str
    key: str
    tenant: str
    level: int
    options: str


def next_match(cron: str, after: int, timezone: str) -> int:
    """When a cron pattern matches next, in ms; 0 for never."""
    start = datetime.fromtimestamp(after / 1000, _zone(timezone))
    try:
        found = next(CronSim(cron, start), None)
    except CronSimError as problem:
        rule = f"a cron pattern of five fields, or six with seconds first: {problem}"
        raise InvalidValue("cron", cron, rule) from None
    return 0 if found is None else round(found.timestamp() * 1000)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidValue("timezone", name, "the name of a time zone, such as Europe/Madrid") from None


def schedule_of(schedule_id: str, due: int, raw: bytes) -> Schedule:
    """A schedule from what is kept of it."""
    plan = msgspec.json.decode(raw, type=Plan)
    return Schedule(
        id=schedule_id,
        cron=plan.cron,
        timezone=plan.timezone,
        due=datetime.fromtimestamp(due / 1000, UTC),
        data=msgspec.json.decode(plan.data),
        name=plan.name,
        key=plan.key,
        tenant=plan.tenant,
        priority=plan.level,
    )
