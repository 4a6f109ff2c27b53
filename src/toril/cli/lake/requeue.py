"""``toril lake requeue``: what could not be read, tried again after a fix."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict

import click
from rich.text import Text

from toril.cli.lake.projections import interruptible, program, program_of_spans
from toril.cli.lake.target import lake_options, opened
from toril.cli.lake.working import working
from toril.cli.loading import load
from toril.cli.looks import aside, number
from toril.cli.show import Column, as_json, errors, fitted_table, one_line, say
from toril.errors import InvalidValue
from toril.events import Upcasters
from toril.lake.quarantine import Requeued
from toril.lake.quarantine import requeue as try_again
from toril.lake.runs import Runs
from toril.lake.tables import QUARANTINE

UPCASTERS_RULE = "it names a module and the Upcasters in it, like shop.events:upcasters"


@click.command()
@click.option("--reason", metavar="TEXT", help="Only those whose reason begins so: data.ai.cost.")
@click.option("--event-type", metavar="TYPE", help="Only events of this type; '' for those without one.")
@click.option("--tenant", metavar="TENANT", help="Only this tenant's.")
@click.option("--upcasters", metavar="MODULE:NAME", help="By these, and not by those of a program.")
@program_of_spans
@click.option("--dry-run", is_flag=True, help="Try to read them, and change nothing.")
@lake_options
def requeue(
    reason: str | None,
    event_type: str | None,
    tenant: str | None,
    upcasters: str | None,
    program_: str | None,
    dry_run: bool,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Take up again what could not be read, after a fix.

    What can be read now becomes a batch of spans, which the tables after it find at their next run. What
    cannot stays in quarantine, with the reason of today. Cut off and run again, nothing is there twice.
    """
    if upcasters is not None and program_ is not None:
        raise InvalidValue("--upcasters", upcasters, "give --program or --upcasters, and not both")
    by = program(program_, None, "log").upcasters if upcasters is None else _upcasters(upcasters)
    as_lines = json_ or not errors.is_terminal
    with (
        opened(path, master, name="toril lake requeue", quiet=as_lines) as lake,
        interruptible("the same command tries what is left"),
    ):
        lake.check(QUARANTINE)
        given = {"reason": reason, "event_type": event_type, "dry_run": dry_run}
        recorded = nullcontext() if dry_run else Runs(lake).recorded("requeue", given)
        with recorded as run, working(lake.spark, "reading", quiet=as_lines):
            done = try_again(
                lake,
                reason=reason,
                event_type=event_type,
                tenant=tenant,
                upcasters=by,
                dry_run=dry_run,
                run="" if run is None else run.run,
            )
            if run is not None:
                run.rows["spans"] = done.read
    if as_lines:
        as_json({**asdict(done), "refused": done.refused, "dry_run": dry_run}, indent=None)
    else:
        _show(done, dry_run)


def _upcasters(said: str) -> Upcasters:
    found = load("--upcasters", said, UPCASTERS_RULE)
    if not isinstance(found, Upcasters):
        raise InvalidValue("--upcasters", said, UPCASTERS_RULE)
    return found


def _show(done: Requeued, dry_run: bool) -> None:
    if not done.tried:
        say(Text("Nothing of that kind is in quarantine."))
        return
    are = "would become spans" if dry_run else "are spans now"
    say(Text(f"{done.read:,} of {done.tried:,} {are}."))
    if done.reasons:
        rows: list[list[str | Text]] = [
            [number(count), one_line(reason)] for reason, count in done.reasons.items()
        ]
        fitted_table([Column("events", right=True), Column("why they are not", least=20)], rows)
    if dry_run:
        aside("Nothing was changed.")
