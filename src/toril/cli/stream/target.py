"""Which stream queue a command works on, and where: NAME, --url and --json, the same everywhere."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import click

from toril.cli.place import Command, Place, Work, on_server
from toril.cli.show import note
from toril.connection import Connection
from toril.errors import TorilError
from toril.stream import StreamQueue


class StreamMissing(TorilError):
    """There is no such stream queue."""


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


name_argument = click.argument("name")
"""Comes first in every command on a queue. ``on_queue`` comes last, and so do the options it adds."""


def on_queue(work: Work) -> Command:
    """A command on a queue that exists: gives ``work`` a :class:`Target`."""
    return _on_queue(work, may_be_new=False)


def on_new_queue(work: Work) -> Command:
    """A command on a queue that need not exist yet."""
    return _on_queue(work, may_be_new=True)


def _on_queue(work: Work, *, may_be_new: bool) -> Command:
    @functools.wraps(work)
    async def found(place: Place, name: str, **given: Any) -> None:
        await work(Target(await find_queue(place.redis, name, may_be_new), place.json), **given)

    return on_server(found)


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
