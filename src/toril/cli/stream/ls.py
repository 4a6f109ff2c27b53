"""``toril stream ls``: which stream queues there are, and how they are doing."""

from __future__ import annotations

import asyncio

import click
import msgspec
from rich.text import Text

from toril.cli.listing import limit_option, tell_left_out, tell_more
from toril.cli.looks import number
from toril.cli.place import Place, on_server
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.cli.stream.looks import STYLES, drains
from toril.cli.times import span
from toril.stream import StreamMetrics, StreamQueue, stream_queues

AT_ONCE = 20
"""How many queues are asked at a time."""

COLUMNS = (
    Column("queue", least=24),
    Column(""),
    Column("ready", right=True),
    Column("running", right=True),
    Column("waiting", right=True, leave=2),
    Column("delayed", right=True, leave=1),
    Column("dead", right=True),
    Column("inlet", right=True, leave=6),
    Column("oldest", right=True, leave=3),
    Column("done/s", right=True, leave=4),
    Column("drains", right=True, leave=7),
    Column("workers", right=True, leave=5),
)


@click.command("ls")
@limit_option("queues", 200)
@on_server
async def ls(place: Place, limit: int) -> None:
    """List the stream queues.

    With their jobs by state. It looks for them in small steps (SCAN) that hold no server up.
    """
    names = await stream_queues(place.redis)
    seen: list[StreamMetrics] = []
    for start in range(0, min(limit, len(names)), AT_ONCE):
        part = names[start : min(start + AT_ONCE, limit)]
        queues = [StreamQueue(name, place.redis, schema=None) for name in part]
        seen += await asyncio.gather(*(queue.metrics() for queue in queues))
    if place.json:
        rows = [{"name": found.queue, **msgspec.to_builtins(found.total)} for found in seen]
        as_json({"queues": rows, "total": len(names)})
    elif seen:
        _show(seen, len(names))
    else:
        say(Text(f"No stream queues at {place.redis.url}."))


def _show(seen: list[StreamMetrics], total: int) -> None:
    rows: list[list[str | Text]] = [_row(found) for found in seen]
    # No columns of noughts for what most queues have not: delays, foreign producers, a pause.
    quiet = {
        "": not any(found.total.paused for found in seen),
        "inlet": not any(found.total.inlet for found in seen),
        "delayed": not any(found.total.delayed for found in seen),
    }
    used = [place for place, column in enumerate(COLUMNS) if not quiet.get(column.name)]
    left_out = fitted_table([COLUMNS[at] for at in used], [[row[at] for at in used] for row in rows])
    tell_left_out(left_out)
    tell_more("queues", len(seen), total)


def _row(found: StreamMetrics) -> list[str | Text]:
    its = found.total
    return [
        one_line(found.queue),
        Text("paused", style="yellow") if its.paused else "",
        number(its.lag),
        number(its.pending, STYLES["running"]),
        number(its.waiting),
        number(its.delayed, STYLES["delayed"]),
        number(its.dead, STYLES["dead"]),
        number(its.inlet),
        span(round(its.oldest_waiting * 1000)) if its.lag else Text("-", style="dim"),
        f"{its.done_per_second:,.1f}",
        drains(its),
        number(its.workers),
    ]
