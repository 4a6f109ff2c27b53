"""One Spark session for the tests of a process; and a lake, and a disk that is small."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests import java
from toril.lake.lake import Lake
from toril.lake.sessions import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_SUBMIT_OPTS", java.LONG)
        conf = {"spark.ui.enabled": "false", "spark.driver.memory": "3g"}
        # Two cores, though one would do for the rows: some tests hold a task, and go on beside it.
        made = session("local[2]", name="toril-tests", conf=conf)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def forgotten(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delta remembers every table for an hour, with its plans: those of all tests would fill Java."""
    yield
    if "spark" in request.fixturenames:
        virtual: Any = request.getfixturevalue("spark")._jvm
        virtual.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "lake")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that is soon full."""
    place = tmp_path / "small"
    place.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=2000", "tmpfs", str(place)],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk can be had by root alone")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
