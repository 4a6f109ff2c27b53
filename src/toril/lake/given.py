"""What a user has set for Spark by other ways than ours: it has the word before Toril's own choices."""

from __future__ import annotations

import os
import re
import shlex
from itertools import pairwise
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home

_PROPERTY = re.compile(r"\s*([^\s=:#!][^\s=:]*)(?:\s*[=:]\s*|\s+|$)(.*)")


def submitted() -> bool:
    """Whether this program was started by ``spark-submit``: then there is a Java, with its jars, already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def given() -> dict[str, str]:
    """All that is set before a session is asked for.

    Of the Spark that there is in this process; else of ``spark-submit``, which has read its options and
    ``spark-defaults.conf``; else what it will read when it is started.
    """
    there = SparkContext._active_spark_context  # noqa: SLF001 - getOrCreate would make one
    if there is not None:
        return dict(there.getConf().getAll())
    if submitted():
        SparkContext._ensure_initialized()  # noqa: SLF001 - else a SparkConf knows nothing of Java's
        return dict(SparkConf().getAll())
    return at_start()


def at_start() -> dict[str, str]:
    """What Spark will be started with: ``spark-defaults.conf``, and settings in ``PYSPARK_SUBMIT_ARGS``."""
    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    file = Path(folder) / "spark-defaults.conf"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    found = {one[1]: one[2].strip() for line in lines if (one := _PROPERTY.fullmatch(line))}
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for option, value in pairwise(words):
        key, equals, said = value.partition("=")
        if option in ("--conf", "-c") and equals:
            found[key] = said
    return found


def has_delta() -> bool:
    """Whether the Spark of this process has the classes of Delta."""
    jvm = SparkContext._jvm  # noqa: SLF001
    return jvm is not None and bool(
        jvm.org.apache.spark.util.Utils.classIsLoadable("io.delta.sql.DeltaSparkSessionExtension")
    )
