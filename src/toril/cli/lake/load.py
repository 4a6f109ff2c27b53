"""``toril lake load``: tables of the lake copied into tables of ClickHouse."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

import click

from toril.cli.lake.projections import interruptible
from toril.cli.lake.target import lake_options, opened
from toril.cli.lake.working import working
from toril.cli.looks import aside, number
from toril.cli.show import Column, as_json, errors, fitted_table, note, one_line
from toril.errors import InvalidValue
from toril.lake.lake import Lake
from toril.lake.runs import Runs
from toril.lake.serving import KEYS, Loaded
from toril.lake.serving import load as load_into
from toril.lake.tables import EVENTS
from toril.stores.clickhouse import Database

DEFAULT = ("trace_summaries", "rollups")


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--clickhouse", envvar="TORIL_CLICKHOUSE_URL", metavar="URL", help="A server (TORIL_CLICKHOUSE_URL)."
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Instead of a server: where an engine keeps its data.",
)
@lake_options
def load(
    tables: tuple[str, ...],
    clickhouse: str | None,
    directory: Path | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Load gold tables into ClickHouse.

    trace_summaries and rollups (or those that are named) come into lake_trace_summaries and lake_rollups:
    what is new since the last time, each row once. Tenants that were erased from the lake are erased there.
    What was loaded from another lake, or from tables that were made anew since, is replaced by what is here.
    It can be stopped and repeated. Read the tables with FINAL.

    'toril lake sql --views' gives the SQL for a ClickHouse that reads the lake's own files instead.
    """
    for name in tables:
        if name not in KEYS:
            raise InvalidValue("TABLE", name, f"one of {', '.join(KEYS)}")
    if (clickhouse is None) == (directory is None):
        raise InvalidValue("clickhouse", clickhouse or "none", "one of --clickhouse URL and --directory PATH")
    as_lines = json_ or not errors.is_terminal
    with (
        opened(path, master, name="toril lake load", quiet=as_lines) as lake,
        interruptible("the same command goes on where it was"),
    ):
        lake.check(EVENTS)
        with Runs(lake).recorded("load", {"tables": list(tables)}) as run:
            done = asyncio.run(_load(lake, tables or DEFAULT, clickhouse, directory, quiet=as_lines))
            run.rows = {one.table: one.rows for one in done}
    if as_lines:
        as_json({"tables": [asdict(one) for one in done]}, indent=None)
        return
    fitted_table(
        [
            Column("table", least=12),
            Column("rows", right=True),
            Column("removed", right=True),
            Column("batch", right=True),
        ],
        [[one_line(one.table), number(one.rows), number(one.removed), number(one.batch)] for one in done],
    )
    aside("Rows that were new or had changed. Read the tables with FINAL.")


async def _load(
    lake: Lake, tables: tuple[str, ...], url: str | None, directory: Path | None, *, quiet: bool
) -> list[Loaded]:
    done: list[Loaded] = []
    async with await Database.open(url, directory=directory) as database:
        for name in tables:
            if name in DEFAULT and not lake.exists(name):
                note(f"there is no table {name} in {lake.path} yet")
                continue
            with working(lake.spark, f"loading {name}", quiet=quiet) as shown:
                done.append(await load_into(lake, database, name, told=shown.rows))
    return done
