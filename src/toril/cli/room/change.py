"""Acting on a room: pause, resume, start, revoke, reset."""

from __future__ import annotations

import click
from rich.text import Text

from toril.cli.careful import make_sure, yes_option
from toril.cli.room.target import Target, event_argument, on_room
from toril.cli.show import as_json, one_line, say


@click.command()
@event_argument
@on_room
async def pause(at: Target) -> None:
    """Let nobody in. People can join, and keep their places."""
    await at.room.pause()
    _say(at, {"paused": True}, "is paused")


@click.command()
@event_argument
@on_room
async def resume(at: Target) -> None:
    """Let people in again."""
    await at.room.resume()
    _say(at, {"paused": False}, "goes on")


@click.command()
@event_argument
@on_room
async def start(at: Target) -> None:
    """Open a room that gathers people: the order of those who are there is drawn."""
    await at.room.start()
    seed = await at.room.seed()
    _say(at, {"started": True, "seed": seed}, f"is open; its order is drawn with {seed}")


@click.command()
@event_argument
@click.argument("session")
@on_room
async def revoke(at: Target, session: str) -> None:
    """Send somebody away, by the id of the ticket or the session (evt.0.m17)."""
    ticket = await at.room.revoke(session)
    _say(at, {"session": session, "state": ticket.state}, f"{session} is {ticket.state}")


@click.command()
@event_argument
@yes_option
@on_room
async def reset(at: Target, yes: bool) -> None:
    """Send everybody away, and begin anew with the same settings."""
    lanes = (await at.room.stats()).lanes.values()
    waiting, active = sum(lane.waiting for lane in lanes), sum(lane.active for lane in lanes)
    question = f"Send away {waiting:,} who wait in {at.room.name} and {active:,} who are inside?"
    await make_sure("reset", question, yes)
    sent = await at.room.reset()
    _say(at, {"sent_away": sent}, f"is empty: {sent:,} were sent away")


def _say(at: Target, value: dict[str, object], text: str) -> None:
    if at.json:
        as_json({"room": at.room.name} | value)
    else:
        say(Text(f"{one_line(at.room.name)} {text}."))
