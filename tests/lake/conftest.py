"""One Spark session for the tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from toril.lake.lake import Lake
from toril.lake.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session("local[2]", name="toril-tests", conf={"spark.ui.enabled": "false"})
    yield made
    made.stop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "lake")
