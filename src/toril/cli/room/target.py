"""Which room a command works on, and where: EVENT, --url and --json, the same everywhere."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import click

from toril.connection import Connection, connect
from toril.errors import TorilError
from toril.room import Room


class RoomMissing(TorilError):
    """There is no such room."""


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and how to answer."""

    redis: Connection
    json: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A room, and how to answer."""

    room: Room
    json: bool


Command = Callable[..., Any]

event_argument = click.argument("event")
"""Comes first in every command on a room. ``on_room`` comes last, and so do the options it adds."""


def on_server(work: Callable[..., Awaitable[None]]) -> Command:
    """A command on a server: gives ``work`` a :class:`Place`."""

    @click.option("--url", help="The server (default: TORIL_REDIS_URL, else the embedded one).")
    @click.option("--json", "json_", is_flag=True, help="Print JSON.")
    @functools.wraps(work)
    def run(url: str | None, json_: bool, **given: Any) -> None:
        async def connected() -> None:
            async with connect(url) as redis:
                await work(Place(redis, json_), **given)

        asyncio.run(connected())

    return run


def on_room(work: Callable[..., Awaitable[None]]) -> Command:
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
