"""``toril room check``: whether the promises are kept, in rooms that run."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.text import Text

from toril.cli.place import Place, on_server
from toril.cli.room.target import RoomMissing
from toril.cli.show import as_json, complain, one_line, say
from toril.connection import Connection
from toril.keyspace import SEAT_HEADS, seats_of
from toril.room import Room, room_names
from toril.room.check import RoomCheck, check_room
from toril.room.seat_check import SeatCheck, check_seats


@click.command()
@click.argument("events", metavar="[EVENT]...", nargs=-1)
@on_server
async def check(place: Place, events: tuple[str, ...]) -> None:
    """Check the promises (P1 to P11) of rooms and seats: of all, or of those named.

    By what was written down of each decision, and by counting what is there, in small steps that hold nobody
    up. Exits with 1 where one was not kept.
    """
    rooms = list(events) or await room_names(place.redis)
    found = [await _check(place.redis, name) for name in rooms]
    with_seats = {name async for key in place.redis.scan(SEAT_HEADS) if (name := seats_of(key)) is not None}
    seats = [
        await check_seats(place.redis, name) for name in sorted(with_seats) if name in events or not events
    ]
    if place.json:
        as_json({"rooms": [_room(one) for one in found], "seats": [seats_value(one) for one in seats]})
    else:
        for one in found:
            _say_room(one)
        for its in seats:
            say_seats(its)
        if not found and not seats:
            say(Text(f"No rooms at {place.redis.url}."))
    if not (all(one.ok for one in found) and all(one.ok for one in seats)):
        sys.exit(1)


async def _check(redis: Connection, name: str) -> RoomCheck:
    room = Room(redis, name)
    if not await room.exists():
        raise RoomMissing(f"there is no room {name!r} at {redis.url}: 'toril room ls' lists those there are")
    return await check_room(room)


def _say_room(one: RoomCheck) -> None:
    for violation in one.violations:
        complain(f"{one.room}: {violation}")
    past = "all" if one.whole else "the last"
    counted = f"{past} {one.entries:,} decisions, {one.waiting:,} waiting, {one.active:,} active"
    if one.forgot:
        counted += f"; {one.forgot:,} times a server died and forgot something"
    mark, what = ("✔", "P1 to P10 are kept") if one.ok else ("✘", f"{len(one.violations)} were not kept")
    say(Text(f"{mark} {one_line(one.room)}: {what} ({counted})"))


def say_seats(one: SeatCheck) -> None:
    """For people."""
    for problem in one.problems:
        complain(f"{one.event}: P11: {problem}")
    n = one.counts
    counted = f"{n.available:,} available + {n.held:,} held + {n.sold:,} sold = {n.total:,}"
    if one.moved:
        say(Text(f"? {one_line(one.event)}: seats change faster than they can be counted; try again"))
    else:
        say(Text(f"{'✔' if one.ok else '✘'} {one_line(one.event)}: seats, {counted}"))


def _room(one: RoomCheck) -> dict[str, Any]:
    return {
        "room": one.room,
        "ok": one.ok,
        "entries": one.entries,
        "whole": one.whole,
        "forgot": one.forgot,
        "waiting": one.waiting,
        "active": one.active,
        "violations": [{"promise": each.promise, "what": each.what} for each in one.violations],
    }


def seats_value(one: SeatCheck) -> dict[str, Any]:
    """For programs."""
    n = one.counts
    counts = {"total": n.total, "available": n.available, "held": n.held, "sold": n.sold}
    return {"event": one.event, "ok": one.ok, "moved": one.moved, "problems": list(one.problems)} | counts
