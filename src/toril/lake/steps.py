"""Steps: each feeds one table from the one before it, a batch at a time, each batch once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar

from pyspark.sql import DataFrame

from toril.lake.errors import LakeError
from toril.lake.lake import Lake, Record
from toril.lake.tables import Table

BATCHES_AT_ONCE = 20
"""Batches of the table before that one batch takes at most: a step that is behind catches up in parts."""


class Step(ABC):
    """Feeds a table from another one. What was written is what :meth:`Lake.last` of the table says."""

    table: ClassVar[Table]
    source: ClassVar[Table]
    most: int | None = None
    """Events of the log that one batch has at most, where it is so bounded."""

    @property
    def reads(self) -> Table | None:
        """The table that it reads; None for the log."""
        return self.source

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables that it reads or writes."""
        return (self.source, self.table)

    @cached_property
    def stopped(self) -> dict[str, LakeError]:
        """Parts of the source that it has left alone, and why; it goes on with the others."""
        return {}

    def prepare(self, lake: Lake) -> None:
        """Make what it writes, where it is not there; nothing, where one of its tables is another's."""
        lake.check_all(self.tables)
        lake.ensure(self.table)

    def close(self, lake: Lake) -> None:  # noqa: B027 - most hold nothing
        """Give back what it holds."""

    def once(self, lake: Lake, run: str = "") -> Record | None:
        """One batch; None where the table has all that its source has."""
        have, there = lake.last(self.table), lake.last(self.source)
        if there.batch < have.source:
            raise LakeError(
                f"{self.table.name} has read {self.source.name} up to batch {have.source}, and that has "
                f"batches up to {there.batch}: it was made anew meanwhile. Remove {lake.place(self.table)} "
                "as well, and the next run makes it anew"
            )
        upto = min(there.batch, have.source + BATCHES_AT_ONCE)
        if upto <= have.source:
            return None
        if upto < there.batch:
            there = lake.last(self.source, upto)
        # Where the commit of that batch is forgotten, the next batch says how far into the log it is.
        positions = there.positions if there.batch == upto else have.positions
        record = Record(batch=have.batch + 1, source=upto, positions=positions, run=run)
        self.write(lake, lake.batches(self.source, have.source, upto), record)
        return record

    @abstractmethod
    def write(self, lake: Lake, rows: DataFrame, record: Record) -> None:
        """Write these rows of the source as one batch: with :meth:`Lake.append` or :meth:`Lake.recording`."""
