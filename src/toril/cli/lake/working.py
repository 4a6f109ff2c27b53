"""How far a long command is: on a terminal a bar, fed by Spark, with a rate and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from toril.cli.show import errors
from toril.lake.progress import Tasks, watching_all

NEARLY = 0.99
"""Of a step, at most, before it is said to be done: Spark does not know of tasks that it has not begun."""


class Working:
    """Is told how far a command is, in steps; and by Spark, in between, in tasks."""

    def __init__(self, bar: Progress | None, what: str) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task(what, total=1, said="")
        self._began = time.monotonic()
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
        if self._bar is None or self._task is None:
            return
        begun = self._tasks.of - self._before.of
        part = (self._tasks.done - self._before.done) / begun if begun else 0.0
        done, said = self._tasks.done, f"{self._tasks.done:,} tasks"
        if self._rows is not None:
            done, said = self._rows[0], f"{self._rows[0]:,} of {self._rows[1]:,} rows"
            part = done / max(self._rows[1], 1)
        elif self._of > 1:
            said = f"{self._done:,} of {self._of:,}, {said}"
        rate = done / max(time.monotonic() - self._began, 0.1)
        self._bar.update(
            self._task,
            description=what,
            completed=self._done + min(part, NEARLY),
            total=max(self._of, 1),
            said=f"{said}, {rate:,.0f} a second",
        )


@contextmanager
def working(spark: SparkSession, what: str, *, quiet: bool) -> Iterator[Working]:
    """Show how far it is, while it is entered; where there is no terminal, only the answer counts."""
    if quiet:
        yield Working(None, what)
        return
    with bars() as bar:
        shown = Working(bar, what)
        with watching_all(spark, shown.tasks):
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
