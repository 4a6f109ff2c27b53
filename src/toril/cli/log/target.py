"""Which log a command works on, and where: LOG, --url and --json, the same everywhere."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import click

from toril.cli.careful import Refused
from toril.cli.loading import load
from toril.cli.place import Command, Work, json_option, url_option
from toril.connection import Connection, connect
from toril.errors import InvalidValue, TorilError
from toril.keyspace import LogKeys
from toril.log import ColdStore, Layout, Log, Standing
from toril.log.layout import read_layout

COLD_RULE = "it names a module and a cold store (put, get, erase, aggregates) in it, like shop.stores:cold"


class LogMissing(TorilError):
    """There is no such log."""


@dataclass(frozen=True, slots=True)
class Target:
    """A log, and how to answer."""

    log: Log
    layout: Layout
    """As it was when the command began."""
    json: bool

    @property
    def redis(self) -> Connection:
        """The connection it is on."""
        return self.log.redis

    @property
    def name(self) -> str:
        """The log's name."""
        return self.log.name


name_argument = click.argument("name", metavar="LOG")
"""Comes first in every command on a log. ``on_log`` comes last, and so do the options it adds."""

cold_option = click.option(
    "--cold", metavar="MODULE:NAME", help="The log's cold store, where it has one: shop.stores:cold."
)


def on_log(work: Work) -> Command:
    """A command on a log that exists: gives ``work`` a :class:`Target`."""

    @url_option
    @json_option
    @functools.wraps(work)
    def run(name: str, url: str | None, json_: bool, cold: str | None = None, **given: Any) -> None:
        asyncio.run(at_log(work, name, url, json_, cold=cold, **given))

    return run


async def at_log(
    work: Work,
    name: str,
    url: str | None,
    json_: bool,
    *,
    cold: str | None = None,
    quiet: int | None = None,
    window: int | None = None,
    **given: Any,
) -> None:
    """Do something with a log that exists."""
    how: dict[str, Any] = {"cold": None if cold is None else load_cold(cold)}
    if quiet is not None:
        how["quiet"] = timedelta(milliseconds=quiet)
    if window is not None:
        how["idempotency_window"] = timedelta(milliseconds=window)
    async with connect(url) as redis:
        layout = await read_layout(redis, LogKeys(name))
        if layout is None:
            raise LogMissing(f"there is no log {name!r} at {redis.url}: 'toril log ls' lists those there are")
        await work(Target(Log(redis, name, **how), layout, json_), **given)


def load_cold(said: str) -> ColdStore:
    """The cold store that a user has in a module."""
    found = load("--cold", said, COLD_RULE)
    if not all(callable(getattr(found, verb, None)) for verb in ("put", "get", "erase", "aggregates")):
        raise InvalidValue("--cold", said, COLD_RULE)
    return cast("ColdStore", found)


def has_cold(standings: Sequence[Standing]) -> bool:
    """Whether aggregates of a log have gone to a cold store, ever."""
    return any(standing.filter_levels for standing in standings)


def require_cold(at: Target, standings: Sequence[Standing], what: str, call: str) -> None:
    """Refuse what would go wrong without the cold store of a log that has one."""
    if at.log.cold is None and has_cold(standings):
        raise Refused(
            f"aggregates of log {at.name!r} are in a cold store, and {what}: give it with "
            f"--cold MODULE:NAME, or do it in code, Log(…, cold=…).{call} (nothing was changed)"
        )
