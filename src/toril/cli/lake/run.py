"""``toril lake run``: the archive and all tables, continuously or once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict

import click

from toril.cli.careful import INTERRUPTED
from toril.cli.lake.progress import Shown
from toril.cli.lake.projections import program, program_of_spans
from toril.cli.lake.target import group_option, lake_options, log_option, opened, ui, url_option
from toril.cli.show import as_json, complain, errors, note
from toril.cli.times import parse_duration, whole
from toril.errors import InvalidValue
from toril.lake.archive import MOST, EventsStep
from toril.lake.lake import Lake
from toril.lake.rollups import RollupsStep
from toril.lake.run import Failed, LeftAlone, Missing, News, Retries, Run
from toril.lake.runs import OneRun, Runs
from toril.lake.source import Door
from toril.lake.spans import SpansStep
from toril.lake.steps import Step
from toril.lake.summaries import SummariesStep

SAY_EVERY = 0.5
"""Seconds between two pictures of how far it is."""


def _seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:  # noqa: ARG001 - click's
    return parse_duration(param.opts[0], f"{value}s" if value.isdigit() else value) / 1000


def _report_every(ctx: click.Context, param: click.Parameter, value: str) -> float:
    seconds = _seconds(ctx, param, value)
    if seconds < 1:
        raise InvalidValue("--report-every", value, "at least 1s")
    return seconds


@click.command()
@click.option("--once", is_flag=True, help="End when all tables have what is in the log now.")
@click.option(
    "--every",
    default="10s",
    show_default=True,
    metavar="TIME",
    callback=_seconds,
    help="From one batch to the next, while there is no backlog; a number alone is seconds.",
)
@click.option(
    "--report-every",
    default="10s",
    show_default=True,
    metavar="TIME",
    callback=_report_every,
    help="With JSON lines: how often one says how far behind the tables are.",
)
@click.option(
    "--most",
    default=str(MOST),
    show_default=True,
    metavar="N",
    callback=whole("--most", 1, 10**9),
    help="Events in one batch of the archive, at most.",
)
@group_option
@program_of_spans
@log_option
@url_option
@lake_options
def run(
    once: bool,
    every: float,
    report_every: float,
    most: int,
    group: str,
    program_: str | None,
    log_name: str,
    url: str | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Archive the log, and bring all tables up to it.

    Every event of the log is in the table events once, however often this is killed; spans, trace summaries
    and rollups follow. What is archived may leave the log: its archive position follows the table. At Ctrl-C
    or SIGTERM the batches under way are finished. Any number of processes may run; one does the work.

    What may pass, a full disk too, is told and tried again. Where a table cannot be fed any more, the exit
    code is 1; without --once, the command ends then. Without a terminal it writes JSON lines.
    """
    as_lines = json_ or not errors.is_terminal
    where = program(program_, url, log_name)
    upcasters = where.upcasters
    with Door(where.url, where.log) as door:  # before Java is started: it says what is wrong with the log
        until = door.tails() if once else None
        with opened(path, master, name="toril lake run", quiet=as_lines) as lake:
            events = EventsStep(where.url, where.log, group=group, most=most, until=until)
            steps: list[Step] = [events, SpansStep(upcasters), SummariesStep(), RollupsStep()]
            arguments = {"once": once, "log": where.log, "group": group, "most": most, "every": every}
            arguments |= {} if program_ is None else {"program": program_}
            with _recorded(lake, arguments, as_lines=as_lines) as one:
                code = _run(lake, steps, one, door, lines_every=report_every if as_lines else None)
    sys.exit(code)


@contextmanager
def _recorded(lake: Lake, arguments: dict[str, object], *, as_lines: bool) -> Iterator[OneRun]:
    # The tables are as they are, whatever can be noted of it.
    recorded = Runs(lake).recorded("run", arguments, untold=lambda problem: complain(f"runs: {problem}"))
    with ExitStack() as stack:
        # First of all: where the lake is another's, or cannot be written to, nothing is begun.
        with errors.status("looking at the lake …") if not as_lines else nullcontext():
            one = stack.enter_context(recorded)
        yield one


def _run(lake: Lake, steps: list[Step], one: OneRun, door: Door, *, lines_every: float | None) -> int:
    once, every = bool(one.arguments["once"]), one.arguments["every"]
    assert isinstance(every, (int, float))
    shown, as_lines = Shown(door, one, lines_every=lines_every), lines_every is not None
    if as_lines:
        as_json({"run": one.run, "what": "began", "lake": lake.path, "spark_ui": ui(lake.spark)}, indent=None)

    def told(news: News) -> None:
        if as_lines:
            as_json({"run": one.run, "what": type(news).__name__.lower(), **asdict(news)}, indent=None)
        elif isinstance(news, Missing):
            note(f"{news.events:,} events had left the log before there was an archive: the lake lacks them")
        elif isinstance(news, Retries):
            note(f"{news.table}: {news.problem}; tried again in {news.again_in:g} s")
        elif isinstance(news, (Failed, LeftAlone)):
            complain(f"{news.table}: {news.problem}")

    running = Run(lake, steps, once=once, every=every, name=one.run, told=told)
    with _signals() as signals, running, shown.of(running):
        while not running.wait(SAY_EVERY):
            shown.look()
            if signals.first is not None and not signals.said:
                signals.said = True
                running.stop()
                note(f"{signals.first.name}: finishing the batches under way; once more to end at once")
    outcome = "failed" if running.problems else "stopped" if signals.first is not None else "done"
    one.rows = {line.name: line.events for line in running.lines}
    one.seconds = {line.name: round(line.seconds, 3) for line in running.lines}
    one.outcome, one.problem = outcome, "; ".join(running.problems) or None
    shown.end(running, outcome)
    if running.problems:
        return 1
    return INTERRUPTED if once and signals.first is not None else 0


class _Signals:
    first: signal.Signals | None = None
    said = False


@contextmanager
def _signals() -> Iterator[_Signals]:
    """SIGINT, SIGTERM and SIGHUP ask for the end; the second one does not wait for it."""
    got = _Signals()

    def receive(number: int, _: object) -> None:
        if got.first is not None:
            os._exit(INTERRUPTED)  # nothing is lost: each batch is in its table whole, or not at all
        got.first = signal.Signals(number)

    # Not before Spark has started: it takes SIGINT for itself.
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, receive) for each in signals}
    try:
        yield got
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
