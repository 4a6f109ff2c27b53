"""``toril room ls`` and ``show``: which rooms there are, and how they are doing."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from toril.cli.looks import aside, number
from toril.cli.place import Place, on_server
from toril.cli.room.target import Target, event_argument, on_room
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.cli.times import ago, local, span, whole
from toril.room import WAIT_BOUNDS, LaneStats, Room, Stats, room_names

AT_ONCE = 20
"""How many rooms are asked at a time."""
MOST = 10_000


@click.command("ls")
@click.option(
    "--limit",
    default="200",
    show_default=True,
    metavar="N",
    callback=whole("limit", 1, MOST),
    help="How many rooms to show, in the order of their names.",
)
@on_server
async def ls(place: Place, limit: int) -> None:
    """List the rooms.

    It looks for them in small steps (SCAN) that hold no server up.
    """
    names = await room_names(place.redis)
    seen: list[Stats] = []
    for first in range(0, min(limit, len(names)), AT_ONCE):
        part = names[first : min(first + AT_ONCE, limit)]
        seen += await asyncio.gather(*(Room(place.redis, name).stats() for name in part))
    if place.json:
        as_json({"rooms": [value_of(stats) for stats in seen], "total": len(names)})
        return
    if not seen:
        say(Text(f"No rooms at {place.redis.url}: 'toril room create' makes one."))
        return
    columns = [
        *(Column("room", least=16), Column("", leave=1), Column("mode", leave=4)),
        *(Column(name, right=True) for name in ("waiting", "active", "admitted")),
        *(Column("per second", right=True, leave=2), Column("ghosts", right=True, leave=3)),
        Column("refused", right=True, leave=5),
    ]
    fitted_table(columns, [_row(stats) for stats in seen])
    if len(seen) < len(names):
        aside(f"The first {len(seen):,} of {len(names):,} rooms. More: --limit {min(len(names), MOST)}")


def _row(stats: Stats) -> list[str | Text]:
    lanes = list(stats.lanes.values())
    return [
        one_line(stats.room),
        Text(_mark(stats), style="yellow"),
        stats.settings.mode,
        number(sum(lane.waiting for lane in lanes)),
        number(sum(lane.active for lane in lanes)),
        number(sum(lane.admitted for lane in lanes)),
        f"{sum(lane.observed_rate for lane in lanes):,.1f}",
        number(sum(lane.ended["abandoned"] for lane in lanes), "yellow"),
        number(stats.refused, "yellow"),
    ]


def _mark(stats: Stats) -> str:
    if stats.resetting:
        return "resetting"
    return "paused" if stats.paused else "" if stats.phase == "open" else stats.phase


@click.command()
@event_argument
@on_room
async def show(at: Target) -> None:
    """Show one room: its settings, its lanes, and how long people waited."""
    stats, seed = await at.room.stats(), await at.room.seed()
    if at.json:
        as_json(value_of(stats) | {"seed": seed})
        return
    its = stats.settings
    table = Table.grid(padding=(0, 2))
    mark = _mark(stats)
    table.add_row(
        "room", Text.assemble((one_line(stats.room), "bold"), (f"  {mark}" if mark else "", "yellow"))
    )
    table.add_row("mode", its.mode + (f", over {its.shards} slots" if its.shards > 1 else ""))
    if its.gather:
        opens = "when it is told to" if its.opens_ms is None else local(its.opens_ms)
        when = "" if its.opens_ms is None else f" ({ago(its.opens_ms, stats.now_ms)})"
        table.add_row("opens", opens + when)
        table.add_row("drawn with", Text(f"SHA-256 {stats.commitment}", style="dim"))
        if seed is not None:
            table.add_row("", Text(f"seed    {seed}", style="dim"))
    table.add_row("patience", f"{_time(its.patience)}; {_time(its.enter_within)} to enter")
    table.add_row("session", _time(its.session))
    table.add_row("refused", number(stats.refused, "yellow"))
    say(table)
    columns = [
        "lane",
        "rate",
        "burst",
        "most inside",
        "waiting",
        "active",
        "admitted",
        "per second",
        "median wait",
    ]
    rows: list[list[str | Text]] = []
    for name, lane in stats.lanes.items():
        own = its.lane(name)
        if own is not None:
            most = "any" if own.max_active is None else f"{own.max_active:,}"
            rows.append(
                [
                    *(name, f"{own.rate:g}", f"{own.most_at_once:,}", most),
                    *(number(lane.waiting), number(lane.active), number(lane.admitted)),
                    *(f"{lane.observed_rate:,.1f}", _median(lane)),
                ]
            )
    fitted_table([Column(column, right=column != "lane") for column in columns], rows)
    for name, lane in stats.lanes.items():
        ended = ", ".join(f"{how} {count:,}" for how, count in lane.ended.items() if count)
        if ended:
            aside(f"{name}: {ended}")


def _time(its: Any) -> str:
    return span(round(its.total_seconds() * 1000))


def _median(lane: LaneStats) -> str:
    """In which stretch of time half of those let in had waited."""
    total, so_far = sum(lane.wait_counts), 0
    if not total:
        return "–"
    for bound, count in zip(WAIT_BOUNDS, lane.wait_counts, strict=False):
        so_far += count
        if so_far * 2 >= total:
            return f"≤ {span(bound * 1000)}"
    return f"> {span(WAIT_BOUNDS[-1] * 1000)}"


def value_of(stats: Stats) -> dict[str, Any]:
    """For programs."""
    its = stats.settings
    return {
        "room": stats.room,
        "mode": its.mode,
        "phase": stats.phase,
        "paused": stats.paused,
        "resetting": stats.resetting,
        "shards": its.shards,
        "gather": its.gather,
        "opens_ms": its.opens_ms,
        "commitment": stats.commitment,
        "patience_sec": its.patience.total_seconds(),
        "enter_within_sec": its.enter_within.total_seconds(),
        "session_sec": its.session.total_seconds(),
        "max_waiting": its.max_waiting,
        "refused": stats.refused,
        "lanes": {
            name: asdict(own) | asdict(lane)
            for name, lane in stats.lanes.items()
            if (own := its.lane(name)) is not None
        },
    }
