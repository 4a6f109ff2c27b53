"""``toril room seats …``: the seats of an event."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click
from rich.text import Text

from toril.cli.careful import make_sure_by_name, yes_option
from toril.cli.looks import InOrder
from toril.cli.place import Place, on_server
from toril.cli.room.check import say_seats, seats_value
from toril.cli.room.target import event_argument
from toril.cli.show import as_json, one_line, say
from toril.errors import InvalidValue
from toril.room.seat_check import check_seats
from toril.room.seats import Seats

MOST = 1_000_000


@click.group(cls=InOrder)
def seats() -> None:
    """The seats of an event."""


@seats.command()
@event_argument
@on_server
async def show(place: Place, event: str) -> None:
    """How many seats there are."""
    n = await Seats(place.redis, event).counts()
    if place.json:
        as_json({"event": event, "total": n.total, "available": n.available, "held": n.held, "sold": n.sold})
        return
    say(
        Text(
            f"{one_line(event)}: {n.available:,} available + {n.held:,} held + {n.sold:,} sold = {n.total:,}"
        )
    )


@seats.command()
@event_argument
@click.argument("names", nargs=-1, required=True)
@on_server
async def add(place: Place, event: str, names: tuple[str, ...]) -> None:
    """Add seats: A-1 A-2, or a row of them, A-1..40; '-' reads names from stdin, one a line."""
    wanted = list(_spelled_out(names))
    new = await Seats(place.redis, event).add(wanted)
    if place.json:
        as_json({"event": event, "added": new, "there_already": len(wanted) - new})
    else:
        say(Text(f"{new:,} seats were added to {one_line(event)}; {len(wanted) - new:,} were there already."))


@seats.command()
@event_argument
@on_server
async def sweep(place: Place, event: str) -> None:
    """Give back the seats of holds that have ended. Who wants one of them need not wait for this."""
    its, swept = Seats(place.redis, event), 0
    while step := await its.sweep():
        swept += step
    if place.json:
        as_json({"event": event, "holds": swept})
    else:
        say(Text(f"{swept:,} holds have ended."))


@seats.command()
@event_argument
@on_server
async def check(place: Place, event: str) -> None:
    """Count all seats, and follow all holds; exits with 1 where something is wrong."""
    found = await check_seats(place.redis, event)
    if place.json:
        as_json(seats_value(found))
    else:
        say_seats(found)
    if not found.ok:
        sys.exit(1)


@seats.command()
@event_argument
@yes_option
@on_server
async def reset(place: Place, event: str, yes: bool) -> None:
    """Remove all seats of an event, with holds and sales."""
    its = Seats(place.redis, event)
    n = await its.counts()
    warning = f"This removes {n.total:,} seats of {event}: {n.sold:,} of them are sold, {n.held:,} are held."
    await make_sure_by_name("reset", warning, event, yes)
    removed = await its.reset()
    if place.json:
        as_json({"event": event, "removed": removed})
    else:
        say(Text(f"{removed:,} seats were removed."))


def _spelled_out(names: Iterable[str]) -> Iterable[str]:
    """``A-1..3`` is A-1, A-2 and A-3."""
    for name in names:
        if name == "-":
            yield from (line.strip() for line in sys.stdin if line.strip())
            continue
        start, dots, last = name.partition("..")
        if not dots:
            yield name
            continue
        row = start.rstrip("0123456789")
        first = start.removeprefix(row)
        if not first or not last.isdecimal() or not int(first) <= int(last) < int(first) + MOST:
            raise InvalidValue("seats", name, "a row like A-1..40")
        yield from (f"{row}{number}" for number in range(int(first), int(last) + 1))
