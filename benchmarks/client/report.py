"""The results as tables for people, and as a list of comparisons for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from rich.console import Console
from rich.table import Table

from .clients import OPENERS, TORIL
from .faults import Tally
from .speed import Result, Workload

RESULTS = Path(__file__).parents[1] / "results" / "client.json"

Speeds = Mapping[str, Mapping[Workload, Mapping[str, Result]]]
"""By place: standalone or cluster."""
Tallies = Mapping[str, Mapping[str, Tally]]
"""By event, then by client."""

BOUND_BY_REPLICATION = ("kill", "stall, replica takes over")
"""Events in which a server dies with writes that it had confirmed: no client can undo that."""


class Comparison(TypedDict):
    """Toril and one peer in one measure; a ratio above 1 means that Toril is better."""

    measure: str
    toril: float
    peer: float
    peer_name: str
    ratio: float
    target: float | None
    """What the ratio should be at least."""


def compare_speed(speeds: Speeds) -> Iterator[Comparison]:
    """Every workload with every peer, by calls and by processor time."""
    for place, by_load in speeds.items():
        for load, by_name in by_load.items():
            ours = by_name[TORIL]
            target = 1.0 if load.also_on_cluster else None
            for name, theirs in by_name.items():
                if name == TORIL:
                    continue
                what = f"{place}: {_describe(load)}"
                rates = ours.per_second, theirs.per_second
                yield _comparison(f"{what}, calls/s", *rates, name, ours.times_faster(theirs), target)
                costs = ours.cpu, theirs.cpu
                what += ", client CPU µs per call"
                yield _comparison(what, *costs, name, ours.times_cheaper(theirs), target)


def compare_faults(tallies: Tallies) -> Iterator[Comparison]:
    """Every event with every peer. Counts may be 0, so they are compared with one added to each."""
    for event, by_name in tallies.items():
        ours = by_name[TORIL]
        keeps = None if event in BOUND_BY_REPLICATION else 1.0
        for name, theirs in by_name.items():
            if name == TORIL:
                continue
            yield _count(f"{event}: calls executed twice", ours.doubled, theirs.doubled, name, 1.0)
            yield _count(f"{event}: calls reported done and lost", ours.lost, theirs.lost, name, keeps)
            yield _count(f"{event}: calls that raised", ours.failed, theirs.failed, name, None)
            what = f"{event}: calls that raised and were executed"
            yield _count(what, ours.failed_yet_done, theirs.failed_yet_done, name, None)
            yield _count(f"{event}: calls that hung", ours.hanging, theirs.hanging, name, 1.0)
            slowest = ours.slowest * 1000, theirs.slowest * 1000
            ratio = theirs.slowest / ours.slowest
            yield _comparison(f"{event}: slowest call, ms", *slowest, name, ratio, None)


def _count(measure: str, toril: int, peer: int, name: str, target: float | None) -> Comparison:
    return _comparison(measure, toril, peer, name, (peer + 1) / (toril + 1), target)


def _comparison(
    measure: str, toril: float, peer: float, name: str, ratio: float, target: float | None
) -> Comparison:
    return {
        "measure": measure,
        "toril": round(toril, 1),
        "peer": round(peer, 1),
        "peer_name": name,
        "ratio": round(ratio, 3),
        "target": target,
    }


def write(comparisons: list[Comparison]) -> None:
    """Write the comparisons where the other benchmarks have theirs."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(comparisons, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def show_speed(console: Console, speeds: Speeds) -> None:
    """A table of the speeds; ``1.50x`` means that Toril is that many times better."""
    table = Table(title="Calls per second (± half the spread), client CPU per call", show_lines=True)
    table.add_column("workload")
    for name in OPENERS:
        table.add_column(name, justify="right")
    for place, by_load in speeds.items():
        for load, by_name in by_load.items():
            ours = by_name[TORIL]
            cells = []
            for name, found in by_name.items():
                rate = f"{found.per_second:,.0f}/s ± {found.spread:.0%}"
                cpu = f"{found.cpu:,.0f} µs"
                if name != TORIL:
                    rate += f"  {ours.times_faster(found):.2f}x"
                    cpu += f"  {ours.times_cheaper(found):.2f}x"
                cells.append(f"{rate}\n{cpu}")
            table.add_row(f"{place}\n{_describe(load)}", *cells)
    console.print(table)


def show_faults(console: Console, tallies: Tallies) -> None:
    """A table of what became of the calls."""
    table = Table(title="Calls while servers move, fail and stall")
    table.add_column("event and client")
    for name in ("calls", "executed twice", "done and lost", "raised", "raised and executed", "hung"):
        table.add_column(name, justify="right")
    table.add_column("slowest", justify="right")
    table.add_column("raised what")
    for event, by_name in tallies.items():
        table.add_section()
        table.add_row(f"[bold]{event}[/bold]")
        for name, found in by_name.items():
            counts = (found.doubled, found.lost, found.failed, found.failed_yet_done, found.hanging)
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.errors.most_common())
            slowest = f"{found.slowest * 1000:,.0f} ms"
            table.add_row(f"  {name}", f"{found.calls:,}", *map(_shown, counts), slowest, kinds)
            if found.misreported:
                table.add_row("", "", f"[red]{found.misreported} said not to be executed, and were[/red]")
    console.print(table)


def _shown(count: int) -> str:
    return f"{count:,}" if count else "·"


def _describe(load: Workload) -> str:
    return f"{load.name}, {load.tasks} task{'s' if load.tasks > 1 else ''}"
