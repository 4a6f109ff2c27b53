"""``toril lake erase``: a tenant removed from the tables and from their history."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import click
from rich.text import Text

from toril.aggregate import check_tenant
from toril.cli.careful import make_sure_by_name, yes_option
from toril.cli.lake.projections import interruptible
from toril.cli.lake.target import lake_options, listed, opened, place
from toril.cli.lake.working import working
from toril.cli.looks import number, size
from toril.cli.show import Column, as_json, errors, fitted_table, note, say
from toril.lake.erase import ErasedFromLake, ErasedTable, would_erase
from toril.lake.erase import erase as erase_from
from toril.lake.problems import one_line as said_of
from toril.lake.runs import Runs

WARNING = (
    "This removes all rows of tenant {name} from the lake {place}, and all former versions of its tables, "
    "for good. Readers of former versions fail from then on; a batch that is being written begins anew."
)


@click.command()
@click.argument("tenant", metavar="TENANT")
@click.option("--dry-run", is_flag=True, help="Say which rows would go, and change nothing.")
@yes_option
@lake_options
def erase(tenant: str, dry_run: bool, yes: bool, path: str | None, master: str | None, json_: bool) -> None:
    """Remove a tenant from the tables and from their history, for good.

    From every table, the files of former versions, the change feed, and the statistics in the tables' logs.
    Erase it from the log first ('toril tenant erase'): what the log still has would be archived again. What
    was cut off is finished by another run.
    """
    check_tenant(tenant)
    where = place(path)
    as_lines = json_ or not errors.is_terminal
    if dry_run:
        _look(tenant, path, master, as_lines=as_lines)
        return
    asyncio.run(make_sure_by_name("erase", WARNING.format(name=tenant, place=where), tenant, yes))
    with (
        opened(path, master, name="toril lake erase", quiet=as_lines) as lake,
        interruptible("some of it is still there: the same command finishes it"),
        # Without the name, also in what went wrong: it would be the next thing to erase.
        Runs(lake).recorded("erase", {}, if_there=True) as run,
    ):
        try:
            with working(lake.spark, "looking at the tables", quiet=as_lines) as shown:
                report = erase_from(lake, tenant, shown.step, run=run.run)
        except Exception as problem:
            run.problem = said_of(problem).replace(tenant, "…")
            raise
        run.rows = {table.table: table.rows for table in report.tables}
    if as_lines:
        as_json({"lake": where, "rows": report.rows, **asdict(report)}, indent=None)
    else:
        _show(report, where)


def _look(tenant: str, path: str | None, master: str | None, *, as_lines: bool) -> None:
    """What would go."""
    with (
        opened(path, master, name="toril lake erase", quiet=as_lines) as lake,
        working(lake.spark, "looking at the tables", quiet=as_lines) as shown,
    ):
        found = would_erase(lake, tenant, shown.step)
    if as_lines:
        tables = [{"table": one.table, "rows": one.rows, "whole": one.whole} for one in found.tables]
        said = {"lake": place(path), "dry_run": True, "rows": found.rows, "tables": tables}
        as_json({**said, "remains": found.remains}, indent=None)
        return
    fitted_table(
        [Column("table", least=12), Column("rows", right=True)],
        [[_named(one), number(one.rows)] for one in found.tables],
    )
    note("nothing was changed; former versions of these tables, and their history, would go as well")
    for text in found.remains:
        note(f"remains: {text}")


def _named(one: ErasedTable) -> str:
    return listed(one.table) + (" (all of it)" if one.whole else "")


def _show(report: ErasedFromLake, where: str) -> None:
    if not report.tables:
        say(Text(f"No table in {where} has tenants: nothing was removed."))
    else:
        fitted_table(
            [
                Column("table", least=12),
                Column("rows", right=True),
                Column("files", right=True),
                Column("of the log", right=True, leave=1),
                Column("bytes", right=True),
            ],
            [
                [
                    _named(one),
                    number(one.rows),
                    number(one.files),
                    number(one.log_files),
                    size(one.bytes),
                ]
                for one in report.tables
            ],
        )
    for text in report.remains:
        note(f"remains: {text}")
