"""Where aggregates are that have been quiet for long: the cold store, and the event history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from toril.aggregate import Aggregate


@dataclass(frozen=True, slots=True)
class Frozen:
    """All that Redis held of one aggregate."""

    aggregate: Aggregate
    epoch: int
    """The epoch of the log that it was in."""
    changes: int
    """How often it was changed, ever: of two snapshots, the one with more changes is the later one."""
    fields: bytes
    """Opaque to the store."""

    @classmethod
    def of(cls, key: str, epoch: int, fields: Sequence[bytes]) -> Frozen:
        """From the fields and values of its hash, in turn."""
        flat = dict(zip(fields[::2], fields[1::2], strict=True))
        changes = int(flat.get(b"c", b"0"))
        return cls(Aggregate.parse(key), epoch, changes, msgspec.msgpack.encode(list(fields)))

    def flat(self) -> list[bytes]:
        """The fields and values of its hash, in turn."""
        return msgspec.msgpack.decode(self.fields, type=list[bytes])


class ColdStore(Protocol):
    """Keeps quiet aggregates. What :meth:`put` has returned from must be there after any crash."""

    async def put(self, batch: Sequence[Frozen]) -> None:
        """Keep these. A snapshot with fewer changes than the one that is there is ignored."""
        ...

    async def get(self, aggregate: Aggregate) -> Frozen | None:
        """The last one that was put; None where there is none."""
        ...

    async def get_many(self, aggregates: Sequence[Aggregate]) -> list[Frozen | None]:
        """The same of many at once, in their order."""
        ...

    async def erase(self, tenant: str) -> int:
        """Remove all of a tenant; says how many."""
        ...

    def aggregates(self) -> AsyncIterator[Aggregate]:
        """All that are kept. Asked for when the number of partitions changes."""
        ...


class History(Protocol):
    """Has the events that were trimmed from the log: an archive."""

    async def read(self, aggregate: Aggregate, first: int, last: int) -> Sequence[tuple[int, int, bytes]]:
        """Versions ``first`` to ``last`` in order: version, when it was recorded (ns), body."""
        ...


class MemoryColdStore:
    """A cold store for tests and trials: gone with the process."""

    def __init__(self) -> None:
        self._kept: dict[str, Frozen] = {}

    async def put(self, batch: Sequence[Frozen]) -> None:
        for frozen in batch:
            there = self._kept.get(frozen.aggregate.key)
            if there is None or there.changes < frozen.changes:
                self._kept[frozen.aggregate.key] = frozen

    async def get(self, aggregate: Aggregate) -> Frozen | None:
        return self._kept.get(aggregate.key)

    async def get_many(self, aggregates: Sequence[Aggregate]) -> list[Frozen | None]:
        return [self._kept.get(one.key) for one in aggregates]

    async def erase(self, tenant: str) -> int:
        gone = [key for key, frozen in self._kept.items() if frozen.aggregate.tenant == tenant]
        for key in gone:
            del self._kept[key]
        return len(gone)

    async def aggregates(self) -> AsyncIterator[Aggregate]:
        for frozen in list(self._kept.values()):
            yield frozen.aggregate
