"""How far a long command is: on a terminal a bar, fed by Spark, with a rate and the time that is left.

Elsewhere lines of JSON: ``began``, with the address of Spark's own pages, and ``progress`` every so often.
The last line is the command's answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from toril.cli.lake.target import ui
from toril.cli.show import as_json, errors
from toril.lake.progress import Tasks, watching_all

NEARLY = 0.99
"""Of a step, at most, before it is said to be done: Spark does not know of tasks that it has not begun."""

SAY_EVERY = 10.0
"""Seconds between two lines, where there is no terminal."""


class Lines:
    """How far something is, as lines of JSON, not too often."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()

    def say(self, doing: str, part: float, count: float, **said: object) -> None:
        """So much of the whole is done since it began, and so many of what the rate is of."""
        now = time.monotonic()
        if now - self._said < SAY_EVERY:
            return
        self._said, seconds = now, now - self._began
        as_json(
            {
                "what": "progress",
                "doing": doing,
                **said,
                "per_second": round(count / max(seconds, 0.1), 1),
                "seconds": round(seconds, 3),
                "seconds_left": round(seconds / part - seconds, 3) if part > 0 else None,
            },
            indent=None,
        )


class Working:
    """Is told how far a command is, in steps; and by Spark, in between, in tasks. ``bar``: None for lines."""

    def __init__(self, bar: Progress | None, what: str) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task(what, total=1, said="")
        self._what = what
        self._began, self._lines = time.monotonic(), Lines()
        self._done, self._of = 0, 1
        self._tasks = self._before = Tasks(0, 0)
        self._rows: tuple[int, int] | None = None

    def step(self, done: int, of: int, what: str) -> None:
        """So many steps are done, of so many, and what is done now."""
        self._done, self._of, self._before = done, of, self._tasks
        self._show(what)

    def rows(self, done: int, of: int) -> None:
        """The one step that there is consists of rows, which is more than Spark knows of it."""
        self._rows = (done, max(done, of))
        self._show()

    def tasks(self, tasks: Tasks) -> None:
        """How far Spark is with all that it was asked for."""
        self._tasks = tasks
        self._show()

    def _show(self, what: str | None = None) -> None:
        self._what = what or self._what
        begun = self._tasks.of - self._before.of
        part = (self._tasks.done - self._before.done) / begun if begun else 0.0
        if self._rows is not None:
            part = self._rows[0] / max(self._rows[1], 1)
        completed, total = self._done + min(part, NEARLY), max(self._of, 1)
        if self._bar is None:
            rows = {} if self._rows is None else {"rows": self._rows[0], "of_rows": self._rows[1]}
            steps = {"done": self._done, "of": self._of, "tasks": self._tasks.done, **rows}
            self._lines.say(self._what, completed / total, self._count, **steps)
        elif self._task is not None:
            rate = self._count / max(time.monotonic() - self._began, 0.1)
            said = f"{self._in_words()}, {rate:,.0f} a second"
            self._bar.update(self._task, description=what, completed=completed, total=total, said=said)

    @property
    def _count(self) -> int:
        """Of what the rate is taken: rows, where they are known, else tasks of Spark."""
        return self._tasks.done if self._rows is None else self._rows[0]

    def _in_words(self) -> str:
        if self._rows is not None:
            return f"{self._rows[0]:,} of {self._rows[1]:,} rows"
        tasks = f"{self._tasks.done:,} tasks"
        return f"{self._done:,} of {self._of:,}, {tasks}" if self._of > 1 else tasks


@contextmanager
def working(spark: SparkSession, what: str, *, quiet: bool) -> Iterator[Working]:
    """Show how far it is, while it is entered. ``quiet``: there is no terminal, and lines are written."""
    with ExitStack() as stack:
        if quiet:
            as_json({"what": "began", "doing": what, "spark_ui": ui(spark)}, indent=None)
        shown = Working(None if quiet else stack.enter_context(bars()), what)
        stack.enter_context(watching_all(spark, shown.tasks))
        yield shown


def bars() -> Progress:
    """A bar on the terminal, which goes when it is over. ``said``: what a task says beside it."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        console=errors,
        transient=True,
    )
