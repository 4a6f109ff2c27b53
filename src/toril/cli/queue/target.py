"""Which queue a command works on, and where: NAME, --url, --prefix and --json, the same everywhere."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click

from toril.cli.place import Command, Work, json_option, url_option
from toril.cli.show import note
from toril.connection import Connection, connect
from toril.errors import InvalidValue, TorilError
from toril.keyspace import InvalidName
from toril.queue import Queue

STATES = ("active", "waiting", "prioritized", "delayed", "waiting-children", "failed", "completed")
"""In the order they are shown. The jobs of a paused queue are waiting too."""

_ALIASES = {"wait": "waiting", "paused": "waiting"}


class QueueMissing(TorilError):
    """There is no such queue."""


@dataclass(frozen=True, slots=True)
class Place:
    """A server, the prefix of queues on it, and how to answer."""

    redis: Connection
    prefix: str
    json: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A queue, and how to answer."""

    queue: Queue
    json: bool

    @property
    def redis(self) -> Connection:
        """The connection it is on."""
        return self.queue.store.redis

    @property
    def name(self) -> str:
        """The queue's name as it is on the server."""
        return self.queue.name

    async def counts(self) -> dict[str, int]:
        """How many jobs there are in each of :data:`STATES`."""
        return merged(await self.queue.counts())


name_argument = click.argument("name")
"""Comes first in every command on a queue. ``on_queue`` comes last, and so do the options it adds."""


def on_server(work: Work) -> Command:
    """A command on a server: gives ``work`` a :class:`Place`."""

    @url_option
    @click.option("--prefix", default="bull", show_default=True, help="BullMQ's key prefix.")
    @json_option
    @functools.wraps(work)
    def run(url: str | None, prefix: str, json_: bool, **given: Any) -> None:
        async def connected() -> None:
            async with connect(url) as redis:
                await work(Place(redis, prefix, json_), **given)

        asyncio.run(connected())

    return run


def on_queue(work: Work) -> Command:
    """A command on a queue that exists: gives ``work`` a :class:`Target`."""
    return _on_queue(work, may_be_new=False)


def on_new_queue(work: Work) -> Command:
    """A command on a queue that need not exist yet."""
    return _on_queue(work, may_be_new=True)


def _on_queue(work: Work, *, may_be_new: bool) -> Command:
    @functools.wraps(work)
    async def found(place: Place, name: str, **given: Any) -> None:
        queue = await find_queue(place.redis, name, place.prefix, may_be_new=may_be_new)
        await work(Target(queue, place.json), **given)

    return on_server(found)


async def find_queue(redis: Connection, name: str, prefix: str, *, may_be_new: bool = False) -> Queue:
    """The queue of that name, or of its tagged form where only that is there. A cluster needs the tag."""
    queue = Queue(name, redis, prefix=prefix)
    if await _exists(queue):
        return queue
    if queue.keys.tag is None:
        with suppress(InvalidName):  # a name with a lone brace has no tagged form
            tagged = Queue(queue.keys.cluster_safe_name, redis, prefix=prefix)
            if await _exists(tagged):
                note(f"there is no queue {name!r} here: using {tagged.name!r}")
                return tagged
    if not may_be_new:
        raise QueueMissing(
            f"there is no queue {name!r} with prefix {prefix!r} at {redis.url}: "
            "'toril queue ls' lists those there are"
        )
    note(f"queue {name!r} is new here")
    return queue


async def _exists(queue: Queue) -> bool:
    # One at a time: the keys of an untagged queue are in different slots. Node's queues may do without
    # meta (skipMetasUpdate), but whatever was added has counted an id.
    for key in (queue.keys.meta, queue.keys.id):
        if await queue.store.redis.command("EXISTS", key):
            return True
    return False


def merged(counts: dict[str, int]) -> dict[str, int]:
    """Counts of :data:`STATES`: a paused queue's jobs wait like those of any other."""
    return {state: counts[state] + (counts["paused"] if state == "waiting" else 0) for state in STATES}


def read_state(value: str) -> str:
    """A state by its name, or an error that names them all."""
    state = _ALIASES.get(value, value)
    if state not in STATES:
        raise InvalidValue("state", value, f"one of {', '.join(STATES)}")
    return state


def state_option(ctx: click.Context, param: click.Parameter, value: Any) -> Any:  # noqa: ARG001 - click's
    """Read one state, or several."""
    if isinstance(value, tuple):
        return tuple(dict.fromkeys(map(read_state, value)))
    return None if value is None else read_state(value)
