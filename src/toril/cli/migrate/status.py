"""``toril migrate status``: which migrations there are, and how far they are."""

from __future__ import annotations

import time

import click
from rich.text import Text

from toril.cli.looks import number
from toril.cli.migrate.target import Journey, on_servers
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.cli.times import ago
from toril.migrate import status as look


@click.command()
@on_servers
async def status(at: Journey) -> None:
    """List the migrations, and how far they are. Nothing is changed."""
    found = await look(at.source, at.destination, at.to_prefix)
    if at.json:
        as_json([each.as_json() for each in found])
        return
    if not found:
        say(Text("There are no migrations."))
        return
    now = time.time_ns() // 1_000_000
    columns = [
        Column("old queue", least=20),
        Column("new queue", least=24),
        Column("phase"),
        Column("began", right=True, leave=2),
        Column("moved", right=True),
        Column("old jobs", right=True),
        Column("new jobs", right=True),
        Column("old is", leave=1),
    ]
    fitted_table(
        columns,
        [
            [
                one_line(each.source),
                one_line(each.destination),
                each.phase,
                ago(each.began * 1000, now),
                number(each.tracked),
                number(each.old),
                number(each.new),
                "gone" if each.phase == "cleaned" else "paused" if each.paused else "open",
            ]
            for each in found
        ],
    )
