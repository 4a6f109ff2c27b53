"""``toril lake tables``: the tables, their sizes, and how far each is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.text import Text

from toril.cli.lake.target import lake_options, listed, log_option, opened, url_option
from toril.cli.looks import aside, number, size
from toril.cli.show import Column, as_json, fitted_table, note, say
from toril.connection.errors import ConnectionFailed, EmbeddedServerError
from toril.errors import InvalidValue
from toril.lake.erasures import ERASURES
from toril.lake.generations import generations
from toril.lake.lake import Lake
from toril.lake.rewind import LOST
from toril.lake.runs import RUNS
from toril.lake.source import Marks, between, tails
from toril.lake.summaries import TRACE_SUMMARIES
from toril.lake.tables import EVENTS, QUARANTINE, ROLLUPS, SPANS

FED = (EVENTS.name, SPANS.name, QUARANTINE.name, TRACE_SUMMARIES.name, ROLLUPS.name)
"""Those that follow the log, batch by batch."""

NAMES = (*FED, RUNS.name, ERASURES.name, LOST.name)


@dataclass(frozen=True, slots=True)
class Seen:
    """A table as it is shown."""

    name: str
    rows: int
    files: int
    bytes: int
    version: int
    batch: int | None
    """None: it is not fed in batches."""
    behind: int | None
    """Events of the log that are not in it; None where that is not known."""


@click.command("tables")
@log_option
@url_option
@lake_options
def tables(log_name: str, url: str | None, path: str | None, master: str | None, json_: bool) -> None:
    """The tables, their sizes, and how far each is; generations that are not retired among them.

    Behind is counted in events of the log. Where the log cannot be asked, the rest is shown all the same.
    """
    there = _tails(url, log_name)
    with opened(path, master, quiet=json_) as lake:
        found = [_look(lake, name, there) for name in known(lake)]
        where = lake.path
    if json_:
        as_json({"lake": where, "tables": [asdict(one) for one in found]})
    elif found:
        _show(found)
    else:
        say(Text(f"No tables in {where} yet: `toril lake run` makes them."))


def known(lake: Lake) -> list[str]:
    """The tables of Toril's that are there, without those of retired generations."""
    names = [name for name in NAMES if lake.exists(name)]
    return names + [one.plan.name for one in generations(lake) if one.state != "retired"]


def _tails(url: str | None, log_name: str) -> Marks | None:
    try:
        return tails(url, log_name)
    except (ConnectionFailed, EmbeddedServerError, InvalidValue) as problem:
        note(f"how far the log is cannot be told: {problem}")
        return None


def _look(lake: Lake, name: str, there: Marks | None) -> Seen:
    detail: Any = lake.spark.sql(f"DESCRIBE DETAIL {lake.sql_name(name)}").first()
    last = lake.last(name)
    fed = name in FED and last.batch > 0
    return Seen(
        name,
        lake.read(name).count(),  # from the statistics of the files
        detail["numFiles"],
        detail["sizeInBytes"],
        lake.version(name),
        last.batch if fed else None,
        between(last.positions, there) if fed and there is not None else None,
    )


def _show(found: list[Seen]) -> None:
    columns = [
        Column("table", least=12),
        Column("rows", right=True),
        Column("files", right=True, leave=2),
        Column("size", right=True, leave=1),
        Column("version", right=True, leave=4),
        Column("batch", right=True, leave=3),
        Column("behind", right=True),
    ]
    rows: list[list[str | Text]] = [
        [
            listed(one.name),
            number(one.rows),
            number(one.files),
            size(one.bytes),
            number(one.version),
            Text("") if one.batch is None else number(one.batch),
            Text("") if one.batch is None else number(one.behind),
        ]
        for one in found
    ]
    left_out = fitted_table(columns, rows)
    if left_out:
        aside(f"No room for: {', '.join(left_out)}.")
