"""The results as tables for people, and as a list of comparisons for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.log.report import Comparison, comparison, shown

from .library import PEERS
from .speed import BY_HAND, KINDS, TWO, Readings

RESULTS = Path(__file__).parents[1] / "results" / "events.json"
BARE_TARGET = 0.5
PERCENTS = (50, 99)
TITLES = {
    "{}": "Toril, 1 process",
    "bare {}": "bare loop, the same {}",
    "{}" + BY_HAND: "bare loop, all by hand",
    "{}" + TWO: "Toril, 2 processes",
}

LibraryRates = Mapping[str, Sequence[float]]
"""Events per second by round: Toril's under its name, and those of the peers."""
TORIL = "Toril"


def write(comparisons: Sequence[Comparison]) -> None:
    """Write the comparisons where the other benchmarks have theirs."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(comparisons, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def compare(readings: Readings) -> Iterator[Comparison]:
    """Every backlog and every delay; a ratio above 1 means that Toril is better."""
    for kind in KINDS:
        for bare in (f"bare {kind}", f"{kind}{BY_HAND}"):
            both = readings.middle(kind), readings.middle(bare)
            title = TITLES[bare.replace(kind, "{}")].format(kind)
            ratio = median(readings.ratios(kind, bare))
            yield comparison(f"{kind}, a backlog, events/s", *both, title, ratio, BARE_TARGET)
            for part, said in (("client_cpu", "worker CPU"), ("server_cpu", "server CPU")):
                ours, theirs = readings.middle(kind, part), readings.middle(bare, part)
                measure = f"{kind}, a backlog, {said} µs per event"
                yield comparison(measure, ours, theirs, title, theirs / ours)
        ratio = median(readings.ratios(kind + TWO, kind))
        both = readings.middle(kind + TWO), readings.middle(kind)
        yield comparison(f"{kind}, a backlog, 2 processes, events/s", *both, TITLES["{}"], ratio)
    for percent in PERCENTS:
        ours, theirs = (median(readings.delay(side, percent)) for side in ("arrivals", "bare arrivals"))
        row = comparison(
            f"append to handler at 50 events/s, p{percent} ms", ours, theirs, "XREAD BLOCK", theirs / ours
        )
        yield {**row, "toril": round(ours, 2), "peer": round(theirs, 2)}


def compare_library(rates: LibraryRates) -> Iterator[Comparison]:
    """The projection beside every peer."""
    for peer, target in PEERS.items():
        both = median(rates[TORIL]), median(rates[peer])
        ratio = median(_ratios(rates, peer))
        yield comparison("projection beside the library, events/s", *both, peer, ratio, target)


def _ratios(rates: LibraryRates, peer: str) -> list[float]:
    return [ours / theirs for ours, theirs in zip(rates[TORIL], rates[peer], strict=True)]


def show(console: Console, readings: Readings) -> None:
    """A table; ``0.60x (0.50–0.70)`` is the median and the range of the rounds' own ratios."""
    table = Table(title="A backlog through one processor: events/s (± half the spread), CPU µs per event")
    for title in ("processor", "way"):
        table.add_column(title)
    for title in ("events/s", "worker CPU", "server CPU", "Toril, 1 process, beside it"):
        table.add_column(title, justify="right")
    for kind in KINDS:
        table.add_section()
        for form, title in TITLES.items():
            side = form.format(kind)
            rates = readings.values(side)
            spread = (max(rates) - min(rates)) / 2 / median(rates)
            costs = [f"{readings.middle(side, part):.1f}" for part in ("client_cpu", "server_cpu")]
            beside = "" if side == kind else shown(readings.ratios(kind, side), BARE_TARGET)
            if side.endswith(TWO):
                beside = f"grows {shown(readings.ratios(side, kind), None)}"
            table.add_row(kind, title.format(kind), f"{median(rates):,.0f} ± {spread:.0%}", *costs, beside)
    console.print(table)
    table = Table(title="From the call that appends an event to its handler, at 50 events/s, ms (range)")
    table.add_column("way")
    for percent in PERCENTS:
        table.add_column(f"p{percent}", justify="right")
    for side, title in (("arrivals", TORIL), ("bare arrivals", "bare loop, XREAD BLOCK")):
        cells = []
        for percent in PERCENTS:
            found = readings.delay(side, percent)
            cells.append(f"{median(found):.2f} ({min(found):.2f}–{max(found):.2f})")
        table.add_row(title, *cells)
    console.print(table)


def show_library(console: Console, rates: LibraryRates) -> None:
    """How many times faster Toril is."""
    table = Table(title="The same projection by the library eventsourcing; at most a second may be lost")
    table.add_column("way")
    for title in ("events/s", "Toril / peer"):
        table.add_column(title, justify="right")
    table.add_row("Toril, 1 process, appendfsync everysec", f"{median(rates[TORIL]):,.0f}", "")
    for peer, target in PEERS.items():
        table.add_row(peer, f"{median(rates[peer]):,.0f}", shown(_ratios(rates, peer), target))
    console.print(table)
