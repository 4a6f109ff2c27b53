"""``toril log ls``: which logs there are, and how they are doing."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import click
from rich.text import Text

from toril.cli.listing import limit_option, tell_left_out, tell_more
from toril.cli.log.looking import readers_of, retention_text
from toril.cli.looks import number
from toril.cli.place import Place, on_server
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.connection import Connection
from toril.keyspace import LOG_METAS, LogKeys, log_of
from toril.log import Log, UnknownForm
from toril.log.layout import read_layout


@dataclass(slots=True)
class Seen:
    """A log as ``ls`` shows it."""

    name: str
    partitions: int | None = None
    epoch: int | None = None
    events: int | None = None
    """Ever, in the epochs that still exist."""
    entries: int | None = None
    """In Redis."""
    hot: int | None = None
    """Aggregates in Redis."""
    retention: str | None = None
    """None: nobody has chosen."""
    readers: int | None = None
    slowest: str | None = None
    backlog: int | None = None
    problem: str | None = None


@click.command("ls")
@limit_option("logs", 50)
@on_server
async def ls(place: Place, limit: int) -> None:
    """List the event logs.

    With their partitions, events, aggregates, what is kept, and the reader that is furthest behind. It looks
    for them in small steps (SCAN) that hold no server up.
    """
    names = await find_names(place.redis)
    seen = [await _look(place.redis, name) for name in names[:limit]]
    if place.json:
        as_json({"logs": [asdict(log) for log in seen], "total": len(names)})
    elif seen:
        _show(seen, len(names))
    else:
        say(Text(f"No event logs at {place.redis.url}."))


async def find_names(redis: Connection) -> list[str]:
    """The names of all logs, sorted."""
    found = set()
    async for key in redis.scan(LOG_METAS):
        name = log_of(key)
        if name is None or name in found:
            continue
        meta = LogKeys(name).meta
        if await redis.command("TYPE", meta) == b"hash" and await redis.command("HEXISTS", meta, "epochs"):
            found.add(name)
    return sorted(found)


async def _look(redis: Connection, name: str) -> Seen:
    seen = Seen(name)
    try:
        layout = await read_layout(redis, LogKeys(name))
    except UnknownForm as problem:
        seen.problem = str(problem)
        return seen
    if layout is None:  # it went meanwhile
        return seen
    standings = await Log(redis, name).standings()
    readers = readers_of(standings)
    slowest = next(iter(readers.values()), None)
    seen.partitions, seen.epoch = layout.current.partitions, layout.current.number
    seen.events = sum(one.ordinal for one in standings)
    seen.entries = sum(one.length for one in standings)
    seen.hot = sum(one.hot for one in standings if one.partition.epoch == layout.current.number)
    seen.retention = None if layout.retention is None else retention_text(layout.retention)
    seen.readers = len(readers)
    if slowest is not None:
        seen.slowest, seen.backlog = slowest.name, slowest.backlog
    return seen


def _show(seen: list[Seen], total: int) -> None:
    columns = [
        Column("log", least=16),
        Column("partitions", right=True, leave=3),
        Column("epoch", right=True, leave=5),
        Column("events", right=True),
        Column("in Redis", right=True, leave=1),
        Column("aggregates", right=True, leave=4),
        Column("kept", least=10, leave=2),
        Column("slowest reader", least=14),
        Column("behind", right=True),
    ]
    rows: list[list[str | Text]] = []
    for log in seen:
        if log.problem:
            rows.append([Text(f"✘ {one_line(log.name)}", "red"), *[Text("?", "dim")] * (len(columns) - 1)])
            continue
        kept = Text("not chosen", "yellow") if log.retention is None else Text(one_line(log.retention))
        slowest = Text(one_line(log.slowest)) if log.slowest else Text("no reader", "dim")
        behind = Text("") if log.backlog is None else number(log.backlog)
        counts = (log.partitions, log.epoch, log.events, log.entries, log.hot)
        rows.append([one_line(log.name), *map(number, counts), kept, slowest, behind])
    left_out = fitted_table(columns, rows)
    for log in seen:
        if log.problem:
            say(Text(f" ✘ {one_line(log.problem)}"))
    tell_left_out(left_out)
    tell_more("logs", len(seen), total)
