"""A Spark session with Delta tables: local by default, on a cluster by URL."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from toril.errors import InvalidValue
from toril.lake import jars, java, source

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

EVENTS_IN_PART = 100_000
"""Events in one part of a large shuffle."""

MASTER = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|spark://.+|yarn|k8s://.+|sc://.+")


def session(
    master: str | None = None, *, name: str = "toril", conf: Mapping[str, Any] | None = None
) -> SparkSession:
    """A session, or the one that there is.

    ``master``: ``local[2]``, ``spark://host:7077``, ``yarn``, ``k8s://…``, or ``sc://host:15002`` for Spark
    Connect; without one, ``TORIL_SPARK_MASTER``, else all cores of this machine. ``conf`` has the last word.
    """
    where = master or os.environ.get("TORIL_SPARK_MASTER") or "local[*]"
    if not MASTER.fullmatch(where):
        raise InvalidValue("master", where, "local[N], spark://…, yarn, k8s://… or sc://… (Spark Connect)")
    if where.startswith("sc://"):
        remote = SparkSession.builder.remote(where).appName(name)
        for key, value in (conf or {}).items():
            remote = remote.config(key, str(value))
        made = remote.getOrCreate()
        source.register(made)
        return made
    java.require()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(where).appName(name)
    cores = int((conf or {}).get("spark.cores.max", 0))
    for key, value in {**settings(where, cores), **(conf or {})}.items():
        builder = builder.config(key, str(value))
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    source.register(made)
    return made


def is_remote(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect: its Java, and its paths, are those of a server."""
    return hasattr(spark, "cloneSession")


def another(spark: SparkSession) -> SparkSession:
    """One more session of the same Spark, whose settings are its own."""
    if is_remote(spark):
        made: SparkSession = spark.cloneSession()  # type: ignore[attr-defined]
        # While the interpreter ends it would wait for threads that are no more.
        weakref.finalize(made, made.client.close)
        return made
    return spark.newSession()


def settings(master: str, cores: int = 0) -> dict[str, str]:
    """What a session is started with, chosen from the cores that it will have.

    A cluster does not say how many that are before it is asked for them: without ``spark.cores.max`` it is
    taken for one like this machine.
    """
    cores = cores or _cores(master)
    made = {
        **DELTA,
        "spark.jars": ",".join(map(str, jars.paths())),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.databricks.delta.snapshotPartitions": str(min(cores, 16)),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",  # an event may be large, and ten thousand are
        "spark.sql.files.maxPartitionBytes": "32m",  # columns are compressed tenfold: what a task sorts fits
        "spark.sql.codegen.cache.maxEntries": "2000",  # a batch needs 270 classes; of 100 none is there again
        "spark.databricks.delta.properties.defaults.minReaderVersion": "1",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.driver.extraJavaOptions": "-Dlog4j2.level=ERROR",
    }
    if master.startswith("local"):
        made |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": os.environ.get("TORIL_SPARK_MEMORY", "2g"),
            "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "toril-warehouse"),
        }
    return made


@contextmanager
def spread(spark: SparkSession, events: int) -> Iterator[None]:
    """What is shuffled in it, of so many events, comes in parts that a task can sort in memory.

    Many parts are slow where there is little to do, so a session has few of them.
    """
    key = "spark.sql.shuffle.partitions"
    before = str(spark.conf.get(key))
    spark.conf.set(key, str(max(int(before), -(-events // EVENTS_IN_PART))))
    try:
        yield
    finally:
        spark.conf.set(key, before)


def _cores(master: str) -> int:
    found = re.fullmatch(r"local\[(\d+).*\]", master)
    if found:
        return int(found[1])
    if master == "local":
        return 1
    return os.cpu_count() or 2
