"""``toril log show``: how one log is doing, what it takes, and the events of one aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toril.cli.listing import tell_left_out
from toril.cli.log.aggregate import MOST, parse_key, show_aggregate
from toril.cli.log.looking import (
    ReaderSeen,
    events,
    look_at_readers,
    moment,
    partitions,
    readers_of,
    retention_text,
)
from toril.cli.log.memory import Memory, measure
from toril.cli.log.target import Target, has_cold, name_argument, on_log
from toril.cli.looks import aside, number, size, unwrapped
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.cli.times import ago, span, whole
from toril.errors import InvalidValue
from toril.log import Layout, Standing

PARTITIONS, EVENTS = 64, 20
"""How many are listed, unless more are asked for."""
LISTED = 5
"""How many readers are listed."""
LINES = 20
"""How many lines of a body are shown, unless all are asked for."""
MILLION = 1_000_000


@click.command()
@name_argument
@click.option("--partitions", "by_partition", is_flag=True, help="List the partitions.")
@click.option("--aggregate", "key", metavar="TENANT:TYPE:ID", help="Show one aggregate, and its last events.")
@click.option(
    "--limit",
    metavar="N",
    callback=whole("limit", 1, MOST),
    help=f"How many partitions ({PARTITIONS}) or events ({EVENTS}) to list.",
)
@click.option("--full", is_flag=True, help=f"Show bodies of more than {LINES} lines in full.")
@on_log
async def show(at: Target, by_partition: bool, key: str | None, limit: int | None, full: bool) -> None:
    """Show one log.

    Its events and readers, who holds up trimming, and what it takes in memory: bytes per event and per
    aggregate, measured on some of them.
    """
    if key is not None and by_partition:
        raise InvalidValue("--partitions", "--aggregate", "one of the two at a time")
    if key is not None:
        await show_aggregate(at, parse_key(key), limit or EVENTS, LINES if not full else None)
        return
    standings = await at.log.standings()
    layout = await at.log.layout()
    if by_partition:
        _by_partition(at, standings, limit or PARTITIONS)
        return
    readers = await look_at_readers(at.log, standings, layout.retention)
    memory = await measure(at.log, standings)
    if at.json:
        as_json(_as_value(at.name, layout, standings, readers, memory))
    else:
        _show(at.name, layout, standings, readers, memory)


# ---------------------------------------------------------------------------- the log


def _epochs(layout: Layout, standings: Sequence[Standing]) -> list[dict[str, Any]]:
    found = []
    for epoch in layout.epochs:
        its = [standing for standing in standings if standing.partition.epoch == epoch.number]
        found.append(
            {
                "epoch": epoch.number,
                "partitions": epoch.partitions,
                "events": sum(one.ordinal for one in its),
                "trimmed": sum(one.trimmed for one in its),
                "entries": sum(one.length for one in its),
                "aggregates": sum(one.hot for one in its),
                "sealed": sum(one.sealed for one in its),
                "current": epoch == layout.current,
            }
        )
    return found


def _as_value(
    name: str,
    layout: Layout,
    standings: Sequence[Standing],
    readers: Sequence[ReaderSeen],
    memory: Memory | None,
) -> dict[str, Any]:
    now = max(standing.now for standing in standings)
    return {
        "log": name,
        "form": layout.form,
        "epoch": layout.current.number,
        "partitions": layout.current.partitions,
        "carrying": layout.carrying,
        "retention": None if layout.retention is None else layout.retention.text,
        "events": sum(one.ordinal for one in standings),
        "trimmed": sum(one.trimmed for one in standings),
        "entries": sum(one.length for one in standings),
        "aggregates": _hot(layout, standings),
        "cold": has_cold(standings),
        "epochs": _epochs(layout, standings),
        "readers": [reader.as_value(now) for reader in readers],
        "held_up_by": [reader.name for reader in readers if reader.holds_up],
        "memory": None
        if memory is None
        else asdict(memory)
        | {"total": memory.total, "per_event": memory.per_event, "per_aggregate": memory.per_aggregate},
    }


def _hot(layout: Layout, standings: Sequence[Standing]) -> int:
    return sum(one.hot for one in standings if one.partition.epoch == layout.current.number)


def _show(
    name: str,
    layout: Layout,
    standings: Sequence[Standing],
    readers: Sequence[ReaderSeen],
    memory: Memory | None,
) -> None:
    now = max(standing.now for standing in standings)
    head = Text(one_line(name), style="bold")
    if layout.carrying:
        head.append("  carrying aggregates over", style="yellow")
    about = [partitions(layout.current.partitions), f"epoch {layout.current.number}", f"form {layout.form}"]
    say(head, Text(" · ".join(about), style="dim"), "")
    facts = _grid()
    for what, said in (
        ("events", _events(layout, standings, now)),
        ("aggregates", _aggregates(layout, standings)),
        ("kept", _kept(layout)),
        ("readers", _readers(readers, now)),
        ("held up by", _held_up(layout, readers, standings)),
    ):
        facts.add_row(what, unwrapped(said))
    say(Padding.indent(facts, 2))
    if len(layout.epochs) > 1 or layout.carrying:
        _show_epochs(layout, standings)
    _show_memory(memory)


def _grid() -> Table:
    facts = Table.grid(padding=(0, 3))
    facts.add_column(no_wrap=True)
    facts.add_column()
    return facts


def _events(layout: Layout, standings: Sequence[Standing], now: int) -> Text:
    ever, trimmed = sum(one.ordinal for one in standings), sum(one.trimmed for one in standings)
    there = sum(one.length for one in standings)
    since = f" since epoch {layout.oldest}" if layout.oldest > 1 else " ever"
    said = Text(f"{ever:,}{since}, {trimmed:,} trimmed, {there:,} in Redis")
    first = min((moment(one.first_id) for one in standings if one.first_id), default=None)
    last = max((moment(one.last_id) for one in standings if one.last_id), default=None)
    if first is not None:
        said.append(f"\nthe oldest there {ago(first, now)}, the last {ago(last, now)}", "dim")
    return said


def _aggregates(layout: Layout, standings: Sequence[Standing]) -> Text:
    said = Text(f"{_hot(layout, standings):,} in Redis")
    if has_cold(standings):
        said.append(", others in the cold store")
    return said


def _kept(layout: Layout) -> Text:
    retention = layout.retention
    if retention is None:
        return Text("nobody has chosen: nothing is trimmed (see toril log trim)", "yellow")
    if not retention.trims:
        return Text("everything")
    if retention.archive is not None:
        return Text(f"until {one_line(retention.archive)}, the archive, and all other readers are done")
    return Text(f"{retention_text(retention)}, and until all readers are done")


def _readers(readers: Sequence[ReaderSeen], now: int) -> Text:
    if not readers:
        return Text("none: without one, nothing is trimmed", "dim")
    lines = []
    for reader in readers[:LISTED]:
        said = "all done"
        if reader.backlog:
            age = "" if reader.oldest is None else f", the oldest {span(max(0, now - reader.oldest))} old"
            said = f"{events(reader.backlog)} behind{age}"
        lines.append(f"{one_line(reader.name)}{' (temporary)' if reader.temporary else ''}: {said}")
    if len(readers) > LISTED:
        lines.append(f"{LISTED} of {len(readers):,}; all: toril log readers")
    return Text("\n".join(lines))


def _held_up(layout: Layout, readers: Sequence[ReaderSeen], standings: Sequence[Standing]) -> Text:
    if layout.retention is None or not layout.retention.trims:
        return Text("nobody: nothing is trimmed", "dim")
    lines = [
        f"{one_line(reader.name)}: {events(reader.held)} in {partitions(reader.holds_up)}"
        for reader in readers
        if reader.holds_up
    ]
    lines += why_nothing_goes(layout, standings)
    return Text("\n".join(lines), "yellow") if lines else Text("nobody", "dim")


def why_nothing_goes(layout: Layout, standings: Sequence[Standing]) -> list[str]:
    """Reasons why partitions are not trimmed at all, beside slow readers."""
    filled = [standing for standing in standings if standing.length]
    archive = layout.retention.archive if layout.retention is not None else None
    if archive is not None:
        without = sum(archive not in standing.readers for standing in filled)
        if without:
            return [f"reader {one_line(archive)}, the archive, is not registered in {partitions(without)}"]
        return []
    without = sum(not standing.readers for standing in filled)
    return [f"no reader is registered in {partitions(without)}"] if without else []


def _show_epochs(layout: Layout, standings: Sequence[Standing]) -> None:
    names = ("epoch", "partitions", "events", "trimmed", "in Redis", "aggregates")
    columns = [Column(name, right=True) for name in names] + [Column("", least=16)]
    rows: list[list[str | Text]] = []
    for its in _epochs(layout, standings):
        state = "written to" if its["current"] else f"{its['sealed']} of {its['partitions']} sealed"
        counts = (its[name] for name in ("epoch", "partitions", "events", "trimmed", "entries", "aggregates"))
        rows.append([*map(number, counts), Text(state, "dim")])
    fitted_table(columns, rows)


def _show_memory(memory: Memory | None) -> None:
    if memory is None:
        say("", Text("Memory: the server does not tell.", "dim"))
        return
    say("", Text.assemble(("Memory", "bold"), f"  {size(memory.total)}"))
    sums = Table.grid(padding=(0, 2))
    for right in (False, True, False, True, True, False):
        sums.add_column(justify="right" if right else "left", no_wrap=True)
    body = f"bodies of {size(memory.body_bytes)}" if memory.body_bytes is not None else ""
    fields = f"{memory.fields:.1f} fields each" if memory.fields is not None else ""
    for what, count, each, total, beside in (
        ("events", memory.entries, memory.per_event, memory.events_bytes, body),
        ("aggregates", memory.hot, memory.per_aggregate, memory.aggregates_bytes, fields),
        ("filters", None, None, memory.filters_bytes, "which aggregates are cold"),
        ("heads, readers", None, None, memory.rest_bytes, ""),
    ):
        if total:
            times = ("" if count is None else f"{count:,}", "" if each is None else "×")
            unit = "" if each is None else f"{each:,.0f} bytes"
            sums.add_row(what, *times, unit, size(total), unwrapped(Text(beside, "dim")))
    say(Padding.indent(sums, 2))
    said = [
        f"{size(each * MILLION)} for a million {what}"
        for what, each in (("events", memory.per_event), ("aggregates", memory.per_aggregate))
        if each is not None
    ]
    measured = ""
    if memory.partitions_measured < memory.partitions:
        measured = f", {memory.partitions_measured} of {memory.partitions:,} partitions"
    if said:
        aside(f"That is {', '.join(said)}. Estimated from samples{measured}.")


# ---------------------------------------------------------------------------- partitions


def _by_partition(at: Target, standings: Sequence[Standing], limit: int) -> None:
    shown = standings[:limit]
    if at.json:
        as_json({"log": at.name, "partitions": [_partition(one) for one in shown], "total": len(standings)})
        return
    columns = [
        Column("partition", right=True),
        Column("slot", right=True, leave=3),
        Column("events", right=True),
        Column("trimmed", right=True, leave=1),
        Column("in Redis", right=True),
        Column("aggregates", right=True, leave=2),
        Column("oldest", right=True, leave=4),
        Column("slowest reader", least=14),
        Column("behind", right=True),
        Column(""),
    ]
    rows: list[list[str | Text]] = []
    for one in shown:
        slowest = next(iter(readers_of([one]).values()), None)
        state = "sealed" if one.sealed else "asks for aggregates" if one.carry else ""
        rows.append(
            [
                str(one.partition),
                Text(f"{one.partition.keys(at.name).slot}", "dim"),
                *map(number, (one.ordinal, one.trimmed, one.length, one.hot)),
                ago(moment(one.first_id), one.now) if one.first_id else "",
                Text(one_line(slowest.name)) if slowest else Text("no reader", "dim"),
                number(slowest.backlog) if slowest else "",
                Text(state, "yellow"),
            ]
        )
    tell_left_out(fitted_table(columns, rows))
    if len(shown) < len(standings):
        aside(f"The first {len(shown):,} of {len(standings):,} partitions. More: --limit {len(standings)}")


def _partition(one: Standing) -> dict[str, Any]:
    return {
        "epoch": one.partition.epoch,
        "partition": one.partition.number,
        "events": one.ordinal,
        "trimmed": one.trimmed,
        "entries": one.length,
        "aggregates": one.hot,
        "first_id": one.first_id or None,
        "last_id": one.last_id or None,
        "sealed": one.sealed,
        "carrying": one.carry,
        "backlog": {reader.name: reader.backlog for reader in readers_of([one]).values()},
    }
