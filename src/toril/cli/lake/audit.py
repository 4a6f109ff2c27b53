"""``toril lake audit``: whether log, lake and live store agree, with a report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from toril.cli.lake.projections import clickhouse_option, cold_store, interruptible, program
from toril.cli.lake.target import lake_options, log_option, opened, url_option
from toril.cli.looks import aside
from toril.cli.show import as_json, errors, note, one_line, say
from toril.errors import InvalidValue, TorilError
from toril.lake.audit import CHECKS, Audit, LiveStates
from toril.lake.audit import audit as look_through
from toril.lake.report import report as page
from toril.lake.runs import Runs
from toril.lake.source import Door
from toril.lake.subjects import TRACE_SUMMARY


@click.command()
@click.option("--fraction", type=float, default=1.0, show_default=True, help="Of so many aggregates.")
@click.option("--only", multiple=True, metavar="CHECK", help=f"Only this check: {', '.join(CHECKS)}.")
@click.option("--no-log", is_flag=True, help="Do not ask the log, or the live store.")
@click.option("--no-live", is_flag=True, help="Do not ask the live store.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write a page of HTML here.")
@clickhouse_option
@log_option
@url_option
@lake_options
def audit(
    fraction: float,
    only: tuple[str, ...],
    no_log: bool,
    no_live: bool,
    report: Path | None,
    clickhouse: str | None,
    log_name: str,
    url: str | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Prove that log, lake and live store agree.

    Every check computes in one piece what the tables have in batches, and compares. With --fraction, of some
    aggregates: always the same ones, chosen by a hash. Nothing is changed. The exit code is 1 where something
    differs, or where nothing could be checked.
    """
    if report is not None and not report.absolute().parent.is_dir():
        raise InvalidValue("--report", str(report), "a file in a folder that is there")
    with (
        opened(path, master, name="toril lake audit", quiet=json_) as lake,
        interruptible("nothing was changed"),
        _live(url, log_name, clickhouse, not (no_log or no_live)) as live,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=errors,
            transient=True,
            disable=json_ or not errors.is_terminal,
        ) as progress,
    ):
        task = progress.add_task("looking", total=None)

        def told(done: int, of: int, what: str) -> None:
            # One more: the figures of the report come after the last check.
            progress.update(task, completed=done, total=of + 1, description=CHECKS.get(what, "adding up"))

        found = look_through(
            lake,
            url=url,
            log=None if no_log else log_name,
            fraction=fraction,
            only=only,
            live=live,
            told=told,
        )
        runs = Runs(lake)
        one = runs.begin("audit", {"fraction": fraction, "only": list(only), "problems": found.problems})
        one.rows = {check.name: check.looked for check in found.checks}
        runs.end(
            one, "done" if found.ok else "failed", None if found.ok else f"{found.problems:,} differences"
        )
    if report is not None:
        report.write_text(page(found), encoding="utf-8")
    if json_:
        as_json(found.as_value())
    else:
        _show(found, report)
    sys.exit(0 if found.ok else 1)


@contextmanager
def _live(
    url: str | None, log_name: str, clickhouse: str | None, wanted: bool
) -> Iterator[LiveStates | None]:
    """Asks the live store; None where there is none to ask, which is said."""
    if not wanted:
        yield None
        return
    where = program(None, url, log_name)
    subject = where.find(TRACE_SUMMARY.processor)
    try:
        door = Door(url, log_name).__enter__()
    except TorilError as problem:
        note(f"the live store is not asked: {problem}")
        yield None
        return
    try:
        stack = AsyncExitStack()

        async def open_all() -> Any:
            cold = await stack.enter_async_context(cold_store(clickhouse))
            return await stack.enter_async_context(where.service(subject, cold))

        try:
            service = door.do(open_all())
        except TorilError as problem:
            note(f"the live store is not asked: {problem}")
            yield None
            return

        async def one(row: Mapping[str, Any]) -> tuple[int, dict[str, Any]] | None:
            found = await service.get_projection(subject.name, row["tenant"], row["trace_id"])
            return None if found is None else (found.version, found.state.as_dict())

        async def some(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]] | None]:
            return list(await asyncio.gather(*map(one, rows)))

        try:
            yield lambda rows: door.do(some(rows))
        finally:
            door.do(stack.aclose())
    finally:
        door.close()


def _show(found: Audit, report: Path | None) -> None:
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
    if report is not None:
        aside(f"The report is in {report}.")
