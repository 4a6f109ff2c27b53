"""The jars that Spark needs for Delta tables: fetched once, checked, and started with from then on."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from toril.connection.embedded import default_home
from toril.lake.errors import SparkMissing

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""What Spark's resolver is asked for. Of what that brings, Spark has most already."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One file, and what must be in it."""

    name: str
    sha256: str


@cache
def pinned() -> tuple[Jar, ...]:
    """The jars that are needed, exactly these."""
    lines = files("toril.lake").joinpath("jars.txt").read_text().splitlines()
    return tuple(Jar(*line.split()) for line in lines if line and not line.startswith("#"))


def folder() -> Path:
    """Where they are kept: ``TORIL_JARS``, or ``jars`` in the data directory."""
    return Path(os.environ.get("TORIL_JARS") or default_home() / "jars").expanduser()


def missing(where: Path | None = None) -> list[Jar]:
    """Those that are not there, or are not what they must be."""
    place = where or folder()
    return [jar for jar in pinned() if _sha256(place / jar.name) != jar.sha256]


def paths(where: Path | None = None) -> list[Path]:
    """All of them; :class:`SparkMissing` where one is not there."""
    place = where or folder()
    if absent := [jar.name for jar in pinned() if not (place / jar.name).is_file()]:
        raise SparkMissing(
            f"{len(absent)} of {len(pinned())} jars are not in {place} ({absent[0]} …): "
            "`toril lake setup` fetches them"
        )
    return [place / jar.name for jar in pinned()]


def fetch(where: Path | None = None) -> list[Path]:
    """Fetch what is missing, with Spark's own resolver and its settings; says what was fetched."""
    place = where or folder()
    wanted = missing(place)
    if not wanted:
        return []
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="toril-jars-") as scratch:
        said = _resolve(Path(scratch))
        made = []
        for jar in wanted:
            found = Path(scratch) / "jars" / jar.name
            if not found.is_file():
                raise SparkMissing(f"{jar.name} could not be fetched: {said}")
            if _sha256(found) != jar.sha256:
                raise SparkMissing(f"{jar.name} was fetched, and is not the file that Toril was tested with")
            shutil.copyfile(found, part := place / f"{jar.name}.part-{os.getpid()}")
            made.append(part.replace(place / jar.name))
    return made


def _resolve(scratch: Path) -> str:
    """Have the package and all it brings put into ``jars``; what was said last."""
    # Spark resolves packages before it runs a program, so the program has nothing to do.
    from pyspark.find_spark_home import _find_spark_home

    command = [
        str(Path(_find_spark_home()) / "bin" / "spark-submit"),
        "--master",
        "local[1]",
        "--conf",
        f"spark.jars.ivy={scratch}",
        "--conf",
        "spark.ui.enabled=false",
        "--packages",
        PACKAGE,
        str(Path(__file__).with_name("nothing.py")),
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise SparkMissing(f"the jars could not be fetched: {problem}") from None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit code {done.returncode}"


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
