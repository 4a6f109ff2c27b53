"""The results as a table for people, and as a list of comparisons for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypedDict

from rich.console import Console
from rich.table import Table

from .contest import Reading
from .peers import NODE, PYPI, TORIL, Tuning

RESULTS = Path(__file__).parents[1] / "results" / "queue.json"

Readings = Mapping[str, Sequence[Reading]]
"""By peer, in the order of the rounds."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How a part of a reading is called, and what is good."""

    title: str
    digits: int = 0
    more_is_better: bool = False


TITLES: Mapping[str, Measure] = {
    "add": Measure("add one by one, jobs/s", more_is_better=True),
    "bulk": Measure("add in bulk, jobs/s", more_is_better=True),
    "process": Measure("process a backlog, jobs/s", more_is_better=True),
    "worker_cpu": Measure("worker CPU, µs per job", 1),
    "server_cpu": Measure("server CPU, µs per job", 1),
    "rss": Measure("worker's memory, MB", 1),
    "p50": Measure("latency at 50 jobs/s, p50 ms", 2),
    "p99": Measure("latency at 50 jobs/s, p99 ms", 2),
    "waiting": Measure("server memory per waiting job, bytes"),
    "completed": Measure("server memory per completed job, bytes"),
}

TARGETS: Mapping[tuple[str, str], float] = {
    ("bulk", NODE): 2.0,
    ("process", NODE): 2.0,
    ("process", PYPI): 20.0,
    ("p50", NODE): 1.0,
    ("p99", NODE): 1.0,
}


class Comparison(TypedDict):
    """Toril and one peer in one measure; a ratio above 1 means that Toril is better."""

    measure: str
    toril: float
    peer: float
    peer_name: str
    ratio: float
    target: float | None
    """What the ratio should be at least."""


def _values(readings: Sequence[Reading], name: str) -> list[float]:
    return [float(getattr(reading, name)) for reading in readings]


def _ratios(readings: Readings, peer: str, name: str, measure: Measure) -> list[float]:
    """How much better Toril was, round by round: the machine may be busier in some."""
    pairs = zip(_values(readings[TORIL], name), _values(readings[peer], name), strict=True)
    if measure.more_is_better:
        return [ours / theirs for ours, theirs in pairs]
    return [theirs / ours for ours, theirs in pairs]


Titles = Mapping[str, Measure]
Targets = Mapping[tuple[str, str], float]
"""What a ratio should be at least, by measure and peer."""


def compare(readings: Readings, titles: Titles = TITLES, targets: Targets = TARGETS) -> Iterator[Comparison]:
    """Every measure with every peer."""
    for name, measure in titles.items():
        for peer in readings:
            if peer == TORIL:
                continue
            yield {
                "measure": measure.title,
                "toril": round(median(_values(readings[TORIL], name)), measure.digits),
                "peer": round(median(_values(readings[peer], name)), measure.digits),
                "peer_name": peer,
                "ratio": round(median(_ratios(readings, peer, name, measure)), 3),
                "target": targets.get((name, peer)),
            }


def write(comparisons: list[Comparison], results: Path = RESULTS) -> None:
    """Write the comparisons where the other benchmarks have theirs."""
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(comparisons, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def show(
    console: Console,
    readings: Readings,
    tuned: Mapping[str, Tuning],
    title: str,
    titles: Titles = TITLES,
    targets: Targets = TARGETS,
) -> None:
    """A table; ``2.50x (2.10–2.90)`` means that Toril is so many times better, and from where to where."""
    table = Table(title=title, show_lines=True)
    table.add_column("median of the rounds ± half the spread\nToril's advantage (range)")
    for peer in readings:
        best = tuned[peer]
        size = f"bulks of {best.batch:,}" if best.batch else "one bulk"
        table.add_column(f"{peer}\nconcurrency {best.concurrency}\n{size}", justify="right")
    for name, measure in titles.items():
        cells = []
        for peer, found in readings.items():
            values = _values(found, name)
            middle = median(values)
            spread = (max(values) - min(values)) / 2 / middle
            cell = f"{middle:,.{measure.digits}f} ± {spread:.0%}"
            if peer != TORIL:
                cell += "\n" + _advantage(_ratios(readings, peer, name, measure), targets.get((name, peer)))
            cells.append(cell)
        table.add_row(measure.title, *cells)
    console.print(table)


def _advantage(ratios: Sequence[float], target: float | None) -> str:
    said = f"{median(ratios):.2f}x ({min(ratios):.2f}–{max(ratios):.2f})"
    if target is None:
        return said
    colour = "green" if median(ratios) >= target else "red"
    return f"[{colour}]{said}, target {target:g}x[/{colour}]"
