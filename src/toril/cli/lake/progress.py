"""How far the tables of a run are: a picture on a terminal, lines of JSON elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from toril.cli.show import as_json, errors, one_line
from toril.cli.times import span
from toril.connection.errors import ConnectionFailed, OutcomeUnknown
from toril.lake.run import Line, Run
from toril.lake.runs import OneRun
from toril.lake.source import Door, Marks, between

WINDOW = 30.0
"""Seconds over which the rate is taken."""

LOOK_EVERY = 1.0
"""Seconds between two looks at the log."""

NARROW = 72
"""Columns of a screen below which the bar is left out."""

NARROWER = 58
"""And below this, what this run has done."""


class Rate:
    """How many a second, over the last while."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> None:
        """So many there are now."""
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] < now - WINDOW:
            self._seen.popleft()

    @property
    def a_second(self) -> float:
        """None of late: 0."""
        if len(self._seen) < 2:
            return 0.0
        (then, before), (now, count) = self._seen[0], self._seen[-1]
        return (count - before) / max(now - then, 0.001)


class Shown:
    """See the module's text. ``lines_every``: seconds between two lines of JSON; None: a picture."""

    def __init__(self, door: Door, one: OneRun, *, lines_every: float | None) -> None:
        self._door = door
        self._one = one
        self._lines_every = lines_every
        self._tails: Marks = {}
        self._looked = 0.0
        self._rates: dict[str, Rate] = {}
        self._began = time.monotonic()
        self._run: Run | None = None
        self._live: Live | None = None

    @contextmanager
    def of(self, run: Run) -> Iterator[None]:
        """Show a run, while it is entered."""
        self._run = run
        self._rates = {line.name: Rate() for line in run.lines}
        if self._lines_every is not None:
            self._looked = self._began
            for rate in self._rates.values():
                rate.add(self._began, 0)
            yield
            return
        with Live(
            get_renderable=self._picture, console=errors, refresh_per_second=4, transient=True
        ) as self._live:
            yield

    def look(self) -> None:
        """Look how far the log and the tables are, every so often; where there is no picture, say it."""
        every = LOOK_EVERY if self._lines_every is None else self._lines_every
        if self._run is None or time.monotonic() - self._looked < every:
            return
        self._ask(self._run)
        if self._lines_every is not None:
            self._say("progress", self._run)

    def _ask(self, run: Run) -> None:
        self._looked = time.monotonic()
        for line in run.lines:
            self._rates[line.name].add(self._looked, line.events)
        try:
            self._tails = self._door.tails()
        except (ConnectionFailed, OutcomeUnknown):  # the steps say so
            self._tails = {}

    def behind(self, line: Line) -> int | None:
        """Events of the log that a table does not have; None where it is not known."""
        if not line.is_prepared or not self._tails:
            return None
        return between(line.record.positions, self._tails)

    def end(self, run: Run, outcome: str) -> None:
        """What became of it."""
        self._ask(run)
        if self._lines_every is not None:
            self._say("ended", run, outcome=outcome)
            return
        seconds = time.monotonic() - self._began
        errors.print(self._table(run, live=False))
        words = {"done": "all tables are up to date", "stopped": "stopped", "failed": "not all went well"}
        errors.print(
            Text(f"{words[outcome]} after {span(round(seconds * 1000))}; run {self._one.run}", "dim")
        )

    def _say(self, what: str, run: Run, **more: str) -> None:
        tables = {
            line.name: {
                "batch": line.record.batch,
                "batches": line.batches,
                "events": line.events,
                "seconds": round(line.seconds, 3),
                "events_per_second": round(self._rates[line.name].a_second, 1),
                "behind": self.behind(line),
                "seconds_left": _seconds_left(self.behind(line), self._rates[line.name].a_second),
            }
            for line in run.lines
        }
        said = {
            "run": self._one.run,
            "what": what,
            **more,
            "seconds": round(time.monotonic() - self._began, 3),
            "tables": tables,
            "problems": run.problems,
        }
        as_json(said, indent=None)

    # ------------------------------------------------------------------ the picture

    def _picture(self) -> Table | Text:
        return Text() if self._run is None else self._table(self._run, live=True)

    def _table(self, run: Run, *, live: bool) -> Table:
        """``live``: with bars and rates, which mean nothing at the end."""
        bars = live and errors.width >= NARROW
        made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
        made.add_column("table", no_wrap=True)
        if bars:
            made.add_column("", width=max(8, min(30, errors.width - 62)))
        counts = errors.width >= NARROWER
        rates = counts and live
        names = (*(("events",) if counts else ()), *(("a second",) if rates else ()), "behind", "left")
        for name in names:
            made.add_column(name if live or name != "left" else "", justify="right", no_wrap=True)
        for line in run.lines:
            made.add_row(*self._row(line, bars, counts, rates))
        return made

    def _row(self, line: Line, bars: bool, counts: bool, rates: bool) -> list[Text | ProgressBar]:
        behind, rate = self.behind(line), self._rates[line.name].a_second
        style = "red" if line.problems else ""
        row: list[Text | ProgressBar] = [Text(one_line(line.name), style)]
        if bars:
            has = sum(ordinal for ordinal, _ in line.record.positions.values())
            total = None if behind is None else max(has + behind, 1)
            row.append(
                ProgressBar(
                    total=total,
                    completed=has,
                    pulse=behind is None,
                    complete_style="cyan",
                    finished_style="green",  # Rich's own are grey where there are sixteen colours
                )
            )
        if counts:
            row.append(Text(f"{line.events:,}", "" if line.events else "dim"))
        if rates:
            row.append(Text(f"{rate:,.0f}" if rate else ""))
        row.append(Text("?" if behind is None else f"{behind:,}", "" if behind else "dim"))
        row.append(Text(_left(line, behind, rate)))
        return row


def _seconds_left(behind: int | None, rate: float) -> float | None:
    """None where nobody can tell."""
    if not behind:
        return behind
    return round(behind / rate, 1) if rate else None


def _left(line: Line, behind: int | None, rate: float) -> str:
    if line.problems:
        return "failed" if line.ended.is_set() else "in part"
    if behind is None:
        return "" if line.is_prepared else "starting"
    if not behind:
        return "up to date"
    left = _seconds_left(behind, rate)
    return "" if left is None else span(round(left * 1000))
