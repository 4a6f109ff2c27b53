"""One Spark session for the tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from toril.lake.lake import Lake
from toril.lake.session import session

BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for a minute: it starts with half the work, and is never as fast as it could be."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": BRIEF}
    made = session("local[2]", name="toril-tests", conf=conf)
    yield made
    made.stop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "lake")
