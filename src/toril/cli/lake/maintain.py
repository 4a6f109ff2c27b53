"""``toril lake maintain``: small files brought together, old ones removed, once or again and again."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from datetime import timedelta

import click
from rich.text import Text

from toril.cli.careful import INTERRUPTED
from toril.cli.lake.target import lake_options, listed, opened
from toril.cli.lake.working import working
from toril.cli.looks import aside, number, size
from toril.cli.show import Column, as_json, complain, errors, fitted_table, note
from toril.cli.times import duration, span
from toril.lake.lake import Lake
from toril.lake.maintain import Upkept
from toril.lake.maintain import maintain as upkeep
from toril.lake.runs import Runs


@click.command()
@click.option("--table", "tables", multiple=True, metavar="TABLE", help="Only this one; may be repeated.")
@click.option(
    "--retain",
    default="7d",
    show_default=True,
    metavar="TIME",
    callback=duration("--retain"),
    help="For how long files of former versions stay: longer than the longest reader reads.",
)
@click.option(
    "--every", metavar="TIME", callback=duration("--every"), help="Again and again, from start to start."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@lake_options
def maintain(
    tables: tuple[str, ...],
    retain: int,
    every: int | None,
    dry_run: bool,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Compact, cluster and vacuum the tables.

    Small files become large ones, days that are over are laid in an order by which files can be left out, and
    files that no version of the last days has are removed. No row changes. It runs beside a job: what the
    job was quicker at is left for the next time. Ctrl-C ends it after the table it is at.
    """
    as_lines = json_ or not errors.is_terminal
    with opened(path, master, name="toril lake maintain", quiet=as_lines) as lake, _until_signal() as stop:
        while True:
            wait = threading.Timer((every or 0) / 1000, lambda: None)
            wait.daemon = True
            wait.start()
            done = _round(lake, tables, timedelta(milliseconds=retain), dry_run, stop, as_lines)
            if not as_lines:
                _show(done, dry_run)
            if every is None or stop.is_set():
                break
            while wait.is_alive() and not stop.is_set():
                wait.join(0.2)
            if stop.is_set():
                break
    if stop.is_set() and every is None:
        sys.exit(INTERRUPTED)


def _round(
    lake: Lake,
    tables: tuple[str, ...],
    retain: timedelta,
    dry_run: bool,
    stop: threading.Event,
    as_lines: bool,
) -> list[Upkept]:
    done: list[Upkept] = []
    with ExitStack() as stack:
        shown = stack.enter_context(working(lake.spark, "looking at the tables", quiet=as_lines))
        # What is given is looked at before a run is noted.
        work = upkeep(lake, tables or None, retain=retain, dry_run=dry_run, told=shown.step)
        recorded = nullcontext() if dry_run else Runs(lake).recorded("maintain", {"tables": list(tables)})
        run = stack.enter_context(recorded)
        for one in work:
            done.append(one)
            if as_lines:
                as_json({"dry_run": dry_run, **asdict(one), "seconds": round(one.seconds, 3)}, indent=None)
            for problem in one.problems:
                complain(f"{one.table}: {problem}")
            if run is not None:
                run.seconds[one.table] = round(one.seconds, 3)
            if stop.is_set():
                note(f"stopped after {one.table}")
                if run is not None:
                    run.outcome = "stopped"
                break
    return done


def _show(done: list[Upkept], dry_run: bool) -> None:
    columns = [
        Column("table", least=12),
        Column("files", right=True),
        Column("now" if not dry_run else "", right=True),
        Column("size", right=True, leave=2),
        Column("partitions", right=True),
        Column("left", right=True, leave=1),
        Column("removed", right=True),
        Column("took", right=True, leave=3),
    ]
    rows: list[list[str | Text]] = [
        [
            listed(one.table),
            number(one.files_before),
            number(one.files_after) if not dry_run else "",
            size(one.bytes_after),
            number(one.compacted),
            number(one.left),
            number(one.removed),
            span(round(one.seconds * 1000)),
        ]
        for one in done
    ]
    fitted_table(columns, rows)
    if dry_run:
        aside("Nothing was changed: this is what would be brought together and removed.")
    elif freed := sum(one.removed_bytes for one in done):
        aside(f"{size(freed)} freed.")


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the next one does what it always does."""
    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.getsignal(each) for each in signals}

    def receive(_: int, __: object) -> None:
        stop.set()
        note("ending after this table; once more to end at once")
        for each, handler in before.items():
            signal.signal(each, handler)

    for each in signals:
        signal.signal(each, receive)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
