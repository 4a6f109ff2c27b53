"""``toril room create`` and ``configure``: the settings of a room."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, get_args

import click
from rich.text import Text

from toril.cli.place import Command, Place, on_server
from toril.cli.room.look import value_of
from toril.cli.room.target import Target, event_argument, on_room
from toril.cli.show import as_json, one_line, say
from toril.cli.times import duration, whole
from toril.errors import InvalidValue
from toril.room import LaneSettings, Mode, Room, Settings

PATIENCE = timedelta(minutes=5)
"""Browsers let a page that nobody looks at do something once in a minute."""


def _lane_options(command: Command) -> Command:
    for prefix, what in (("vip-", "past the line"), ("", "")):
        whose = f" of those who are sent {what}" if what else ""
        for option in (
            click.option(f"--{prefix}max-active", callback=whole("max-active", 0, 10**9), metavar="N",
                         help=f"How many may be inside at a time{whose}."),
            click.option(f"--{prefix}burst", callback=whole("burst", 1, 10**6), metavar="N",
                         help=f"Admissions at once after a quiet time{whose}."),
            click.option(f"--{prefix}rate", type=float, metavar="N", help=f"Admissions per second{whose}."),
        ):  # fmt: skip
            command = option(command)
    return command


def _settings_options(command: Command) -> Command:
    for option in (
        click.option("--target", metavar="URL", help="Where the waiting page goes on to."),
        click.option("--title", metavar="TEXT", help="What the waiting page calls it."),
        click.option("--max-waiting", callback=whole("max-waiting", 1, 10**9), metavar="N",
                     help="How many may wait."),
        click.option("--session", callback=duration("--session"), metavar="TIME",
                     help="How long one may be inside: 90s, 15m, 2h."),
        click.option("--enter-within", callback=duration("--enter-within"), metavar="TIME",
                     help="How long whoever was let in has to enter."),
        click.option("--patience", callback=duration("--patience"), metavar="TIME",
                     help="How long nothing may be heard of somebody who waits."),
        click.option("--opens", metavar="MS", callback=whole("opens", 1, 2**53),
                     help="When a room with a pre-queue opens: ms since 1970."),
        click.option("--mode", type=click.Choice(get_args(Mode)), help="Who is let in next."),
    ):  # fmt: skip
        command = option(command)
    return _lane_options(command)


@click.command()
@event_argument
@_settings_options
@click.option("--prequeue", is_flag=True, help="Gather people first; their order is drawn when it opens.")
@click.option(
    "--shards",
    default="1",
    show_default=True,
    callback=whole("shards", 1, 64),
    help="Over how many slots of a cluster it is spread.",
)
@on_server
async def create(place: Place, event: str, prequeue: bool, shards: int, **given: Any) -> None:
    """Make a room."""
    if given["rate"] is None:
        raise InvalidValue("--rate", None, "admissions per second: a new room needs to know")
    changes = {"patience": PATIENCE} | _changes(given, None)
    settings = Settings(**changes, gather=prequeue or given["opens"] is not None, shards=shards)
    room = Room(place.redis, event)
    page = await _page(place, event, given)
    await room.create(settings)
    if page is not None:
        await page()
    await _answer(room, place.json, "was made")


@click.command()
@event_argument
@_settings_options
@click.option("--no-vip", is_flag=True, help="Close the lane of those who are sent past the line.")
@on_room
async def configure(at: Target, no_vip: bool, **given: Any) -> None:
    """Change a room. What is not named stays."""
    changes = _changes(given, await at.room.settings())
    if no_vip:
        changes["vip"] = None
    page = await _page(Place(at.room.redis, at.json), at.room.name, given)
    if changes:
        await at.room.configure(**changes)
    if page is not None:
        await page()
    await _answer(at.room, at.json, "was changed")


def _changes(given: dict[str, Any], before: Settings | None) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in ("mode", "max_waiting"):
        if given[name] is not None:
            changes[name] = given[name]
    for name in ("patience", "enter_within", "session"):
        if given[name] is not None:
            changes[name] = timedelta(milliseconds=given[name])
    if given["opens"] is not None:
        changes["opens_ms"] = given["opens"]
    for lane, prefix in (("main", ""), ("vip", "vip_")):
        own = {name: given[f"{prefix}{name}"] for name in ("rate", "burst", "max_active")}
        own = {name: value for name, value in own.items() if value is not None}
        if own:
            changes[lane] = _lane(own, None if before is None else getattr(before, lane), prefix)
    return changes


def _lane(own: dict[str, Any], before: LaneSettings | None, prefix: str) -> LaneSettings:
    if before is None:
        if "rate" not in own:
            option = f"--{prefix.replace('_', '-')}rate"
            raise InvalidValue(option, None, "admissions per second: a new lane needs to know")
        return LaneSettings(**own)
    old = {"rate": before.rate, "burst": before.burst, "max_active": before.max_active}
    return LaneSettings(**old | own)


async def _page(place: Place, event: str, given: dict[str, Any]) -> Callable[[], Awaitable[None]] | None:
    """What changes the waiting page, if anything is said of it; checked before anything is changed."""
    said = {name: given[name] for name in ("title", "target") if given[name] is not None}
    if not said:
        return None
    # Only here: the page is the server's, and the server is an extra.
    from toril.server.room.pages import Pages, PageView

    pages = Pages(place.redis)
    view = PageView.of(await pages.get(event), **said)
    return partial(pages.set, event, view)


async def _answer(room: Room, json: bool, what: str) -> None:
    if json:
        as_json(value_of(await room.stats()))
    else:
        say(Text(f"{one_line(room.name)} {what}."))
