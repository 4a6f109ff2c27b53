"""Places of the log whose events were erased with their tenants: noted, so that none is taken for a loss.

The table says which places these are, and not of whom. What is erased from the lake is noted before it is
deleted. What was erased from the log before it could be archived is noted before the log may let go of it: as
long as it has not, the log itself says so.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from toril.lake.errors import OtherWriter
from toril.lake.lake import Lake, Record
from toril.lake.problems import SPARKS, explained, passing
from toril.lake.tables import BATCH, WHERE_IN_THE_LOG, Column, Table
from toril.log import Log, Partition

ERASURES = Table(
    name="erasures",
    comment="Which places in the log had events of tenants that were erased. It does not say of whom.",
    columns=(
        *WHERE_IN_THE_LOG[:2],
        Column("first", "bigint", "The first ordinal of some in a row.", True),
        Column("last", "bigint", "The last of them.", True),
        Column("erased_at", "bigint", "When that was noted: nanoseconds since 1970.", True),
        BATCH,
    ),
)
"""Holes that must be: the audit does not take them for lost events."""

ATTEMPTS = 10
PAGE = 200


class Stretch(NamedTuple):
    """Places in a row."""

    log_epoch: int
    log_partition: int
    first: int
    last: int


def note(lake: Lake, places: DataFrame) -> None:
    """Write down rows of a :class:`Stretch` each; noted twice is as good as once."""
    lake.ensure(ERASURES)
    rows = places.withColumn("erased_at", lit(time.time_ns()))
    for left in reversed(range(ATTEMPTS)):
        run = secrets.token_urlsafe(9)
        try:
            with explained(lake.place(ERASURES)):
                lake.append(rows, ERASURES, Record(batch=lake.last(ERASURES).batch + 1, run=run))
            if lake.last(ERASURES).run == run:
                return
        except (*SPARKS, OtherWriter) as problem:
            if not left or not passing(problem):
                raise
    raise OtherWriter(f"others have written each of {ATTEMPTS} batches of {ERASURES.name}")


def note_stretches(lake: Lake, stretches: list[Stretch]) -> None:
    """The same of a list."""
    if stretches:
        schema = "log_epoch int, log_partition int, first bigint, last bigint"
        note(lake, lake.spark.createDataFrame(stretches, schema))


async def erased_in(
    log: Log, after: Mapping[str, tuple[int, str]], upto: Mapping[str, tuple[int, str]]
) -> list[Stretch]:
    """The places between these positions whose events the log has erased, and still has the places of."""
    found: list[Stretch] = []
    for name, (last, _) in upto.items():
        first, at = after.get(name, (0, "0-0"))
        partition = Partition.parse(name)
        store = log.store(partition)
        while first < last and (page := await store.places(at, PAGE)):
            for entry in page:
                if entry.erased and entry.ordinal <= last:
                    _add(found, partition, entry.ordinal)
            first, at = page[-1].ordinal, page[-1].id
    return found


def _add(found: list[Stretch], partition: Partition, ordinal: int) -> None:
    epoch, number = partition
    before = found[-1] if found else None
    if before is not None and before[:2] == (epoch, number) and before.last == ordinal - 1:
        found[-1] = before._replace(last=ordinal)
    else:
        found.append(Stretch(epoch, number, ordinal, ordinal))
