"""The results as tables for people, and as a list of comparisons for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

from rich.console import Console
from rich.table import Table

from . import library, memory, speed

RESULTS = Path(__file__).parents[1] / "results" / "log.json"
LIBRARY_TARGET = 5.0

Speeds = Mapping[str, Mapping[speed.Workload, speed.Result]]
"""By place: standalone or cluster."""


class Comparison(TypedDict):
    """Toril and one peer in one measure; a ratio above 1 means that Toril is better."""

    measure: str
    toril: float
    peer: float
    peer_name: str
    ratio: float
    target: float | None
    """What the ratio should be at least."""


def write(comparisons: Sequence[Comparison | Mapping[str, Any]]) -> None:
    """Write the comparisons where the other benchmarks have theirs."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(comparisons, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def comparison(
    measure: str, toril: float, peer: float, name: str, ratio: float, target: float | None = None
) -> Comparison:
    """One line for machines."""
    return {
        "measure": measure,
        "toril": round(toril, 1),
        "peer": round(peer, 1),
        "peer_name": name,
        "ratio": round(ratio, 3),
        "target": target,
    }


# ---------------------------------------------------------------------------- raw commands

PARTS = {
    "per_second": "events/s",
    "server_cpu": "server CPU µs per event",
    "client_cpu": "client CPU µs per event",
}


def compare_speed(speeds: Speeds) -> Iterator[Comparison]:
    """Every workload, by events and by processor time."""
    for place, by_load in speeds.items():
        for load, found in by_load.items():
            for part, title in PARTS.items():
                both = found.middle("toril", part), found.middle("raw", part)
                target = load.target if part == "per_second" else None
                what = f"{place}: {load.title}, {title}"
                yield comparison(what, *both, load.peer, median(found.ratios(part)), target)


def show_speed(console: Console, speeds: Speeds) -> None:
    """A table; ``0.60x (0.50–0.70)`` is the median and the range of the rounds' own ratios."""
    table = Table(title="Events per second (± half the spread); CPU per event: server, client")
    table.add_column("workload")
    for title in ("Toril", "µs", "raw, same client", "µs", "Toril / raw"):
        table.add_column(title, justify="right")
    for place, by_load in speeds.items():
        table.add_section()
        table.add_row(f"[bold]{place}[/bold]")
        for load, found in by_load.items():
            cells = []
            for side in ("toril", "raw"):
                rates = found.values(side)
                spread = (max(rates) - min(rates)) / 2 / median(rates)
                cells.append(f"{median(rates):,.0f} ± {spread:.0%}")
                costs = (f"{found.middle(side, part):.1f}" for part in ("server_cpu", "client_cpu"))
                cells.append(", ".join(costs))
            table.add_row(f"  {load.title}", *cells, shown(found.ratios(), load.target))
    console.print(table)


# ---------------------------------------------------------------------------- the library


def compare_library(results: library.Results) -> Iterator[Comparison]:
    """Both ways of calling Toril with every peer; the target is for each at its best."""
    for (safety, size), found in results.items():
        for way in library.WAYS:
            for peer in found.peers:
                what = f"append {_events(size)}, {safety}, {way}, appends/s"
                both = median(found.toril[way]), median(found.peers[peer])
                target = LIBRARY_TARGET if way == library.MANY else None
                yield comparison(what, *both, peer, median(found.ratios(way, peer)), target)


def show_library(console: Console, results: library.Results) -> None:
    """A table of appends per second."""
    table = Table(title="Appends per second to new aggregates, and how many times faster Toril is")
    table.add_column("what is safe when an append returns, and how many events it has")
    for way in library.WAYS:
        table.add_column(f"Toril, {way}", justify="right")
    peers = library.names(results)
    for peer in peers:
        table.add_column(peer, justify="right")
    for (safety, size), found in results.items():
        cells = [f"{median(found.toril[way]):,.0f}" for way in library.WAYS]
        for peer in peers:
            many = shown(found.ratios(library.MANY, peer), LIBRARY_TARGET)
            one = shown(found.ratios(library.ONE, peer), None)
            cells.append(f"{median(found.peers[peer]):,.0f}\nmany tasks {many}\none task {one}")
        table.add_row(f"{safety}, {_events(size)}", *cells)
        table.add_section()
    console.print(table)


def _events(size: int) -> str:
    return f"{size} event{'s' if size > 1 else ''}"


# ---------------------------------------------------------------------------- memory, waiting


def compare_memory(found: memory.Weights) -> Iterator[Comparison]:
    """Bytes."""
    both = found.event, found.raw_event
    yield comparison("bytes per event in the stream", *both, "raw XADD", found.raw_event / found.event)
    for name, by_size in found.others.items():
        for size, weight in by_size.items():
            # The line in activity is needed in any form.
            both = found.aggregate(size), weight + found.activity
            what = f"bytes per hot aggregate, {size} appends of 1 event"
            yield comparison(what, *both, name, both[1] / both[0])


def show_memory(console: Console, found: memory.Weights) -> None:
    """The arithmetic."""
    console.print("[bold]Memory[/bold]")
    for line in found.lines():
        console.print(f"  {line}")
    for name, by_size in found.others.items():
        sizes = ", ".join(f"{size}: {weight + found.activity:,.0f}" for size, weight in by_size.items())
        console.print(f"  The same as {name}, by events: {sizes} bytes.")


def show_waiting(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Idle cost and wake-up latency."""
    table = Table(title="A reader of 64 partitions that waits, and what a ring costs an append")
    for title in ("measure", "Toril", "peer", "", "ratio"):
        table.add_column(title, justify="left" if title in ("measure", "peer") else "right")
    for row in rows:
        both = f"{row['toril']:,.2f}", row["peer_name"], f"{row['peer']:,.2f}"
        table.add_row(row["measure"], *both, f"{row['ratio']:.2f}x")
    console.print(table)


def shown(ratios: Sequence[float], target: float | None) -> str:
    """The median and the range of the rounds' own ratios, green where the target is reached."""
    said = f"{median(ratios):.2f}x ({min(ratios):.2f}–{max(ratios):.2f})"
    if target is None:
        return said
    colour = "green" if median(ratios) >= target else "red"
    return f"[{colour}]{said}, target {target:g}x[/{colour}]"
