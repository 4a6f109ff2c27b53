"""``python -m benchmarks.lake``: measure, print, and write ``benchmarks/results/lake.json``."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession
from rich.console import Console

from toril.lake.sessions import session
from toril.testing import standalone

from . import archive, made, report
from .history import BATCH, History, begin_log

console = Console(width=None if sys.stdout.isatty() else 180)
PARTS = ("archive", "history")
MILLION = 1_000_000
LENGTHS = (0.1, 0.3, 1.0)
"""Of history, where it is measured."""
REPLAYS = 2
"""Rounds of whole replays, at the most: they take minutes each."""


@click.command()
@click.option("--events", default=10 * MILLION, show_default=True, help="Events of the longest history.")
@click.option("--rounds", default=5, show_default=True, help="Rounds; each side is measured once in each.")
@click.option("--memory", default="4g", show_default=True, help="Of Spark's Java.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="For the tables; else in /tmp."
)
@click.option("--only", type=click.Choice(PARTS), help="Measure this, and write no file.")
def main(events: int, rounds: int, memory: str, folder: Path | None, only: str | None) -> None:
    """Compare the lake with bare readers and PySpark by hand, and with itself as history grows."""
    started = time.monotonic()
    lengths = [max(made.UNIT, _whole(int(events * part))) for part in LENGTHS]
    console.print(
        f"Spark {version('pyspark')}, Delta {version('delta-spark')}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, Java with {memory}; histories of {', '.join(f'{one:,}' for one in lengths)}"
    )
    rows: list[Mapping[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="toril-bench-lake-", dir=folder) as made_here:
        spark = session(name="bench-lake", conf={"spark.ui.enabled": "false", "spark.driver.memory": memory})
        try:
            if only != "history":
                rows += _archive(spark, Path(made_here), lengths[0] // 2, rounds)
            if only != "archive":
                with standalone() as server:
                    asyncio.run(begin_log(server.url))
                    rows += _history(spark, Path(made_here), server.url, lengths, rounds)
        finally:
            spark.stop()
    report.show_all(console, rows)
    if only is None:
        report.write(rows)
    console.print(f"It took {time.monotonic() - started:.0f} s.")


def _archive(spark: SparkSession, folder: Path, events: int, rounds: int) -> list[Mapping[str, Any]]:
    found = archive.measure(spark, folder, events, rounds)
    report.show_archive(console, found)
    return list(report.compare_archive(found, events))


def _history(
    spark: SparkSession, folder: Path, url: str, lengths: list[int], rounds: int
) -> list[Mapping[str, Any]]:
    batch = min(BATCH, max(made.UNIT, _whole(lengths[-1] // 500)))
    history = History(spark, folder, url, batch, _say)
    contests = {}
    compared = 0
    for place, length in enumerate(lengths):
        history.grow(length)
        if place == 0:
            history.check()
        history.measure_replays(min(rounds, REPLAYS))
        if place == 1:
            compared = history.length
            for name, contest in history.contests().items():
                contests[name] = history.contest(name, contest, rounds)
                if "numbers" in name:
                    history.measure_others(rounds, contests[name])
        history.measure_batches()
    report.show_contests(console, contests, compared)
    report.show_costs(console, history.costs)
    return [*report.compare_contests(contests, compared), *report.compare_costs(history.costs)]


def _whole(events: int) -> int:
    return events // made.UNIT * made.UNIT


def _say(what: str) -> None:
    console.print(f"[dim]{what}[/dim]")


if __name__ == "__main__":
    main()
