"""The event log as a source of Spark: ``toril_log``, for batches and for streams.

A read goes from positions to positions, so it can be repeated; each entry is checked to follow the one before
it, so nothing is skipped in silence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from toril.lake.source.datasource import SCHEMA, TorilLog, register
from toril.lake.source.door import Door
from toril.lake.source.floors import new_name
from toril.lake.source.options import Options, as_json
from toril.lake.source.plan import Task, plan_batch
from toril.lake.source.positions import Marks, between, bounded
from toril.lake.source.stream import behind
from toril.lake.source.tasks import read_task
from toril.lake.source.told import told

__all__ = [
    "Door",
    "Marks",
    "TorilLog",
    "behind",
    "between",
    "bounded",
    "next_batch",
    "read_log",
    "register",
    "tails",
    "told",
]


def tails(url: str | None, log_name: str) -> Marks:
    """The last ordinal and id of each partition, the oldest epoch first."""
    with Door(url, log_name) as log:
        return log.tails()


def next_batch(url: str | None, log_name: str, after: Mapping[str, tuple[int, str]], most: int) -> Marks:
    """How far a batch of at most ``most`` entries goes from here, to the exact entry in each partition.

    It is found without reading the batch. Where there is nothing more, it is ``after``.
    """
    with Door(url, log_name) as log:
        return log.next_batch(after, most)


def read_log(
    spark: SparkSession,
    url: str | None,
    log_name: str,
    after: Mapping[str, tuple[int, str]],
    upto: Mapping[str, tuple[int, str]],
) -> DataFrame:
    """Each entry after these positions and up to those; entries of erased tenants are left out.

    It is planned here, so what is wrong with the positions is raised here: :class:`GapFound` where entries
    were trimmed, :class:`SourceDiverged` where the log has lost what was read from it. What is found out
    while it is read comes as an error of Spark's; :func:`told` finds ours in it.
    """
    given = {"log": log_name, "after": as_json(after), "upto": as_json(upto), "tasks": str(_cores(spark))}
    options = Options.read({**given, "url": url} if url else given)
    name = new_name()
    with Door(options.where(), log_name) as door:
        tasks = [Task(tuple(some), name) for some in door.do(plan_batch(door.log, options, name))]

    def toril_log(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_task(options, tasks[number])

    # As a data source of its own it would start two more Python processes for each plan.
    return spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(toril_log, SCHEMA)


def _cores(spark: SparkSession) -> int:
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:  # Spark Connect, which does not say
        return os.cpu_count() or 2
