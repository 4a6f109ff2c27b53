"""Which room a command works on, and where: EVENT, --url and --json, the same everywhere."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import click

from toril.cli.place import Command, Place, Work, on_server
from toril.errors import TorilError
from toril.room import Room


class RoomMissing(TorilError):
    """There is no such room."""


@dataclass(frozen=True, slots=True)
class Target:
    """A room, and how to answer."""

    room: Room
    json: bool


event_argument = click.argument("event")
"""Comes first in every command on a room. ``on_room`` comes last, and so do the options it adds."""


def on_room(work: Work) -> Command:
    """A command on a room that exists: gives ``work`` a :class:`Target`."""

    @functools.wraps(work)
    async def found(place: Place, event: str, **given: Any) -> None:
        room = Room(place.redis, event)
        if not await room.exists():
            raise RoomMissing(
                f"there is no room {event!r} at {place.redis.url}: 'toril room ls' lists those there are"
            )
        await work(Target(room, place.json), **given)

    return on_server(found)
