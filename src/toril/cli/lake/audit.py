"""``toril lake audit``: whether log, lake and live store agree, with a report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import click
from rich.padding import Padding
from rich.text import Text

from toril.cli.lake.projections import (
    Cold,
    Program,
    cold_options,
    interruptible,
    program,
    program_of_spans,
)
from toril.cli.lake.target import lake_options, log_option, opened, url_option
from toril.cli.lake.working import working
from toril.cli.looks import aside
from toril.cli.show import as_json, errors, note, one_line, say
from toril.errors import InvalidValue, TorilError
from toril.lake.audit import CHECKS, Audit, LiveStore, LiveSummaries
from toril.lake.audit import audit as look_through
from toril.lake.report import report as page
from toril.lake.runs import Runs
from toril.lake.source import Door
from toril.lake.subjects import TRACE_SUMMARY
from toril.lake.tables import EVENTS
from toril.runtime.redis import RedisBackend
from toril.runtime.service import EventSourcingService


@click.command()
@click.option("--fraction", type=float, default=1.0, show_default=True, help="Of so many aggregates.")
@click.option("--only", multiple=True, metavar="CHECK", help=f"Only this check: {', '.join(CHECKS)}.")
@click.option("--no-log", is_flag=True, help="Do not ask the log, or the live store.")
@click.option("--no-live", is_flag=True, help="Do not ask the live store.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write a page of HTML here.")
@program_of_spans
@cold_options
@log_option
@url_option
@lake_options
def audit(
    fraction: float,
    only: tuple[str, ...],
    no_log: bool,
    no_live: bool,
    report: Path | None,
    program_: str | None,
    cold: Cold,
    log_name: str,
    url: str | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Prove that log, lake and live store agree.

    Every check computes in one piece what the tables have in batches, and compares. With --fraction, of some
    aggregates: always the same ones, chosen by a hash. Nothing is changed. The exit code is 1 where something
    differs, where log or live store cannot be asked (--no-log and --no-live leave them out), or where nothing
    could be checked.
    """
    if report is not None:
        try_to_write(report)
    as_lines = json_ or not errors.is_terminal
    where = program(program_, url, log_name)
    upcasters = where.upcasters
    with (
        opened(path, master, name="toril lake audit", quiet=as_lines) as lake,
        interruptible("nothing was changed"),
        _live(where, cold, not (no_log or no_live)) as live,
        working(lake.spark, "looking", quiet=as_lines) as shown,
    ):

        def told(done: int, of: int, what: str) -> None:
            # One more: the figures of the report come after the last check.
            shown.step(done, of + 1, CHECKS.get(what, "adding up"))

        lake.check(EVENTS)
        with Runs(lake).recorded("audit", {"fraction": fraction, "only": list(only)}) as run:
            found = look_through(
                lake,
                url=where.url,
                log=None if no_log else where.log,
                fraction=fraction,
                only=only,
                live=live,
                upcasters=upcasters,
                told=told,
            )
            run.rows = {check.name: check.looked for check in found.checks}
            run.seconds = {check.name: round(check.seconds, 3) for check in found.checks}
            if not found.ok:
                run.outcome, run.problem = "failed", f"{found.problems:,} differences"
    if as_lines:
        as_json(found.as_value(), indent=None)
    else:
        _show(found)
    if report is not None:
        made = page(found)
        with _written(report):
            report.write_text(made, encoding="utf-8")
        if not as_lines:
            aside(f"The report is in {report}.")
    sys.exit(0 if found.ok else 1)


@contextmanager
def _written(report: Path) -> Iterator[None]:
    """A report that cannot be written is a wrong argument."""
    try:
        yield
    except OSError as problem:
        rule = f"a file that can be written ({problem.strerror})"
        raise InvalidValue("--report", str(report), rule) from None


def try_to_write(report: Path) -> None:
    """Find out before the work whether there can be a report; one that is there stays as it is."""
    with _written(report):
        file = report.resolve()  # of a link, what it leads to
        is_new = not file.exists()
        file.open("ab").close()
        if is_new:
            file.unlink()


@contextmanager
def _live(where: Program, cold: Cold, wanted: bool) -> Iterator[LiveStore | TorilError | None]:
    """Asks the live store, or says why it cannot be asked; None where there is none to ask."""
    subject = where.subjects.get(TRACE_SUMMARY.processor)
    if not wanted or subject is None:
        if wanted:
            note(f"the live store is not asked: the program has no {TRACE_SUMMARY.processor}")
        yield None
        return
    with ExitStack() as stack:
        live: LiveStore | TorilError
        try:
            door = stack.enter_context(Door(where.url, where.log))
            parts = AsyncExitStack()
            stack.callback(lambda: door.do(parts.aclose()))

            async def opened() -> EventSourcingService:
                store = await parts.enter_async_context(cold.opened())
                return await parts.enter_async_context(where.service(subject, store))

            service = door.do(opened())
            backend = where.live(subject).backend
            assert isinstance(backend, RedisBackend)
            live = LiveSummaries(door, service, backend, subject.name)
        except TorilError as problem:
            live = problem
        yield live


def _show(found: Audit) -> None:
    for check in found.checks:
        mark, style = ("✕", "red") if check.findings else ("–", "dim") if check.skipped else ("✓", "green")
        said = f"not checked: {check.skipped}" if check.skipped else f"{check.looked:,} looked at"
        say(Text.assemble((f"{mark} ", style), (f"{check.name:<10}", "bold"), check.promise))
        say(
            Padding(
                Text(f"{said}, {check.seconds:.1f} s" if not check.skipped else said, style="dim"),
                (0, 0, 0, 12),
            )
        )
        for remark in check.notes:
            say(Padding(Text(one_line(remark), style="dim"), (0, 0, 0, 12)))
        for finding in check.findings:
            what = Text.assemble(
                (f"{finding.count:,} × {one_line(finding.kind)}", "red"), f": {one_line(finding.reason)}"
            )
            say(Padding(what, (0, 0, 0, 12)))
            for sample in finding.samples[:2]:
                text = ", ".join(f"{name} {value}" for name, value in sample.items())
                say(Padding(Text(one_line(text), style="dim"), (0, 0, 0, 14)))
    if found.ok:
        say(Text.assemble(("No differences", "bold green"), f" in {found.seconds:.0f} s."))
    else:
        say(Text.assemble((f"{found.problems:,} differences", "bold red"), f" in {found.seconds:.0f} s."))
