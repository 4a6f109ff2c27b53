"""``toril lake rewind``: going on where a failover has lost what the lake has."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import click
from rich.text import Text

from toril.cli.careful import make_sure, yes_option
from toril.cli.lake.projections import interruptible
from toril.cli.lake.target import group_option, lake_options, log_option, opened, place, url_option
from toril.cli.lake.working import working
from toril.cli.show import as_json, errors, note, say
from toril.lake.rewind import LOST, Rewound
from toril.lake.rewind import rewind as take_back
from toril.lake.runs import Runs
from toril.lake.tables import EVENTS

WARNING = (
    "Events of partition {name} that the log has lost leave the table events of {place} for the table lost. "
    "The tables made of events are removed; the next 'toril lake run' makes them anew."
)


@click.command()
@click.argument("partition", metavar="PARTITION")
@click.option("--force", is_flag=True, help="Although a command seems to write: it was killed elsewhere.")
@yes_option
@group_option
@log_option
@url_option
@lake_options
def rewind(
    partition: str,
    force: bool,
    yes: bool,
    group: str,
    log_name: str,
    url: str | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Go on with a partition after a failover has lost entries that the lake has.

    The lake goes back to the last entry that log and lake both have; 'toril lake run' says which PARTITION
    (07, 2:07) needs it. Stop all that writes to the lake first. What was cut off is finished by another run.
    """
    warning = WARNING.format(name=partition, place=place(path))
    asyncio.run(make_sure("rewind", f"Rewind partition {partition}?", yes, warning=warning))
    as_lines = json_ or not errors.is_terminal
    with (
        opened(path, master, name="toril lake rewind", quiet=as_lines) as lake,
        interruptible("the same command finishes it"),
    ):
        lake.check(EVENTS)
        given = {"partition": partition, "log": log_name, "group": group, "force": force}
        with (
            Runs(lake).recorded("rewind", given) as run,
            working(lake.spark, "rewinding", quiet=as_lines),
        ):
            done = take_back(lake, partition, url=url, log=log_name, group=group, force=force, run=run.run)
            run.rows[LOST.name] = done.lost
    if as_lines:
        as_json({**asdict(done), "to": f"{done.to.ordinal}@{done.to.id}"}, indent=None)
    else:
        _show(done)


def _show(done: Rewound) -> None:
    say(Text(f"Partition {done.partition} is back at {done.to}; {done.lost:,} events are in the table lost."))
    if done.removed:
        note(f"made anew by the next 'toril lake run': {', '.join(done.removed)}")
    if done.generations:
        note(f"made of lost events as well, to be replayed again: {', '.join(done.generations)}")
