"""What the checks of an audit share: the lake and the log that are looked at, and which aggregates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from toril.lake.lake import Lake, Record
from toril.lake.source import Marks
from toril.lake.tables import EVENTS
from toril.pipelines.spans.summary import SPAN_AGGREGATE

PLACE = ("log_epoch", "log_partition", "ordinal")
AGGREGATE = ("tenant", "aggregate_type", "aggregate_id")

PARTS = 10_000
"""Into how many parts a hash divides aggregates."""

LiveStates = Callable[[Sequence[Mapping[str, Any]]], list[tuple[int, dict[str, Any]] | None]]
"""The live summaries of some traces (``tenant``, ``trace_id``): each with its version, or None."""


class Skip(Exception):
    """A check cannot be done, for this reason."""


class Looking:
    """See the module's text."""

    def __init__(
        self, lake: Lake, url: str | None, log: str | None, fraction: float, live: LiveStates | None
    ) -> None:
        self.lake = lake
        self.url = url
        self.log = log
        self.fraction = fraction
        self.live = live
        self.record = lake.last(EVENTS)
        """How far the archive is."""
        self.tails: Marks = {}
        """The ends of the log, where it was asked."""

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
        return self.lake.last(name)
