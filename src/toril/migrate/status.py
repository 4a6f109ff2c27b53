"""Which migrations there are, and how far they are: what the destinations say themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

from toril.connection import Connection
from toril.keyspace import QueueKeys
from toril.migrate.destination import Destination
from toril.migrate.discovery import quoted
from toril.migrate.reading import QueueReader


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One migration."""

    source: str
    """The old queue, as ``prefix:name``."""
    destination: str
    phase: str
    """``copying``, ``rolling back`` or ``cleaned``."""
    began: int
    """Seconds since 1970."""
    tracked: int
    """Jobs of the old queue that the tracker knows."""
    old: int
    """Jobs that are in the old queue."""
    new: int
    """Jobs that are in the new queue."""
    paused: bool
    """Whether the old queue is paused."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


async def find_migrations(redis: Connection, prefix: str = "bull") -> AsyncIterator[QueueKeys]:
    """The queues that are filled from others."""
    pattern = QueueKeys("*", quoted(prefix)).migration
    end = len(QueueKeys("q", prefix).migration) - len(f"{prefix}:q")
    async for key in redis.scan(pattern):
        name = key[len(prefix) + 1 : -end].decode(errors="replace")
        if name and ":" not in name:
            yield QueueKeys(name, prefix)


async def known_names(redis: Connection, source_prefix: str, prefix: str) -> dict[str, str]:
    """New names by old ones, of migrations that were begun: jobs that come late go to the same place."""
    found = {}
    async for keys in find_migrations(redis, prefix):
        facts = await Destination(redis, keys, "").facts()
        source = facts.get("source", "")
        if source.startswith(f"{source_prefix}:"):
            found[source.removeprefix(f"{source_prefix}:")] = keys.name
    return found


async def status(source: Connection, destination: Connection, prefix: str = "bull") -> list[QueueStatus]:
    """All migrations to queues with a prefix."""
    found = []
    async for keys in find_migrations(destination, prefix):
        facts = await Destination(destination, keys, "").facts()
        own_prefix, _, name = facts.get("source", "").rpartition(":")
        if not name:
            continue
        old = QueueReader(source, QueueKeys(name, own_prefix))
        found.append(
            QueueStatus(
                facts["source"],
                keys.name,
                facts.get("phase", ""),
                int(facts.get("began", 0)),
                await destination.command("HLEN", keys.migrated),
                sum((await old.counts()).values()),
                sum((await QueueReader(destination, keys).counts()).values()),
                await old.is_paused(),
            )
        )
    return sorted(found, key=lambda each: each.source)
