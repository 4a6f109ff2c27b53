"""How a log and its readers stand: what several commands show."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toril.cli.times import span
from toril.log import Log, Partition, Retention, Standing

AT_ONCE = 32
"""How many questions are on their way at a time."""


@dataclass(slots=True)
class ReaderSeen:
    """A reader, over all partitions."""

    name: str
    temporary: bool
    partitions: int = 0
    """Where it has a floor."""
    backlog: int = 0
    """Events it is not done with."""
    behind: int = 0
    """Partitions in which it has a backlog."""
    oldest: int | None = None
    """When the oldest event that it is not done with was appended (ms)."""
    holds_up: int = 0
    """Partitions that would be trimmed further, but for it."""
    held: int = 0
    """Its backlog there."""
    expires_in: int | None = None
    """In how many ms a temporary one is forgotten, if nothing is heard of it."""

    def as_value(self, now: int) -> dict[str, Any]:
        """For programs."""
        return {
            "reader": self.name,
            "temporary": self.temporary,
            "partitions": self.partitions,
            "backlog": self.backlog,
            "partitions_behind": self.behind,
            "oldest_unread": self.oldest,
            "oldest_unread_age": None if self.oldest is None else max(0, now - self.oldest),
            "holds_up_partitions": self.holds_up,
            "holds_up_events": self.held,
            "expires_in": self.expires_in,
        }


def alive(standing: Standing) -> list[str]:
    """The readers of a partition, without temporary ones that were silent for too long."""
    return [
        name for name, its in standing.readers.items() if not its.expires_at or its.expires_at >= standing.now
    ]


def readers_of(standings: Sequence[Standing]) -> dict[str, ReaderSeen]:
    """All readers by name, the slowest first; not yet how old what they have not read is."""
    found: dict[str, ReaderSeen] = {}
    for standing in standings:
        for name in alive(standing):
            its = standing.readers[name]
            reader = found.setdefault(name, ReaderSeen(name, temporary=its.expires_at > 0))
            reader.partitions += 1
            reader.backlog += standing.backlog(name)
            reader.behind += standing.backlog(name) > 0
            if its.expires_at:
                left = its.expires_at - standing.now
                reader.expires_in = left if reader.expires_in is None else min(reader.expires_in, left)
    return dict(sorted(found.items(), key=lambda item: (-item[1].backlog, item[0])))


async def look_at_readers(
    log: Log, standings: Sequence[Standing], retention: Retention | None
) -> list[ReaderSeen]:
    """All readers, the slowest first, with the age of what they have not read, and who holds up trimming."""
    found = readers_of(standings)
    asked = sorted(
        {
            (one.partition, one.readers[name].position.id)
            for one in standings
            for name in alive(one)
            if one.backlog(name)
        }
    )
    firsts = dict(zip(asked, await _firsts_after(log, asked), strict=True))
    for standing in standings:
        names = alive(standing)
        floor = min((standing.readers[name].position.ordinal for name in names), default=0)
        for name in names:
            position, reader = standing.readers[name].position, found[name]
            first = firsts.get((standing.partition, position.id))
            if first is None:
                continue
            reader.oldest = first if reader.oldest is None else min(reader.oldest, first)
            if position.ordinal == floor and _would_go(first, standing.now, retention):
                reader.holds_up += 1
                reader.held += standing.backlog(name)
    return list(found.values())


def _would_go(time: int, now: int, retention: Retention | None) -> bool:
    if retention is None or not retention.trims:
        return False
    return retention.age_ms is None or time < now - retention.age_ms


async def _firsts_after(log: Log, asked: Sequence[tuple[Partition, str]]) -> list[int | None]:
    """When the first entry after each position was appended (ms); None where there is none."""
    some = asyncio.Semaphore(AT_ONCE)

    async def one(partition: Partition, after: str) -> int | None:
        async with some:
            key = log.store(partition).keys.entries
            found = await log.redis.command("XRANGE", key, f"({after}", "+", "COUNT", 1)
        return moment(found[0][0].decode()) if found else None

    return await asyncio.gather(*(one(*question) for question in asked))


def moment(entry_id: str) -> int:
    """When an entry was appended, in milliseconds."""
    return int(entry_id.partition("-")[0])


def retention_text(retention: Retention | None) -> str:
    """What is kept, in few words."""
    if retention is None:
        return "not chosen"
    if retention.age_ms is not None:
        return f"{span(retention.age_ms)}"
    return f"archived by {retention.archive}" if retention.archive is not None else "all"


def events(count: int) -> str:
    """So many events."""
    return "1 event" if count == 1 else f"{count:,} events"


def partitions(count: int) -> str:
    """So many partitions."""
    return "1 partition" if count == 1 else f"{count:,} partitions"
