"""``python -m benchmarks.queue``: measure, print, and write ``benchmarks/results/queue.json``."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from benchmarks.installed import require
from toril.connection.server import binary_version
from toril.testing import standalone

from . import report
from .contest import Contest
from .peers import PEERS, REQUIREMENTS, TORIL, set_up

console = Console(width=None if sys.stdout.isatty() else 200)


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Rounds; each peer is measured once in each.")
@click.option("--seconds", default=4.0, show_default=True, help="How long latency is measured in a round.")
@click.option(
    "--binary", type=click.Path(path_type=Path, exists=True), help="Another server than the wheel's."
)
@click.option("--only", help="Measure Toril and the peers whose names contain this, and write no file.")
def main(rounds: int, seconds: float, binary: Path | None, only: str | None) -> None:
    """Compare Toril's queue with BullMQ (Node and Python), SAQ, arq and taskiq."""
    require(REQUIREMENTS, console)
    try:
        set_up()
    except (FileNotFoundError, subprocess.CalledProcessError) as problem:
        raise click.ClickException(str(problem)) from None
    started = time.monotonic()
    peers = [peer for peer in PEERS if peer.name == TORIL or not only or only in peer.name]
    with standalone({"databases": 1}, binary=binary) as server:
        product, version = binary_version(server.binary)
        title = f"{product} {version} without persistence, Python {platform.python_version()}"
        contest = Contest(server, peers, seconds, lambda said: console.print(f"[dim]{said}[/dim]"))
        asyncio.run(run(contest, rounds))
    report.show(console, contest.readings, contest.tuned, title)
    if only is None:
        report.write(list(report.compare(contest.readings)))
    console.print(f"It took {time.monotonic() - started:.0f} s.")


async def run(contest: Contest, rounds: int) -> None:
    """Find the best settings, then go the rounds."""
    await contest.tune(times=2)
    for number in range(rounds):
        began, before = time.monotonic(), _others_cpu(contest)
        await contest.round(number)
        took = time.monotonic() - began
        others = (_others_cpu(contest) - before) / took
        console.print(f"[dim]round {number + 1}: {took:.0f} s; other programs had {others:.1f} cores[/dim]")


def _others_cpu(contest: Contest) -> float:
    """Seconds of processor time that others had: not this program, its players or its server. On Linux."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, irq, soft, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
    all_of_them = (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
    return all_of_them - sum(os.times()[:4]) - contest.server_cpu()


if __name__ == "__main__":
    main()
