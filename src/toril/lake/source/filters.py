"""What of a batch is wanted, as Spark pushes it down: what is not read, and what is not kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.lake.source.reading import Stretch
from toril.lake.source.rows import Raw
from toril.lake.tables import LOG_COLUMNS
from toril.log import Log, Partition, Position
from toril.log.entry import ordinal_of
from toril.log.layout import Layout

ALWAYS_THERE = {column.name for column in LOG_COLUMNS if column.required}
NAMES = ("tenant", "aggregate_type", "aggregate_id")
MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What rows must be like. What is None, or not there, does not matter."""

    among: tuple[tuple[str, frozenset[object]], ...] = ()
    """Columns, and what they may be."""
    since: int | None = None
    """Recorded at this time or later, at the latest: nanoseconds."""
    until: int | None = None
    """Recorded at this time or before."""

    def take(self, filters: Iterable[Filter]) -> tuple[Wanted, list[Filter]]:
        """With these filters too; and those among them that Spark has to look at itself."""
        wanted = self
        left: list[Filter] = []
        for one in filters:
            column = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else ""  # type: ignore[attr-defined]
            if isinstance(one, EqualTo | In) and column in (*NAMES, "log_epoch", "log_partition"):
                values = frozenset(one.value if isinstance(one, In) else [one.value])
                wanted = replace(wanted, among=(*wanted.among, (column, values)))
            elif isinstance(one, IsNotNull) and column in ALWAYS_THERE:
                continue
            elif column == "recorded_at" and isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo):
                # All entries of a millisecond are read, and Spark takes those that are meant.
                wanted = replace(wanted, since=max(one.value, wanted.since or 0))
                left.append(one)
                if isinstance(one, EqualTo):
                    wanted = replace(wanted, until=_least(one.value, wanted.until))
            elif column == "recorded_at" and isinstance(one, LessThan | LessThanOrEqual):
                wanted = replace(wanted, until=_least(one.value, wanted.until))
                left.append(one)
            else:
                left.append(one)
        return wanted, left

    def _may_be(self, column: str) -> set[object] | None:
        found = [values for name, values in self.among if name == column]
        return set(frozenset.intersection(*found)) if found else None

    def partitions(self, layout: Layout) -> set[Partition]:
        """Those that can have it: an aggregate is in one partition of each epoch."""
        epochs, numbers = self._may_be("log_epoch"), self._may_be("log_partition")
        tenants, ids = self._may_be("tenant"), self._may_be("aggregate_id")
        found: set[Partition] = set()
        for epoch in layout.epochs:
            here: Iterable[Partition] = epoch.all()
            if tenants is not None and ids is not None:
                here = [epoch.of(one) for one in _aggregates(tenants, ids)]
            found |= {
                one
                for one in here
                if (epochs is None or one.epoch in epochs) and (numbers is None or one.number in numbers)
            }
        return found

    async def narrow(self, log: Log, stretch: Stretch) -> Stretch:
        """The part of a stretch that was recorded in the time that is wanted."""
        key = log.store(stretch.partition).keys.entries
        after, upto = stretch.after, stretch.upto

        async def last_before(ms: int) -> Position | None:
            found = await log.redis.command("XREVRANGE", key, f"({max(ms, 1)}-0", "-", "COUNT", 1)
            return Position(ordinal_of(found[0]), found[0][0].decode()) if found else None

        if self.since is not None and (place := await last_before(self.since // MS)) is not None:
            after = max(after, place)
        if self.until is not None:
            place = await last_before(self.until // MS + 1)
            upto = after if place is None else min(upto, place)
        return Stretch(stretch.partition, after, upto)

    def rows(self, entries: Sequence[Raw]) -> Sequence[Raw]:
        """The entries whose aggregate is wanted."""
        names = [self._may_be(name) for name in NAMES]
        if names == [None, None, None]:
            return entries
        return [raw for raw in entries if _fits(raw[1][5].decode(), names)]


def _fits(key: str, names: Sequence[set[object] | None]) -> bool:
    parts = key.split(":", 2)
    return len(parts) == 3 and all(
        some is None or part in some for part, some in zip(parts, names, strict=True)
    )


def _aggregates(tenants: Iterable[object], ids: Iterable[object]) -> Iterator[Aggregate]:
    for tenant in tenants:
        for ident in ids:
            try:
                yield Aggregate(str(tenant), "any", str(ident))
            except InvalidValue:  # so there is none
                continue


def _least(value: int, other: int | None) -> int:
    return value if other is None else min(value, other)
