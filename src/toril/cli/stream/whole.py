"""Acting on a whole queue: pause, resume, trim."""

from __future__ import annotations

import click
from rich.text import Text

from toril.cli.show import as_json, complain, one_line, say
from toril.cli.stream.looks import so_many
from toril.cli.stream.target import Target, name_argument, on_queue


@click.command()
@name_argument
@on_queue
async def pause(at: Target) -> None:
    """Stop all workers from taking jobs. What they have, they finish; jobs may be added."""
    await _switch(at, "paused")


@click.command()
@name_argument
@on_queue
async def resume(at: Target) -> None:
    """Let workers take jobs again."""
    await _switch(at, "resumed")


async def _switch(at: Target, to: str) -> None:
    changed = (await at.queue.metrics()).total.paused != (to == "paused")
    # Also where it seems done: another partition may have been left out.
    await (at.queue.pause() if to == "paused" else at.queue.resume())
    if at.json:
        as_json({"queue": at.name, "paused": to == "paused", "changed": changed})
        return
    what = f"is {to}" if changed else "was paused already" if to == "paused" else "was not paused"
    say(Text(f"{one_line(at.name)} {what}."))


@click.command()
@name_argument
@on_queue
async def trim(at: Target) -> None:
    """Free what is done with and still takes up room.

    Workers do this by themselves. No job that waits or runs is ever trimmed. Jobs that somebody else has
    deleted before they were done are counted, and told.
    """
    trimmed = lost = 0
    for store in (await at.queue.open()).stores:
        gone, missed = await store.upkeep()
        trimmed, lost = trimmed + gone, lost + missed
    if at.json:
        as_json({"queue": at.name, "trimmed": trimmed, "lost": lost})
        return
    say(Text(f"{trimmed:,} {'entry' if trimmed == 1 else 'entries'} trimmed."))
    if lost:
        were, they_were = ("was", "it was") if lost == 1 else ("were", "they were")
        complain(f"{so_many(lost)} of {at.name!r} {were} deleted by somebody before {they_were} done")
