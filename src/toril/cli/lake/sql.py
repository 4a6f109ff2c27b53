"""``toril lake sql``: a question to the tables, and its answer on the terminal."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.text import Text

from toril.cli.lake.tables import known
from toril.cli.lake.target import lake_options, opened, place
from toril.cli.looks import aside
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.cli.times import whole
from toril.errors import InvalidValue
from toril.lake.errors import LakeError
from toril.lake.files import tables_in
from toril.lake.lake import Lake
from toril.lake.serving import Answer, ask, ask_spark, check_statement, has_clickhouse, source_sql, views
from toril.lake.sessions import is_remote
from toril.lake.storage import LocalFiles, local_folder

LONGEST = 200
"""Letters of a text in a cell; all of it is in --json."""


@click.command()
@click.argument("statement", required=False)
@click.option(
    "--engine",
    type=click.Choice(["clickhouse", "spark"]),
    help="Who is asked: ClickHouse where it is installed, which is much sooner; else Spark.",
)
@click.option(
    "--limit",
    default="100",
    show_default=True,
    metavar="N",
    callback=whole("--limit", 1, 100_000),
    help="Rows, at most.",
)
@click.option("--views", "show_views", is_flag=True, help="Print the SQL for a ClickHouse server instead.")
@lake_options
def sql(
    statement: str | None,
    engine: str | None,
    limit: int,
    show_views: bool,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Ask the tables something, and see the answer here.

    STATEMENT is a SELECT (or WITH, DESCRIBE, SHOW) in which tables have their own names, such as

      toril lake sql "SELECT model, sum(cost) / 1e9 AS usd FROM rollups WHERE grain = 'day' GROUP BY model"

    It may only look. With '-', or without one, it is read from the standard input.
    """
    where = place(path)
    folder = local_folder(where)
    if show_views:
        # For a place that ClickHouse cannot reach, before Spark is started.
        source_sql(where)
        if folder is not None:
            names = _tables(where)
        else:
            with opened(path, master, name="toril lake sql") as lake:
                names = _listed(lake)
        # As it is, however wide the screen: it is to be copied.
        click.echo(";\n".join(views(where, names)) + ";")
        return
    text = sys.stdin.read() if statement in (None, "-") else statement
    assert text is not None
    check_statement(text)
    if engine is None:
        engine = "clickhouse" if has_clickhouse() and folder is not None else "spark"
    if engine == "clickhouse":
        if not has_clickhouse():
            raise InvalidValue("--engine", engine, "it is not installed: pip install 'toril[clickhouse]'")
        found = ask(where, _tables(where), text, most=limit)
    else:
        with opened(path, master, name="toril lake sql", quiet=json_) as lake:
            found = ask_spark(lake, _listed(lake), text, most=limit)
    if json_:
        _as_json(found)
    else:
        _show(found, limit)


def _listed(lake: Lake) -> list[str]:
    # The files of a server cannot be listed: of its tables, those are found whose names are known.
    return known(lake) if is_remote(lake.spark) else tables_in(lake)


def _tables(where: str) -> list[str]:
    folder = local_folder(where)
    if folder is None:
        raise InvalidValue(
            "--lake", where, "ClickHouse is asked about folders of this machine; use --engine spark"
        )
    if not folder.is_dir():
        raise LakeError(
            f"there is no lake at {where} on this machine: `toril lake run` makes it; of one that only Spark "
            "can reach, ask with --engine spark"
        )
    return tables_in(LocalFiles(folder))


def _as_json(found: Answer) -> None:
    rows = [dict(zip(found.columns, map(_plain, row), strict=True)) for row in found.rows]
    as_json({"columns": dict(zip(found.columns, found.types, strict=True)), "rows": rows, "more": found.more})


def _plain(value: Any) -> Any:
    """A value as JSON can say it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return value.decode(errors="replace") if isinstance(value, (bytes, bytearray)) else str(value)
    return value


def _show(found: Answer, limit: int) -> None:
    if not found.columns:
        say(Text("No answer: the statement gives no rows."))
        return
    numbers = [_is_number(kind) for kind in found.types]
    columns = [
        Column(one_line(name), right=right, least=None if right else 8)
        for name, right in zip(found.columns, numbers, strict=True)
    ]
    fitted_table(columns, [[_cell(value) for value in row] for row in found.rows])
    if found.more:
        aside(f"The first {limit:,} rows; there are more (--limit).")
    elif not found.rows:
        aside("No rows.")


def _is_number(kind: str) -> bool:
    plain = kind.removeprefix("Nullable(").removeprefix("LowCardinality(").lower()
    return plain.startswith(("int", "uint", "float", "decimal", "bigint", "double", "smallint", "tinyint"))


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", style="dim")
    if isinstance(value, bool):
        return Text(str(value).lower())
    if isinstance(value, int):
        return Text(f"{value:,}")
    if isinstance(value, float):
        return Text(f"{value:,.6g}")
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value).decode(errors="replace")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return Text(one_line(short))
