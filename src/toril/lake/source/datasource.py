"""``toril_log``: the data source that Spark knows by that name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from toril.errors import InvalidValue
from toril.lake.source.door import Door
from toril.lake.source.floors import new_name
from toril.lake.source.options import Options
from toril.lake.source.plan import EVERYTHING, Task, plan_batch
from toril.lake.source.stream import StreamReader
from toril.lake.source.tasks import read_task
from toril.lake.tables import LOG_COLUMNS

SCHEMA = ", ".join(f"`{column.name}` {column.type}" for column in LOG_COLUMNS)
"""Its columns, as Spark reads a schema."""


class TorilLog(DataSource):
    """The event log as a table. See the guide for its options."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` calls it."""
        return "toril_log"

    def schema(self) -> str:
        """Its columns: :data:`toril.lake.tables.LOG_COLUMNS`."""
        Options.read(self.options)  # what is wrong with them is said when they are given
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        """For ``spark.read``."""
        _check(schema)
        return BatchReader(Options.read(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's
        """For ``spark.readStream``."""
        _check(schema)
        return StreamReader(Options.read(self.options))


def _check(schema: StructType) -> None:
    names = [column.name for column in LOG_COLUMNS]
    if schema.names != names:
        raise InvalidValue("schema", ", ".join(schema.names), f"toril_log has its own: {', '.join(names)}")


def register(spark: SparkSession) -> None:
    """Let a session know ``toril_log``, and what it can leave out. A second time it changes nothing."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(TorilLog)


class BatchReader(DataSourceReader):
    """Reads the log as it is now, or from positions to positions."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._wanted = EVERYTHING

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        """What is not wanted is not read, or not kept; says what Spark has to look at itself."""
        self._wanted, left = self._wanted.take(filters)
        return left

    def partitions(self) -> list[InputPartition]:
        """The tasks, with floors where they begin."""
        options = self._options
        name = new_name()
        with Door(options.where(), options.log) as door:
            groups = door.do(plan_batch(door.log, options, name, self._wanted))
        return [Task(tuple(some), name, self._wanted) for some in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What one task reads."""
        if not isinstance(partition, Task):  # Spark makes up one where there is nothing to read
            return iter(())
        return read_task(self._options, partition)
