"""``toril migrate cleanup``: remove the old keys, when that is safe."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.text import Text

from toril.cli.careful import INTERRUPTED, make_sure, yes_option
from toril.cli.migrate.plan import CLEAN
from toril.cli.migrate.progress import bars, interruptible
from toril.cli.migrate.target import LEFT, Target, on_queues, rate_option, so_many
from toril.cli.show import as_json, complain, note, one_line, say
from toril.migrate import NotSafe
from toril.migrate import cleanup as remove_old
from toril.migrate.cleaning import MANIFEST


@click.command()
@click.option(
    "--manifest",
    metavar="FILE",
    default=MANIFEST,
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write down what is removed; it is added to.",
)
@click.option("--allow-workers", is_flag=True, help="Also while old workers are connected.")
@rate_option
@yes_option
@on_queues
async def cleanup(at: Target, manifest: Path, allow_workers: bool, rate: float | None, yes: bool) -> None:
    """Remove the old keys of queues that are copied whole, in small steps.

    Everything is verified first; where something is not safe, nothing is removed. What is added meanwhile
    stays.
    """
    if not len(at.moves):
        _answer_nothing(at)
        return
    names = ", ".join(move.source.name for move in at.moves)
    await make_sure("cleanup", f"Remove the old keys of {names}, for good?", yes)
    try:
        with bars(at.json) as told:
            done = await interruptible(
                remove_old(
                    at.source,
                    at.destination,
                    at.moves,
                    manifest=manifest,
                    allow_workers=allow_workers,
                    rate=rate,
                    told=told,
                )
            )
    except NotSafe as problem:
        if at.json:
            as_json({"safe": False, "reasons": problem.reasons, "queues": []})
        else:
            for reason in problem.reasons:
                complain(reason)
            say(Text("Nothing was removed.", "yellow"))
        sys.exit(LEFT)
    if done is None:
        note(f"stopped; what was removed is in {manifest}. Run it again to go on")
        sys.exit(INTERRUPTED)
    if at.json:
        as_json({"safe": True, "queues": [each.as_json() for each in done], "manifest": str(manifest)})
    else:
        for each in done:
            say(Text(f"{one_line(each.source)}: {so_many(each.removed, 'key')} removed."))
            if each.left or each.added:
                note(
                    f"{each.source}: {so_many(each.left, 'key')} left, of {so_many(each.added)} that came "
                    "meanwhile, or not BullMQ's"
                )
        note(f"what was removed is in {manifest}")
    if any(each.added for each in done):
        sys.exit(LEFT)


def _answer_nothing(at: Target) -> None:
    if at.json:
        as_json({"safe": True, "queues": []})
    else:
        say(Text(CLEAN))
