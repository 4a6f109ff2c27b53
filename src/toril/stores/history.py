"""Events that outlive the log: what a history keeps, and one in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from toril.aggregate import Aggregate, check_tenant
from toril.log import History


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event of the log, as a history keeps it."""

    aggregate: Aggregate
    version: int
    recorded_at: int
    body: bytes
    event_id: str
    event_type: str


class WritableHistory(History, Protocol):
    """A :class:`~toril.log.History`, and the door through which events get there."""

    async def write(self, events: Sequence[Recorded]) -> None:
        """Keep these. One that is there already changes nothing."""
        ...

    async def count(self, tenant: str) -> int:
        """How many events there are of a tenant, each counted once."""
        ...

    async def erase(self, tenant: str) -> int:
        """Remove all of a tenant; says how many events."""
        ...


class MemoryHistory:
    """A history for tests and trials: gone with the process."""

    def __init__(self) -> None:
        self._kept: dict[Aggregate, dict[int, Recorded]] = {}

    async def write(self, events: Sequence[Recorded]) -> None:
        """As :meth:`WritableHistory.write`."""
        for event in events:
            self._kept.setdefault(event.aggregate, {}).setdefault(event.version, event)

    async def read(self, aggregate: Aggregate, first: int, last: int) -> list[tuple[int, int, bytes]]:
        """As :meth:`History.read`."""
        kept = self._kept.get(aggregate, {})
        return [
            (version, kept[version].recorded_at, kept[version].body)
            for version in sorted(kept)
            if first <= version <= last
        ]

    async def count(self, tenant: str) -> int:
        """As :meth:`WritableHistory.count`."""
        check_tenant(tenant)
        return sum(len(kept) for aggregate, kept in self._kept.items() if aggregate.tenant == tenant)

    async def erase(self, tenant: str) -> int:
        """As :meth:`WritableHistory.erase`."""
        gone = await self.count(tenant)
        self._kept = {of: kept for of, kept in self._kept.items() if of.tenant != tenant}
        return gone
