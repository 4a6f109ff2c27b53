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
    def writes(self) -> tuple[Table, ...]:
        """The tables that it writes."""
        return (self.table,)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables that it reads or writes."""
        return (self.source, *self.writes)

    @property
    def missing(self) -> int:
        """Events that had left the source before it was first read: the table will never have them."""
        return 0

    @cached_property
    def stopped(self) -> dict[str, LakeError]:
        """Parts of the source that it has left alone, and why; it goes on with the others."""
        return {}

    def prepare(self, lake: Lake) -> None:
        """Make what it writes, where it is not there; nothing, where one of its tables is another's."""
        lake.check_all(self.tables)
        for table in self.writes:
            lake.ensure(table)

    def close(self, lake: Lake) -> None:  # noqa: B027 - most hold nothing
        """Give back what it holds."""

    def once(self, lake: Lake, run: str = "") -> Record | None:
        """One batch; None where the table has all that its source has."""
        have = lake.last(self.table)
        record = self.following(lake, have, run)
        if record is not None:
            self.write(lake, lake.batches(self.source, have.source, record.source), record)
        return record

    def following(self, lake: Lake, have: Record, run: str, upto: int = 0) -> Record | None:
        """The record of the batch after one; None where that one has all that its source has.

        ``upto``: another table that is written with this one has read so far, and this one goes no further.
        """
        there = lake.last(self.source)
        if there.batch < max(have.source, upto):
            raise LakeError(
                f"{self.table.name} has read {self.source.name} up to batch {max(have.source, upto)}, and "
                f"that has batches up to {there.batch}: it was made anew meanwhile. {self._remove(lake)}"
            )
        source = min(upto or there.batch, have.source + BATCHES_AT_ONCE)
        if source <= have.source:
            return None
        if source < there.batch:
            there = lake.last(self.source, source)
        # Where the commit of that batch is forgotten, the next batch says how far into the log it is.
        positions = there.positions if there.batch == source else have.positions
        return Record(batch=have.batch + 1, source=source, positions=positions, run=run)

    def _remove(self, lake: Lake) -> str:
        """What to do about a table that was made anew, with another one that knows of what was before."""
        places = " and ".join(lake.place(table) for table in self.writes)
        return f"Remove {places} as well, and the next run makes anew what is missing"

    @abstractmethod
    def write(self, lake: Lake, rows: DataFrame, record: Record) -> None:
        """Write these rows of the source as one batch: with :meth:`Lake.append` or :meth:`Lake.recording`."""
