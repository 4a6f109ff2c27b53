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
from toril.lake.given import given, has_delta, submitted

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
    Connect; without one, ``TORIL_SPARK_MASTER``, else that of ``spark-submit`` or ``spark-defaults.conf``,
    else all cores of this machine. ``conf`` has the last word; what those two set comes before our choices.
    """
    where = master or os.environ.get("TORIL_SPARK_MASTER")
    if where and not MASTER.fullmatch(where):
        raise InvalidValue("master", where, "local[N], spark://…, yarn, k8s://… or sc://… (Spark Connect)")
    said = {key: str(value) for key, value in (conf or {}).items()}
    if where and where.startswith("sc://"):
        remote = SparkSession.builder.remote(where).appName(name)
        for key, value in said.items():
            remote = remote.config(key, value)
        made = remote.getOrCreate()
        source.register(made)
        return made
    if not submitted():
        java.require()
    known = {**given(), **said}
    where = where or known.get("spark.master") or "local[*]"
    os.environ.setdefault("PYSPARK_PYTHON", known.get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(where).appName(name)
    for key, value in {**said, **settings(where, known, delta=has_delta())}.items():
        builder = builder.config(key, value)
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


def settings(master: str, given: Mapping[str, str] | None = None, *, delta: bool = False) -> dict[str, str]:
    """What a session is started with besides what is ``given``, chosen from the cores that it will have.

    A cluster does not say how many that are before it is asked for them: where nothing that is given says it
    (``spark.cores.max``, or ``spark.executor.instances`` and ``.cores``), it is taken for one like this
    machine. ``delta``: Spark has the jars already.
    """
    known = given or {}
    cores = _cores(master, known)
    made = {
        **DELTA,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.databricks.delta.snapshotPartitions": str(min(cores, 16)),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",  # an event may be large, and ten thousand are
        "spark.sql.files.maxPartitionBytes": "32m",  # columns are compressed tenfold: what a task sorts fits
        "spark.sql.execution.useObjectHashAggregateExec": "false",  # sorting is quicker than maps of objects
        "spark.sql.codegen.hugeMethodLimit": "8000",  # what is longer than that, Java never compiles
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
    made = {key: value for key, value in made.items() if key not in known}
    # These two are lists, to which ours are added.
    extensions = known.get("spark.sql.extensions", "")
    if DELTA["spark.sql.extensions"] not in extensions:
        made["spark.sql.extensions"] = _joined(extensions, DELTA["spark.sql.extensions"])
    others = known.get("spark.jars", "")
    if not delta and "delta-spark" not in others + known.get("spark.jars.packages", ""):
        made["spark.jars"] = _joined(others, *map(str, jars.paths()))
    return made


def _joined(*parts: str) -> str:
    return ",".join(filter(None, parts))


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


def _cores(master: str, given: Mapping[str, str]) -> int:
    if not master.startswith("local"):
        each = _whole(given, "spark.executor.cores") or 1
        cores = _whole(given, "spark.cores.max") or _whole(given, "spark.executor.instances") * each
        return cores or os.cpu_count() or 2
    found = re.fullmatch(r"local\[(\d+).*\]", master)
    if found:
        return int(found[1])
    if master == "local":
        return 1
    return os.cpu_count() or 2


def _whole(given: Mapping[str, str], key: str) -> int:
    said = given.get(key, "0")
    if not said.isdecimal():
        raise InvalidValue(key, said, "a whole number")
    return int(said)
