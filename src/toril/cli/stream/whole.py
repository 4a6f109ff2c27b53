"""Acting on a whole queue: pause, resume, trim."""

from __future__ import annotations

import click
from rich.text import Text

from toril.cli.pausing import Switched
from toril.cli.show import as_json, complain, say
from toril.cli.stream.looks import so_many
from toril.cli.stream.target import Target, name_argument, on_queue


@click.command()
@name_argument
@on_queue
async def pause(at: Target) -> None:
    """Stop all workers from taking jobs. What they have, they finish; jobs may be added."""
    changed = not await _is_paused(at)
    await at.queue.pause()
    Switched(at.name, paused=True, changed=changed).tell(at.json)


@click.command()
@name_argument
@on_queue
async def resume(at: Target) -> None:
    """Let workers take jobs again."""
    changed = await _is_paused(at)
    await at.queue.resume()
    Switched(at.name, paused=False, changed=changed).tell(at.json)


async def _is_paused(at: Target) -> bool:
    """Whether it seems so. A partition may have been left out, hence it is switched in any case."""
    return (await at.queue.metrics()).total.paused


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
