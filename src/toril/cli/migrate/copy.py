"""``toril migrate copy``: copy what is not copied yet; the old keys stay."""

from __future__ import annotations

import sys
import time

import click
from rich.text import Text

from toril.cli.careful import INTERRUPTED
from toril.cli.looks import number
from toril.cli.migrate.plan import CLEAN
from toril.cli.migrate.progress import bars, interruptible, until_told
from toril.cli.migrate.target import (
    LEFT,
    Target,
    name_workers,
    on_queues,
    rate_option,
    show_problems,
    so_many,
)
from toril.cli.show import Column, as_json, fitted_table, note, one_line, say
from toril.migrate import Copier, CopyOptions, QueueReport


@click.command()
@click.option("--follow", is_flag=True, help="Go on copying what old producers add, until Ctrl-C.")
@click.option("--no-pause", is_flag=True, help="Do not pause the old queues first.")
@click.option(
    "--allow-workers",
    is_flag=True,
    help="Copy although old workers take jobs from queues that are not paused: jobs may run twice.",
)
@click.option(
    "--take-active", is_flag=True, help="Copy active jobs whose lock is alive too: their workers are gone."
)
@click.option("--renumber", is_flag=True, help="Give a new id to jobs whose id is taken in the new queue.")
@rate_option
@on_queues
async def copy(
    at: Target,
    follow: bool,
    no_pause: bool,
    allow_workers: bool,
    take_active: bool,
    renumber: bool,
    rate: float | None,
) -> None:
    """Copy jobs, schedulers and settings to the new queues, each once. The old keys stay.

    The old queues are paused first, so that no old worker takes a job that is copied. Run it again, at any
    time, to copy what was added or was left.
    """
    options = CopyOptions(
        pause=not no_pause,
        allow_workers=allow_workers,
        take_active=take_active,
        renumber=renumber,
        rate=rate,
    )
    if not len(at.moves) and not at.json:
        say(Text(CLEAN))
        return
    if follow:
        note("following the old queues: Ctrl-C ends it")
    started = time.perf_counter()
    with bars(at.json) as told:
        copier = Copier(at.source, at.destination, at.moves, options, told)
        work = until_told(copier.follow) if follow else interruptible(copier.copy())
        ended = await work is not None
    seconds = time.perf_counter() - started
    left = sum(report.left for report in copier.reports)
    if at.json:
        as_json(
            {
                "queues": [report.as_json() for report in copier.reports],
                "left": left if ended else None,
                "ended": ended,
                "seconds": round(seconds, 3),
            }
        )
    else:
        _show(copier.reports, ended, left, seconds)
    if not ended:
        sys.exit(INTERRUPTED)
    if left:
        sys.exit(LEFT)


def _show(reports: list[QueueReport], ended: bool, left: int, seconds: float) -> None:
    columns = [
        Column("old name", least=20),
        Column("new name", least=24),
        Column("copied", right=True),
        Column("before", right=True),
        Column("schedulers", right=True, leave=1),
        Column("left", right=True),
    ]
    rows: list[list[str | Text]] = [
        [
            one_line(report.source),
            one_line(report.destination),
            number(report.total, "green"),
            number(report.already),
            number(report.schedulers),
            number(report.left if ended else None, "yellow"),
        ]
        for report in reports
    ]
    fitted_table(columns, rows)
    for report in reports:
        for count, what in (
            (report.busy, "being worked on by old workers, or waiting for such a child"),
            (report.later, "waiting for a parent that is not copied yet"),
            (report.missing, "only an id, without a job"),
            (report.superseded, "the next run of a scheduler that the new queue has already: left out"),
            (report.renumbered, "copied under a new id"),
        ):
            if count:
                note(f"{report.source}: {so_many(count)} {what}")
        name_workers(report.source, report.workers)
        show_problems(report.problems, report.problem_count)
    copied = sum(report.total for report in reports)
    if copied and seconds >= 1:
        note(f"in {seconds:,.1f} seconds, {copied / seconds:,.0f} jobs a second")
    if not ended:
        say(Text(f"Stopped: {so_many(copied)} copied. Run it again to go on.", "yellow"))
        note("old queues that were paused for it stay so: 'toril migrate rollback' lets them go on instead")
    elif left:
        say(Text(f"{so_many(copied)} copied, {left:,} left. Run it again to copy the rest.", "yellow"))
    else:
        say(Text(f"{so_many(copied)} copied. 'toril migrate verify' compares them.", "green"))
