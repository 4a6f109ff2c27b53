"""The results as tables for people, and as a list of comparisons for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.log.report import comparison, shown

from .memory import MARKS, Run
from .profile import per_span
from .speed import ALONE, ALONG, BACKLOG, BARE, TOGETHER, Readings

RESULTS = Path(__file__).parents[1] / "results" / "ingest.json"
MB = 2**20
GROWTH_TARGET = 1.1
SIDES = {
    BARE: "bare receiver: decode, XADD",
    ALONE: "accepted, worker stopped",
    TOGETHER: "accepted, worker running",
    BACKLOG: "to summary, a backlog",
    ALONG: "to summary, worker running along",
}
PROCESSES = (BARE, "collector", "worker", "Valkey")

Comparisons = Sequence[Mapping[str, Any]]


def write(comparisons: Comparisons) -> None:
    """Write the comparisons where the other benchmarks have theirs; what was not measured now stays."""
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    now = {row["measure"] for row in comparisons}
    rows = [*comparisons, *(row for row in old if row["measure"] not in now)]
    RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def compare(readings: Readings) -> Iterator[Mapping[str, Any]]:
    """Everything beside the ceiling."""
    most = median(readings.rates(BARE))
    for side in (ALONE, TOGETHER):
        rate, ratio = median(readings.rates(side)), median(readings.ratios(side))
        yield comparison(f"spans/s {SIDES[side]}", rate, most, BARE, ratio)
    for side in (BACKLOG, ALONG):
        rate, ratio = median(readings.rates(side)), median(readings.ratios(side))
        yield comparison(f"spans/s {SIDES[side]}", rate, most, f"{BARE}, which makes none", ratio)
    for ours, theirs in (("collector", BARE), ("Valkey", "Valkey")):
        both = readings.cpu(ALONE, ours), readings.cpu(BARE, theirs)
        yield comparison(f"{ours} CPU µs per accepted span", *both, BARE, both[1] / both[0])


def show(console: Console, readings: Readings) -> None:
    """A table; ``0.20x (0.18–0.22)`` is the median and the range of the rounds' own ratios."""
    table = Table(title="Spans per second (± half the spread), and processor time in µs per span")
    table.add_column("what")
    for title in ("spans/s", *PROCESSES, "of the ceiling"):
        table.add_column(title, justify="right")
    for side, title in SIDES.items():
        rates = readings.rates(side)
        spread = (max(rates) - min(rates)) / 2 / median(rates)
        used = [readings.cpu(side, process) for process in PROCESSES]
        beside = "" if side == BARE else shown(readings.ratios(side), None)
        cells = [f"{cost:,.0f}" if cost >= 0.5 else "" for cost in used]
        table.add_row(title, f"{median(rates):,.0f} ± {spread:.0%}", *cells, beside)
    console.print(table)
    others = ", ".join(f"{part:.0%}" for part in readings.others)
    console.print(f"Others had this much of the machine, by round: {others}.")


def show_profile(console: Console, profiles: Mapping[str, Mapping[str, float]], spans: int) -> None:
    """Where the time goes, of each process."""
    for process, rows in profiles.items():
        table = Table(title=f"Where the processor time of the {process} goes")
        table.add_column("")
        for title in ("µs per span", "of all"):
            table.add_column(title, justify="right")
        for name, cost, part in per_span(rows, spans):
            if part >= 0.001:
                table.add_row(name, f"{cost:.1f}", f"{part:.1%}")
        table.add_section()
        table.add_row("all", f"{sum(rows.values()) / spans * 1e6:.1f}", "")
        console.print(table)


def compare_memory(run: Run) -> Iterator[Mapping[str, Any]]:
    """Growth in the second half of the run."""
    for process in run.processes:
        yield {
            "measure": f"{process}: resident MB at the end of {run.spans:,} spans",
            "toril": round(run.at(1.0, process) / MB, 1),
            "peer": round(run.at(0.5, process) / MB, 1),
            "peer_name": "itself at half of them",
            "ratio": round(run.growth(process), 3),
            "target": f"≤ {GROWTH_TARGET}",
        }


def show_memory(console: Console, run: Run) -> None:
    """A table of resident memory."""
    rate = run.spans / run.seconds
    table = Table(
        title=f"Resident MB while {run.spans:,} spans come ({run.traces:,} traces, {rate:,.0f} spans/s)"
    )
    table.add_column("process")
    for title in (*(f"{mark:.0%}" for mark in MARKS), "from 50 % to 100 %"):
        table.add_column(title, justify="right")
    for process in run.processes:
        growth = run.growth(process)
        colour = "green" if growth <= GROWTH_TARGET else "red"
        cells = [f"{run.at(mark, process) / MB:,.0f}" for mark in MARKS]
        table.add_row(process, *cells, f"[{colour}]{growth:.2f}x, target ≤ {GROWTH_TARGET}x[/{colour}]")
    console.print(table)
    console.print(f"Others had {run.others:.0%} of the machine.")
