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

from .archive import BARE, TORIL
from .history import ALL, BY_HAND, BY_HAND_ALWAYS, CHUNK, FOLD, NATIVE, Costs
from .others import ENGINES
from .readings import Readings

RESULTS = Path(__file__).parents[1] / "results" / "lake.json"
BY_HAND_TARGET = 0.9
FLAT_TARGET = 1.5
LINEAR_TARGET = 1.2
MB = 2**20

Contests = Mapping[str, Readings]
Rows = Sequence[Mapping[str, Any]]


def write(rows: Rows) -> None:
    """Write the comparisons where the other benchmarks have theirs."""
    RESULTS.write_text(json.dumps(list(rows), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def show_all(console: Console, rows: Rows) -> None:
    """All comparisons in one table: above 1 a rate is higher, or a cost has grown; a target says which."""
    table = Table(
        title="All of it, as ratios", caption="A ratio of several rounds is the median of each round's own."
    )
    for name in ("measure", "Toril", "the other", "which one", "ratio", "target"):
        table.add_column(
            name, justify="right" if name in ("Toril", "the other", "ratio", "target") else "left"
        )
    for row in rows:
        target, ratio = row["target"], row["ratio"]
        colour = "default"
        if target is not None:
            colour = "green" if _met(ratio, target) else "red"
        table.add_row(
            row["measure"],
            f"{row['toril']:,}",
            f"{row['peer']:,}",
            row["peer_name"],
            f"[{colour}]{ratio:.2f}x[/{colour}]",
            "" if target is None else f"{target}" if isinstance(target, str) else f"≥ {target}",
        )
    console.print(table)


def _met(ratio: float, target: float | str) -> bool:
    """Whether a target is met: a number is the least, ``≤ 1.5`` the most."""
    if isinstance(target, str):
        return ratio <= float(target.removeprefix("≤ "))
    return bool(ratio >= target)


# ---------------------------------------------------------------------------- beside others


def compare_archive(found: Readings, events: int) -> Iterator[Mapping[str, Any]]:
    """The archive beside a reader that does nothing with what it reads."""
    both = found.rate(TORIL), found.rate(BARE)
    yield comparison(f"archive, rows/s ({events:,} events)", *both, BARE, found.ratio(TORIL, BARE))


def show_archive(console: Console, found: Readings) -> None:
    """A table."""
    table = _table("From the log into the table events", "rows/s", "of the ceiling", "peak MB")
    table.add_row(BARE, _rate(found.rates[BARE]))
    beside = shown(found.ratios(TORIL, BARE), None)
    table.add_row(TORIL, _rate(found.rates[TORIL]), beside, f"{found.peak(TORIL) / MB:,.0f}")
    console.print(table)


def compare_contests(contests: Contests, events: int) -> Iterator[Mapping[str, Any]]:
    """Engines beside what one would write by hand; the small result beside engines of one process."""
    for name, found in contests.items():
        for side in (NATIVE, FOLD):
            if side not in found.rates:
                continue
            for peer in (BY_HAND, BY_HAND_ALWAYS, *ENGINES):
                if peer not in found.rates:
                    continue
                # Python over what was recorded is no match for columns: that is for orientation.
                by_hand = peer in (BY_HAND, BY_HAND_ALWAYS)
                fair = by_hand and not (side == FOLD and NATIVE in found.rates)
                what = f"replay, events/s, {side}: {name} ({events:,} events)"
                both = found.rate(side), found.rate(peer)
                target = BY_HAND_TARGET if fair else None
                yield comparison(what, *both, peer, found.ratio(side, peer), target)


def show_contests(console: Console, contests: Contests, events: int) -> None:
    """A table; ``0.95x (0.90–1.00)`` is the median and the range of the rounds' own ratios."""
    table = _table(f"All of history once more: {events:,} events", "events/s", "beside by hand", "peak MB")
    for name, found in contests.items():
        table.add_section()
        table.add_row(f"[bold]{name}[/bold]")
        for side in found.rates:
            fair = side == NATIVE or (side == FOLD and NATIVE not in found.rates)
            target = BY_HAND_TARGET if fair else None
            beside = "" if side == BY_HAND else shown(found.ratios(side, BY_HAND), target)
            table.add_row(f"  {side}", _rate(found.rates[side]), beside, f"{found.peak(side) / MB:,.0f}")
    console.print(table)


# ---------------------------------------------------------------------------- beside itself


def compare_costs(costs: Costs) -> Iterator[Mapping[str, Any]]:
    """A batch and a replay after a long history, beside those after a short one."""
    for least, most in _ends(costs.batches):
        for table in (ALL, *costs.batches[most]):
            both = costs.batch(most, table), costs.batch(least, table)
            what = f"seconds of a batch of {costs.size:,} events, {table}, after {most:,}"
            target = FLAT_TARGET if table == ALL else None
            yield _growth(what, *both, f"itself after {least:,}", target)
        both = costs.built[ALL], costs.size / costs.batch(least, ALL)
        what = f"events/s through all tables, in batches of {CHUNK:,}"
        yield comparison(what, *both, f"itself in batches of {costs.size:,}", both[0] / both[1])
    lengths = sorted(costs.replays)
    for most in lengths[1:]:
        for engine in costs.replays[most]:
            both = costs.replay(most, engine) * 1e6, costs.replay(lengths[0], engine) * 1e6
            what = f"replay, µs per event, {engine}, of {most:,}"
            yield _growth(what, *both, f"itself of {lengths[0]:,}", LINEAR_TARGET)
            memory = costs.memory[most][engine] / MB, costs.memory[lengths[0]][engine] / MB
            what = f"replay, peak MB of all processes, {engine}, of {most:,}"
            yield _growth(what, *memory, f"itself of {lengths[0]:,}", None)


def _growth(what: str, now: float, before: float, name: str, target: float | None) -> Mapping[str, Any]:
    said = None if target is None else f"≤ {target}"
    row = {"measure": what, "toril": round(now, 3), "peer": round(before, 3), "peer_name": name}
    return {**row, "ratio": round(now / before, 3), "target": said}


def show_costs(console: Console, costs: Costs) -> None:
    """Two tables: a batch, and a replay, as history grows."""
    lengths = sorted(costs.batches)
    table = _table(
        f"Seconds of one more batch ({costs.size:,} events)",
        *(f"after {length:,}" for length in lengths),
        "growth",
        "events/s of a backlog",
    )
    for name in (*costs.batches[lengths[0]], ALL):
        seconds = [costs.batch(length, name) for length in lengths]
        target = FLAT_TARGET if name == ALL else None
        built = f"{costs.built[name]:,.0f}" if name in costs.built else ""
        table.add_row(name, *(f"{one:.2f}" for one in seconds), _grown(seconds, target), built)
    console.print(table)
    lengths = sorted(costs.replays)
    table = _table(
        "A replay into a generation, µs per event (and peak MB of all processes)",
        *(f"of {length:,}" for length in lengths),
        "growth",
    )
    for engine in costs.replays[lengths[0]]:
        each = [costs.replay(length, engine) * 1e6 for length in lengths]
        memory = [costs.memory[length][engine] / MB for length in lengths]
        cells = [f"{one:.2f} ({many:,.0f})" for one, many in zip(each, memory, strict=True)]
        table.add_row(engine, *cells, _grown(each, LINEAR_TARGET))
    console.print(table)


def _ends(lengths: Mapping[int, object]) -> Iterator[tuple[int, int]]:
    if len(lengths) > 1:
        yield min(lengths), max(lengths)


def _grown(values: Sequence[float], target: float | None) -> str:
    growth = values[-1] / values[0]
    if target is None:
        return f"{growth:.2f}x"
    colour = "green" if growth <= target else "red"
    return f"[{colour}]{growth:.2f}x, target ≤ {target}x[/{colour}]"


def _rate(rates: Sequence[float]) -> str:
    spread = (max(rates) - min(rates)) / 2 / median(rates)
    return f"{median(rates):,.0f} ± {spread:.0%}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table
