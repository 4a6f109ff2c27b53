"""``toril lake runs``: what was run on a lake, and what became of it."""

from __future__ import annotations

import time

import click
import msgspec
from rich.text import Text

from toril.cli.lake.target import lake_options, opened
from toril.cli.looks import aside, number
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.cli.times import ago, span, whole
from toril.lake.runs import OneRun, Runs

_STYLES = {"running": "cyan", "done": "green", "stopped": "yellow", "failed": "red", "gone": "red"}


@click.command("runs")
@click.option(
    "--limit",
    default="20",
    show_default=True,
    metavar="N",
    callback=whole("--limit", 1, 10_000),
    help="How many, the latest first.",
)
@click.option("--ended", metavar="RUN", help="Note that a run has ended which was killed elsewhere.")
@lake_options
def runs(limit: int, ended: str | None, path: str | None, master: str | None, json_: bool) -> None:
    """What was run: when, by which version, how many rows, how long.

    A run whose process was killed never said that it ended: on the machine where it ran, it is shown as gone.
    """
    with opened(path, master, quiet=json_) as lake:
        if ended is not None:
            Runs(lake).note_ended(ended)
        found = Runs(lake).last(limit)
        where = lake.path
    if json_:
        as_json({"lake": where, "runs": [{**msgspec.to_builtins(one), "gone": one.is_gone} for one in found]})
    elif found:
        _show(found)
    else:
        say(Text(f"Nothing was run on {where} yet."))


def _show(found: list[OneRun]) -> None:
    now = time.time_ns() // 1_000_000
    columns = [
        Column("run", least=15),
        Column("what"),
        Column("began"),
        Column("took", right=True, leave=2),
        Column("rows", right=True),
        Column("version", leave=4),
        Column("host", least=8, leave=3),
        Column("outcome"),
        Column("problem", least=12, leave=1),
    ]
    rows: list[list[str | Text]] = []
    for one in found:
        outcome = "gone" if one.is_gone else one.outcome
        took = "" if one.ended_at is None else span((one.ended_at - one.started_at) // 1_000_000)
        rows.append(
            [
                one_line(one.run),
                one_line(one.what),
                ago(one.started_at // 1_000_000, now),
                took,
                number(max(one.rows.values(), default=0)),
                one_line(one.code),
                one_line(one.host),
                Text(outcome, _STYLES.get(outcome, "")),
                Text(one_line(one.problem or ""), "dim"),
            ]
        )
    left_out = fitted_table(columns, rows)
    if left_out:
        aside(f"No room for: {', '.join(left_out)}.")
