"""``toril log trim``: say what is kept, and trim what need not be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click
from rich.text import Text

from toril.cli.careful import Refused, make_sure, yes_option
from toril.cli.log.looking import ReaderSeen, events, look_at_readers, partitions, retention_text
from toril.cli.log.show import why_nothing_goes
from toril.cli.log.target import Target, name_argument, on_log
from toril.cli.show import as_json, note, one_line, say
from toril.cli.times import duration, span
from toril.errors import InvalidValue
from toril.log import Layout, Retention, Standing

CHOICES = """nobody has chosen yet what log {name!r} keeps: nothing was trimmed. Choose once:
  --keep-all             all events
  --keep-for 7d          events of so long, and those that some reader has not read
  --archived-by READER   events that this reader, which keeps a copy, or another one has not read"""


@click.command()
@name_argument
@click.option("--keep-all", is_flag=True, help="From now on, trim nothing.")
@click.option(
    "--keep-for",
    metavar="TIME",
    callback=duration("--keep-for"),
    help="From now on, trim what is older (90s, 15m, 2h, 7d) and read by all.",
)
@click.option(
    "--archived-by", metavar="READER", help="From now on, trim what this reader and all others are done with."
)
@yes_option
@on_log
async def trim(at: Target, keep_all: bool, keep_for: int | None, archived_by: str | None, yes: bool) -> None:
    """Trim what need not be kept, for good.

    With an option, choose first what is kept, for now and later. What some reader has not read is never
    trimmed. Where nobody has chosen what is kept, or no reader is registered, nothing is.
    """
    chosen = _choice(keep_all, keep_for, archived_by)
    if chosen is None and at.layout.retention is None:
        raise Refused(CHOICES.format(name=at.name))
    if chosen is not None and chosen != at.layout.retention:
        if chosen.trims:
            await make_sure("trim", _question(at, chosen), yes)
        await at.log.choose_retention(chosen)
    trimmed = await at.log.trim()
    standings = await at.log.standings()
    layout = await at.log.layout()
    readers = await look_at_readers(at.log, standings, layout.retention)
    left = sum(one.length for one in standings)
    if at.json:
        as_json(
            {
                "log": at.name,
                "retention": None if layout.retention is None else layout.retention.text,
                "removed": trimmed.removed,
                "left": left,
                "held_up_by": {one.name: one.held for one in readers if one.holds_up},
                "not_trimmed": why_nothing_goes(layout, standings),
            }
        )
        return
    _say(at, layout, trimmed.removed, left, standings, readers)


def _choice(keep_all: bool, keep_for: int | None, archived_by: str | None) -> Retention | None:
    if keep_all + (keep_for is not None) + (archived_by is not None) > 1:
        raise InvalidValue("retention", "several", "one of --keep-all, --keep-for and --archived-by")
    if keep_all:
        return Retention.keep_all()
    if keep_for is not None:
        return Retention.keep_for(timedelta(milliseconds=keep_for))
    return None if archived_by is None else Retention.archived_by(archived_by)


def _question(at: Target, chosen: Retention) -> str:
    if chosen.age_ms is not None:
        which = f"that are older than {span(chosen.age_ms)} and read by all readers"
    else:
        which = f"that {chosen.archive} and all other readers are done with"
    return f"From now on, trim events of log {at.name} {which}, for good?"


def _say(
    at: Target,
    layout: Layout,
    removed: int,
    left: int,
    standings: Sequence[Standing],
    readers: Sequence[ReaderSeen],
) -> None:
    retention = layout.retention
    assert retention is not None
    if not retention.trims:
        say(Text(f"{one_line(at.name)} keeps all its events: nothing is trimmed."))
        return
    say(Text(f"{events(removed)} removed, {left:,} left."))
    reasons = [
        f"reader {reader.name!r} holds up {events(reader.held)} in {partitions(reader.holds_up)}"
        for reader in readers
        if reader.holds_up
    ]
    reasons += why_nothing_goes(layout, standings)
    for reason in reasons:
        note(reason)
    if left and not reasons:
        younger = f"younger than {retention_text(retention)}, or " if retention.age_ms is not None else ""
        note(f"those left are {younger}in one block of a stream with others that stay")
