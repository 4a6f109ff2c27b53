"""Which stream queue a command works on, and where: NAME, --url and --json, the same everywhere."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import click

from toril.cli.show import note
from toril.connection import Connection, connect
from toril.errors import TorilError
from toril.stream import StreamQueue


class StreamMissing(TorilError):
    """There is no such stream queue."""


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and how to answer."""

    redis: Connection
    json: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A stream queue, and how to answer."""

    queue: StreamQueue
    json: bool

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name

    async def now(self) -> int:
        """The time on the queue's server, in ms."""
        seconds, micros = await self.queue.redis.command("TIME", near=self.queue.home.meta)
        return int(seconds) * 1000 + int(micros) // 1000


Command = Callable[..., Any]

name_argument = click.argument("name")
"""Comes first in every command on a queue. ``on_queue`` comes last, and so do the options it adds."""


def on_server(work: Callable[..., Awaitable[None]]) -> Command:
    """A command on a server: gives ``work`` a :class:`Place`."""

    @_shared_options
    @functools.wraps(work)
    def run(url: str | None, json_: bool, **given: Any) -> None:
        async def connected() -> None:
            async with connect(url) as redis:
                await work(Place(redis, json_), **given)

        asyncio.run(connected())

    return run


def on_queue(work: Callable[..., Awaitable[None]]) -> Command:
    """A command on a queue that exists: gives ``work`` a :class:`Target`."""
    return _on_queue(work, may_be_new=False)


def on_new_queue(work: Callable[..., Awaitable[None]]) -> Command:
    """A command on a queue that need not exist yet."""
    return _on_queue(work, may_be_new=True)


def _on_queue(work: Callable[..., Awaitable[None]], *, may_be_new: bool) -> Command:
    @_shared_options
    @functools.wraps(work)
    def run(name: str, url: str | None, json_: bool, **given: Any) -> None:
        async def connected() -> None:
            async with connect(url) as redis:
                await work(Target(await find_queue(redis, name, may_be_new), json_), **given)

        asyncio.run(connected())

    return run


async def find_queue(redis: Connection, name: str, may_be_new: bool = False) -> StreamQueue:
    """The queue of that name, with the options and the route it has; jobs of any data."""
    queue = StreamQueue(name, redis, schema=None)
    if not await redis.command("EXISTS", queue.home.meta):
        if not may_be_new:
            raise StreamMissing(
                f"there is no stream queue {name!r} at {redis.url}: 'toril stream ls' lists those there are"
            )
        note(f"stream queue {name!r} is new here")
    return queue


def _shared_options(command: Command) -> Command:
    for option in (
        click.option("--json", "json_", is_flag=True, help="Print JSON."),
        click.option("--url", help="The server (default: TORIL_REDIS_URL, else the embedded one)."),
    ):
        command = option(command)
    return command
