"""``toril migrate plan``: what would be moved where, and how far that is. Changes nothing."""

from __future__ import annotations

import click
from rich.text import Text

from toril.cli.looks import aside, number
from toril.cli.migrate.target import Target, name_workers, on_queues, so_many
from toril.cli.show import Column, as_json, fitted_table, note, one_line, say
from toril.migrate import Plan, make_plan
from toril.migrate import verify as verify_queues

STATES = ("waiting", "prioritized", "delayed", "waiting-children", "active", "failed", "completed")
_SHORT = {"prioritized": "priority", "waiting-children": "children"}
_LEAVE = {"completed": 6, "failed": 5, "active": 4, "waiting-children": 3, "prioritized": 2, "delayed": 2}

CLEAN = "There are no queues without a hash tag. Migration is clean."


@click.command()
@on_queues
async def plan(at: Target) -> None:
    """Say what would be moved where, and what was moved. Nothing is changed."""
    made = await make_plan(at.source, at.destination, at.moves, at.groups)
    safe = await _is_safe(at, made)
    if at.json:
        as_json(
            {
                "queues": [queue.as_json() for queue in made.queues],
                "groups": [group for group in at.groups if len(group) > 1],
                "copied": made.copied,
                "pending": made.pending,
                "safe_to_clean_up": safe,
            }
        )
        return
    if not made.queues:
        say(Text(CLEAN))
        return
    _show(made)
    for group in at.groups:
        if len(group) > 1:
            aside(f"Flows link {', '.join(group)}: they move together, under one tag.")
    for queue in made.queues:
        name_workers(queue.source, queue.workers)
    say(Text(f"{made.copied:,} already copied, {made.pending:,} pending."))
    if safe:
        say(Text("All jobs have been copied. Safe to run --cleanup.", "green"))
    elif made.copied and not made.pending:
        note("'toril migrate verify' says what differs")
    elif made.pending:
        note("nothing was changed: 'toril migrate copy' copies them")


async def _is_safe(at: Target, made: Plan) -> bool:
    """Whether everything was copied, and is as it should be."""
    if not made.queues or made.pending or not all(queue.phase == "copying" for queue in made.queues):
        return False
    checks = await verify_queues(at.source, at.destination, at.moves)
    return not any(check.reasons() for check in checks)


def _show(made: Plan) -> None:
    states = [state for state in STATES if any(queue.counts[state] for queue in made.queues)]
    schedulers = [Column("schedulers", right=True, leave=7)] if any(q.schedulers for q in made.queues) else []
    columns = [
        Column("old name", least=20),
        Column("new name", least=24),
        Column("slot", right=True, leave=8),
        *(Column(_SHORT.get(state, state), right=True, leave=_LEAVE.get(state, 1)) for state in states),
        *schedulers,
        Column("copied", right=True),
        Column("pending", right=True),
    ]
    rows: list[list[str | Text]] = [
        [
            one_line(queue.source),
            one_line(queue.destination),
            str(queue.slot),
            *(number(queue.counts[state]) for state in states),
            *(number(queue.schedulers) for _ in schedulers),
            number(queue.copied, "green"),
            number(queue.pending, "yellow"),
        ]
        for queue in made.queues
    ]
    left_out = fitted_table(columns, rows)
    if left_out:
        aside(f"A wider screen shows {', '.join(left_out)} too.")
    aside(f"{so_many(len(made.queues), 'queue')} without a hash tag.")
