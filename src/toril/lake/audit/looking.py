"""What the checks of an audit share: the lake and the log that are looked at, and which aggregates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pyspark.sql import DataFrame

from toril.errors import TorilError
from toril.events import Upcasters
from toril.lake.lake import Lake, Record
from toril.lake.source import Marks
from toril.lake.tables import EVENTS, Table
from toril.log import Partition
from toril.pipelines.spans.summary import SPAN_AGGREGATE

PLACE = ("log_epoch", "log_partition", "ordinal")
AGGREGATE = ("tenant", "aggregate_type", "aggregate_id")

PARTS = 10_000
"""Into how many parts a hash divides aggregates."""

Trace = Mapping[str, Any]
"""Which one is meant: ``tenant`` and ``trace_id``."""


class LiveStore(Protocol):
    """The live summaries, as an audit asks for them."""

    def positions(self) -> Marks:
        """Up to where in the log their processor is."""
        ...

    def states(self, traces: Sequence[Trace]) -> list[tuple[int, dict[str, Any]] | None]:
        """The summary of each with its version; None where there is none."""
        ...

    def waiting(self, traces: Sequence[Trace]) -> list[bool]:
        """Of each, whether an event of it is tried again, or waits for a person."""
        ...

    def traces(self) -> Iterator[Sequence[Trace]]:
        """All there are, some at a time; one may come twice."""
        ...

    def firsts(self, traces: Sequence[Trace]) -> list[tuple[str, int] | None]:
        """Where in the log the first event of each is, partition and ordinal; None where it was trimmed."""
        ...


class Skip(Exception):
    """A check cannot be done, for this reason."""


class Pinned(NamedTuple):
    """A table as it was when a check first looked at it."""

    version: int
    record: Record


class Looking:
    """See the module's text.

    A job may write while a check looks. So a check sees each table at one version, which is the last one when
    it first asks for the table, with what the record of that very version says. It asks for a table before it
    asks for the one that this is made of: which is then at least as far. The next check looks anew, as an
    erasure leaves no former versions.
    """

    def __init__(
        self,
        lake: Lake,
        url: str | None,
        log: str | None,
        fraction: float,
        live: LiveStore | TorilError | None,
        upcasters: Upcasters | None = None,
    ) -> None:
        self.lake = lake
        self.url = url
        self.log = log
        self.fraction = fraction
        self.live = live
        self.upcasters = upcasters
        self.tails: Marks = {}
        """The ends of the log, where it was asked."""
        self._seen: dict[str, Pinned] = {}

    def anew(self) -> None:
        """From now on see tables as they are now."""
        self._seen.clear()

    @property
    def record(self) -> Record:
        """How far the archive is."""
        return self._at(EVENTS.name).record

    @property
    def began(self) -> dict[Partition, int]:
        """By partition, the entries that were trimmed when the archive began: they were never in the lake."""
        return {Partition.parse(name): count for name, count in self.record.began.items() if count}

    def chosen(self, rows: DataFrame, *keys: str) -> DataFrame:
        """Those whose aggregate is in the sample."""
        if self.fraction == 1:
            return rows
        part = max(1, round(self.fraction * PARTS))
        return rows.where(f"pmod(xxhash64({', '.join(keys or AGGREGATE)}), {PARTS}) < {part}")

    def of_traces(self, rows: DataFrame) -> DataFrame:
        """The same of rows of traces."""
        return self.chosen(rows, "tenant", f"'{SPAN_AGGREGATE}'", "trace_id")

    def table(self, name: str) -> Record:
        """How far a table is; the check is skipped where there is none."""
        if not self.lake.exists(name):
            raise Skip(f"there is no table {name} yet")
        return self._at(name).record

    def read(self, table: Table | str) -> DataFrame:
        """All rows of a table."""
        name = table if isinstance(table, str) else table.name
        return self.lake.read(name, self._at(name).version)

    def batches(self, table: Table | str, upto: int) -> DataFrame:
        """The rows of its batches up to one."""
        return self.read(table).where(f"batch <= {upto}")

    def moved(self, name: str) -> bool:
        """Whether a table was written to since it was first looked at."""
        return self.lake.version(name) != self._at(name).version

    def _at(self, name: str) -> Pinned:
        if name not in self._seen:
            version = self.lake.version(name)
            self._seen[name] = Pinned(version, self.lake.last(name, version=version))
        return self._seen[name]
