"""``python -m benchmarks.ingest``: measure, print, and write ``benchmarks/results/ingest.json``."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from toril.connection.server import binary_version, find_binary

from . import memory, report, speed
from .load import CONNECTIONS, PER_REQUEST

console = Console(width=None if sys.stdout.isatty() else 160)
PARTS = ("speed", "profile", "memory")
MILLION = 1_000_000


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Rounds; each side is measured once in each.")
@click.option("--spans", default=20_000, show_default=True, help="Spans of one measurement.")
@click.option("--million", is_flag=True, help="Look at memory too, over a run of a million spans.")
@click.option("--memory-spans", default=MILLION, hidden=True, help="A shorter run than that, to try it.")
@click.option("--only", type=click.Choice(PARTS), help="Measure this alone.")
def main(rounds: int, spans: int, million: bool, memory_spans: int, only: str | None) -> None:
    """Compare Toril's collector with a bare receiver, follow spans to summaries, and see where time goes."""
    wanted = [only] if only else [part for part in PARTS if part != "memory" or million]
    started = time.monotonic()
    product, number = binary_version(find_binary())
    console.print(
        f"{product} {number} with appendfsync always, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores; {PER_REQUEST} spans in a request, {CONNECTIONS} connections, not compressed"
    )
    rows: list[Mapping[str, Any]] = []
    if "speed" in wanted:
        readings = asyncio.run(_measure(rounds, spans))
        report.show(console, readings)
        rows += report.compare(readings)
    if "profile" in wanted:
        report.show_profile(console, asyncio.run(speed.profiles(spans)), spans)
    if "memory" in wanted:
        run = asyncio.run(memory.measure(memory_spans, lambda said: console.print(f"[dim]{said}[/dim]")))
        report.show_memory(console, run)
        if memory_spans == MILLION:
            rows += report.compare_memory(run)
    report.write(rows)
    console.print(f"It took {time.monotonic() - started:.0f} s.")


async def _measure(rounds: int, spans: int) -> speed.Readings:
    contest = speed.Contest(spans)
    for turn in range(rounds):
        began = time.monotonic()
        await contest.round(turn)
        console.print(f"[dim]round {turn + 1}: {time.monotonic() - began:.0f} s[/dim]")
    return contest.readings


if __name__ == "__main__":
    main()
