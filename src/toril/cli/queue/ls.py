"""``toril queue ls``: which queues there are, and how they are doing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import click
from rich.text import Text

from toril.cli.listing import limit_option, tell_left_out, tell_more
from toril.cli.looks import number
from toril.cli.queue.looks import STATE_STYLES, version_text
from toril.cli.queue.target import STATES, Place, merged, on_server
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.connection import CommandRefused, Connection
from toril.connection.topology import Shard
from toril.connection.url import Address
from toril.keyspace import QueueKeys, slot_of
from toril.queue import Queue, UntaggedName
from toril.queue.queue import client_name

AT_ONCE = 50
"""How many queues are asked at a time."""

_SHORT = {"prioritized": "priority", "waiting-children": "children"}
_LEAVES = {"completed": 5, "waiting-children": 3, "prioritized": 2, "delayed": 1}
"""Which states leave a narrow screen, the highest first; workers are 4, versions 6."""


@dataclass(slots=True)
class Seen:
    """A queue as ``ls`` shows it."""

    name: str
    paused: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    version: str | None = None
    workers: int | None = None
    """None where the server does not tell who is connected."""
    problem: str | None = None


@click.command("ls")
@limit_option("queues", 200)
@on_server
async def ls(place: Place, limit: int) -> None:
    """List the queues.

    With their jobs by state, and how many workers are connected. It looks for them in small steps (SCAN)
    that hold no server up.
    """
    names = await find_names(place.redis, place.prefix)
    workers = await Workers.ask(place.redis)
    seen: list[Seen] = []
    for start in range(0, min(limit, len(names)), AT_ONCE):
        part = names[start : min(start + AT_ONCE, limit)]
        seen += await asyncio.gather(*(_look(place, name, workers) for name in part))
    if place.json:
        as_json({"queues": [asdict(queue) for queue in seen], "total": len(names)})
    elif seen:
        _show(seen, len(names))
    else:
        say(Text(f"No queues with prefix {place.prefix!r} at {place.redis.url}."))


async def find_names(redis: Connection, prefix: str) -> list[str]:
    """The names of all queues, sorted."""
    quoted = "".join(f"\\{char}" if char in "*?[]\\" else char for char in prefix)
    pattern = QueueKeys("*", quoted).meta  # checks the prefix
    start, end = f"{prefix}:".encode(), b":meta"
    found = set()
    async for key in redis.scan(pattern):
        name = key[len(start) : -len(end)]
        if name and b":" not in name:  # else it belongs to another prefix, or is a job's key
            found.add(name.decode(errors="replace"))
    return sorted(found, key=lambda name: (name.strip("{}"), name))


class Workers:
    """How many workers each queue has. :meth:`Queue.workers` would ask the server anew for each."""

    def __init__(self, shards: Sequence[Shard], clients: Mapping[Address, bytes]) -> None:
        self._shards = shards
        self._names = {address: _client_names(reply) for address, reply in clients.items()}

    @classmethod
    async def ask(cls, redis: Connection) -> Workers | None:
        """Ask who is connected; None where the server does not tell, as some hosted ones do not."""
        try:
            clients = await redis.each_primary("CLIENT", "LIST")
        except CommandRefused:
            return None
        return cls(await redis.shards(), clients)

    def of(self, keys: QueueKeys) -> int:
        """How many work on a queue: they are connected to the server that has it."""
        slot = slot_of(keys.meta)
        mine = client_name(keys)
        names = [
            name
            for shard in self._shards
            if any(slot in part for part in shard.slots)
            for name in self._names.get(shard.primary, ())
        ]
        return sum(name == mine or name.startswith(f"{mine}:w:") for name in names)


def _client_names(reply: bytes) -> list[str]:
    lines = reply.decode(errors="replace").splitlines()
    return [part[5:] for line in lines for part in line.split(" ") if part.startswith("name=")]


async def _look(place: Place, name: str, workers: Workers | None) -> Seen:
    seen = Seen(name)
    try:
        queue = Queue(name, place.redis, prefix=place.prefix)
    except UntaggedName:
        seen.problem = "without a hash tag, a queue cannot be used on a cluster"
        return seen
    seen.workers = None if workers is None else workers.of(queue.keys)
    seen.counts = merged(await queue.counts())
    paused, version = await place.redis.command("HMGET", queue.keys.meta, "paused", "version")
    seen.paused = paused is not None
    seen.version = version.decode(errors="replace") if version else None
    return seen


def _show(seen: list[Seen], total: int) -> None:
    shown = [
        state
        for state in STATES
        # Most queues know neither priorities nor flows: no columns of noughts for them.
        if state not in ("prioritized", "waiting-children") or any(queue.counts.get(state) for queue in seen)
    ]
    columns = [Column("queue", least=24)]
    columns += [Column("")] if any(queue.paused or queue.problem for queue in seen) else []
    columns += [Column(_SHORT.get(state, state), right=True, leave=_LEAVES.get(state, 0)) for state in shown]
    columns += [Column("workers", right=True, leave=4), Column("version", leave=6)]
    rows: list[list[str | Text]] = []
    for queue in seen:
        mark = Text("paused", style="yellow") if queue.paused else Text("✘" if queue.problem else "", "red")
        row: list[str | Text] = [one_line(queue.name), mark]
        row += [number(queue.counts.get(state), STATE_STYLES.get(state, "")) for state in shown]
        row += [number(queue.workers), Text(version_text(queue.version), style="dim")]
        rows.append(row if columns[1].name == "" else row[:1] + row[2:])
    left_out = fitted_table(columns, rows)
    for problem in dict.fromkeys(queue.problem for queue in seen if queue.problem):
        say(Text(f" ✘ {problem}"))
    tell_left_out(left_out)
    tell_more("queues", len(seen), total)
