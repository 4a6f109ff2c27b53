"""``toril migrate rollback``: give back what the new queues have not finished."""

from __future__ import annotations

import sys

import click
from rich.text import Text

from toril.cli.careful import INTERRUPTED, make_sure, yes_option
from toril.cli.migrate.progress import bars, interruptible
from toril.cli.migrate.target import LEFT, Target, on_queues, rate_option, show_problems, so_many
from toril.cli.show import as_json, note, one_line, say
from toril.migrate import rollback as give_back


@click.command()
@rate_option
@yes_option
@on_queues
async def rollback(at: Target, rate: float | None, yes: bool) -> None:
    """Give back what the new queues have not finished: each job to its old place.

    What they have finished leaves the old queues. The new queues are paused meanwhile; the old ones go on
    when all is back.
    """
    names = ", ".join(move.destination.name for move in at.moves)
    await make_sure("rollback", f"Give back what {names} have not finished?", yes)
    with bars(at.json) as told:
        done = await interruptible(give_back(at.source, at.destination, at.moves, told, rate=rate))
    if done is None:
        note("stopped: run it again to go on")
        sys.exit(INTERRUPTED)
    whole = all(each.whole for each in done)
    if at.json:
        as_json({"queues": [each.as_json() for each in done], "whole": whole})
    else:
        for each in done:
            finished = f", {each.done:,} were finished in {each.destination}" if each.done else ""
            goes_on = "; it goes on" if each.resumed else ""
            say(Text(f"{one_line(each.source)}: {so_many(each.back)} back{finished}{goes_on}."))
            if each.busy:
                note(f"{each.destination}: {so_many(each.busy)} being worked on: run it again later")
            if each.own:
                note(f"{each.destination}: {so_many(each.own)} added under the new name stay there")
            show_problems(each.problems)
    if not whole:
        sys.exit(LEFT)
