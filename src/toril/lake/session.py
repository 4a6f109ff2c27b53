"""A Spark session with Delta tables: local by default, on a cluster by URL."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from toril.errors import InvalidValue
from toril.lake import jars, java, source

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

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


def another(spark: SparkSession) -> SparkSession:
    """One more session of the same Spark, whose settings are its own."""
    if hasattr(spark, "cloneSession"):  # Spark Connect has this one instead
        made: SparkSession = spark.cloneSession()
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
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "65536",
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


def _cores(master: str) -> int:
    found = re.fullmatch(r"local\[(\d+).*\]", master)
    if found:
        return int(found[1])
    if master == "local":
        return 1
    return os.cpu_count() or 2
