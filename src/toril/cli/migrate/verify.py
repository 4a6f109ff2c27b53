"""``toril migrate verify``: compare every job with its copy."""

from __future__ import annotations

import sys

import click
from rich.text import Text

from toril.cli.careful import INTERRUPTED
from toril.cli.looks import number
from toril.cli.migrate.plan import CLEAN, STATES
from toril.cli.migrate.progress import bars, interruptible
from toril.cli.migrate.target import LEFT, Target, name_workers, on_queues, show_problems
from toril.cli.show import Column, as_json, fitted_table, note, one_line, say
from toril.migrate import QueueCheck
from toril.migrate import verify as verify_queues


@click.command()
@on_queues
async def verify(at: Target) -> None:
    """Compare every job of the old queues with its copy: counts and checksums by state."""
    with bars(at.json) as told:
        checks = await interruptible(verify_queues(at.source, at.destination, at.moves, told))
    if checks is None:
        sys.exit(INTERRUPTED)
    reasons = [reason for check in checks for reason in check.reasons()]
    if at.json:
        as_json({"queues": [check.as_json() for check in checks], "safe": not reasons, "reasons": reasons})
    elif not checks:
        say(Text(CLEAN))
    else:
        _show(checks)
        for check in checks:
            name_workers(check.source, check.workers)
            show_problems(check.problems)
        if reasons:
            say(Text("Not safe to run --cleanup:", "yellow"))
            for reason in reasons:
                say(Text(f"  {one_line(reason)}"))
        else:
            say(Text("All jobs have been copied. Safe to run --cleanup.", "green"))
    if reasons:
        sys.exit(LEFT)


def _show(checks: list[QueueCheck]) -> None:
    columns = [
        Column("old name", least=20),
        Column("state"),
        Column("jobs", right=True),
        Column("the same", right=True),
        Column("gone on", right=True),
        Column("not", right=True),
    ]
    rows: list[list[str | Text]] = []
    for check in checks:
        for state in STATES:
            if total := check.old[state]:
                same, gone_on = check.same[state], check.gone_on[state]
                rows.append(
                    [
                        one_line(check.source),
                        state,
                        number(total),
                        number(same, "green"),
                        number(gone_on, "green"),
                        number(total - same - gone_on, "yellow"),
                    ]
                )
    if rows:
        fitted_table(columns, rows)
    for check in checks:
        if check.missing:
            note(f"{check.source}: {check.missing:,} only ids, without a job")
