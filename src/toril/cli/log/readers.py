"""``toril log readers`` and ``toril log retire``: who reads a log, and who no longer does."""

from __future__ import annotations

import click
from rich.text import Text

from toril.cli.careful import make_sure, yes_option
from toril.cli.listing import tell_left_out
from toril.cli.log.looking import events, look_at_readers, partitions, readers_of
from toril.cli.log.target import Target, name_argument, on_log
from toril.cli.looks import aside, number
from toril.cli.show import Column, as_json, fitted_table, note, one_line, say
from toril.cli.times import span
from toril.errors import TorilError


class NoSuchReader(TorilError):
    """There is no such reader."""


@click.command()
@name_argument
@on_log
async def readers(at: Target) -> None:
    """List who reads a log.

    How far behind each is, how old what it has not read is, and whether it holds up trimming.
    """
    standings = await at.log.standings()
    layout = await at.log.layout()
    now = max(standing.now for standing in standings)
    found = await look_at_readers(at.log, standings, layout.retention)
    if at.json:
        as_json({"log": at.name, "readers": [reader.as_value(now) for reader in found]})
        return
    if not found:
        say(Text(f"Nobody reads {one_line(at.name)}. Without a reader, nothing is trimmed."))
        return
    columns = [
        Column("reader", least=16),
        Column("kind", leave=2),
        Column("behind", right=True),
        Column("in partitions", right=True, leave=1),
        Column("oldest unread", right=True),
        Column("holds up", right=True, least=12),
    ]
    rows: list[list[str | Text]] = []
    for reader in found:
        kind = "group"
        if reader.temporary:
            kind = f"temporary, {span(max(0, reader.expires_in or 0))} left"
        age = "" if reader.oldest is None else span(max(0, now - reader.oldest))
        holds = Text(events(reader.held), "yellow") if reader.holds_up else Text("nothing", "dim")
        where = Text(f"{reader.behind:,} of {reader.partitions:,}", "" if reader.behind else "dim")
        rows.append([one_line(reader.name), kind, number(reader.backlog), where, age, holds])
    tell_left_out(fitted_table(columns, rows))
    if layout.retention is None or not layout.retention.trims:
        why = "nobody has chosen what is kept" if layout.retention is None else "all is kept"
        aside(f"Nothing is trimmed: {why}.")


@click.command()
@name_argument
@click.argument("reader")
@yes_option
@on_log
async def retire(at: Target, reader: str, yes: bool) -> None:
    """Remove a reader for good.

    Its place in the log is forgotten, and it holds up trimming no more. A process that still reads for it
    gets an error.
    """
    standings = await at.log.standings()
    found = readers_of(standings).get(reader)
    if found is None:
        raise NoSuchReader(
            f"there is no reader {reader!r} in log {at.name!r}: 'toril log readers {at.name}' lists them"
        )
    layout = await at.log.layout()
    archive = layout.retention is not None and layout.retention.archive == reader
    what = "It has read all there is."
    if found.backlog:
        what = (
            f"It has not read {events(found.backlog)} in {partitions(found.behind)}; "
            "once it is gone, they can be trimmed unread."
        )
    if archive:
        what += " It is the archive: without it, nothing is trimmed."
    await make_sure("retire", f"Retire reader {reader} of log {at.name}, for good?", yes, warning=what)
    await at.log.retire(reader)
    if at.json:
        as_json({"log": at.name, "reader": reader, "retired": True, "unread": found.backlog})
        return
    say(Text(f"Reader {one_line(reader)} is retired. It had not read {events(found.backlog)}."))
    if archive:
        note("it was the archive: nothing is trimmed until another retention is chosen (toril log trim)")
