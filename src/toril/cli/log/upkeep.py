"""``toril log resize`` and ``toril log keep``: another number of partitions, and upkeep."""

from __future__ import annotations

import asyncio
import sys

import click
from rich.text import Text

from toril.cli.careful import INTERRUPTED, Told, make_sure, until_signal, with_progress, yes_option
from toril.cli.log.looking import events, partitions
from toril.cli.log.target import Target, cold_option, has_cold, name_argument, on_log, require_cold
from toril.cli.show import as_json, complain, console, note, one_line, say
from toril.cli.times import duration, parse_duration, whole
from toril.connection.errors import ConnectionFailed
from toril.errors import InvalidValue
from toril.log import Epoch
from toril.log.layout import MOST_PARTITIONS


@click.command()
@name_argument
@click.argument("count", metavar="PARTITIONS", callback=whole("PARTITIONS", 1, MOST_PARTITIONS))
@cold_option
@yes_option
@on_log
async def resize(at: Target, count: int, yes: bool) -> None:
    """Give a log another number of partitions.

    It can be written to and read meanwhile. A new epoch of the log begins; readers cross into it when they
    have read the old one. What was cut off is finished by another run.
    """
    standings = await at.log.standings()
    require_cold(at, standings, "the new partitions must know them", f"resize({count})")
    now = at.layout.current
    if not at.layout.carrying:
        if now.partitions == count:
            raise InvalidValue("PARTITIONS", count, f"log {at.name!r} has as many already")
        hot = sum(one.hot for one in standings if one.partition.epoch == now.number)
        await make_sure(
            "resize",
            f"Change log {at.name} from {now.partitions} to {partitions(count)}? "
            f"{hot:,} aggregates are carried over to epoch {now.number + 1}.",
            yes,
        )
    if at.log.cold is None:
        note(f"where the application has a cold store, give --cold, or call Log(…, cold=…).resize({count})")

    async def work(told: Told) -> Epoch:
        return await at.log.resize(count, progress=told)

    epoch = await with_progress("Carrying aggregates over", work, quiet=at.json)
    if epoch is None:
        note(f"stopped; the log can be used. Run it again to finish: toril log resize {at.name} {count}")
        sys.exit(INTERRUPTED)
    if at.json:
        as_json({"log": at.name, "epoch": epoch.number, "partitions": epoch.partitions})
        return
    say(Text(f"{one_line(at.name)} has {partitions(epoch.partitions)} now, in epoch {epoch.number}."))
    note("the old epoch goes when all readers have crossed it and its events are trimmed (toril log keep)")


def _every(ctx: click.Context, param: click.Parameter, value: str) -> int:  # noqa: ARG001 - click's
    time = parse_duration("--every", f"{value}s" if value.isdigit() else value)
    if time < 100:
        raise InvalidValue("--every", value, "at least 100ms")
    return time


@click.command()
@name_argument
@click.option(
    "--every",
    default="10s",
    show_default=True,
    metavar="TIME",
    callback=_every,
    help="How long to rest in between; a number alone is seconds.",
)
@click.option(
    "--quiet",
    default="1h",
    show_default=True,
    metavar="TIME",
    callback=duration("--quiet"),
    help="How long an aggregate is quiet before it leaves Redis; as the application has it.",
)
@click.option(
    "--window",
    default="24h",
    show_default=True,
    metavar="TIME",
    callback=duration("--window"),
    help="How long idempotency keys are remembered; as the application has it.",
)
@cold_option
@on_log
async def keep(at: Target, every: int) -> None:
    """Keep a log from growing, until a signal.

    Trims what need not be kept, lets quiet aggregates leave Redis (into the cold store; without one, they
    keep their version and forget old keys), and removes epochs that everyone has crossed. Any number of
    processes may do so.
    """
    if at.layout.retention is None:
        note(f"nobody has chosen what log {at.name!r} keeps: nothing is trimmed until then (toril log trim)")
    stopped = await until_signal(_rounds(at, every / 1000))
    if stopped is not None and not at.json:
        console.print(Text(f"{stopped.name}: ended"))


async def _rounds(at: Target, every: float) -> None:
    if not at.json:
        console.print(Text(f"keeping {one_line(at.name)}; Ctrl-C ends it"))
    warned = False
    while True:
        try:
            cools = at.log.cold is not None or not has_cold(await at.log.standings())
            if not cools and not warned:
                warned = True
                note("aggregates are in a cold store: without --cold, no more go there from here")
            removed = (await at.log.trim()).removed
            cooled = await at.log.cool() if cools else 0
            dropped = await at.log.drop_epoch()
        except ConnectionFailed as passing:
            complain(f"{passing}; goes on in {every:g} s")
        else:
            _tell(at, removed, cooled, dropped)
        await asyncio.sleep(every)


def _tell(at: Target, removed: int, cooled: int, dropped: Epoch | None) -> None:
    if not (removed or cooled or dropped):
        return
    if at.json:
        as_json(
            {"log": at.name, "removed": removed, "cooled": cooled, "dropped": dropped and dropped.number},
            indent=None,
        )
        return
    quiet = "left Redis" if at.log.cold is not None else "were looked at"
    said = [
        f"{events(removed)} trimmed" if removed else "",
        f"{cooled:,} quiet aggregates {quiet}" if cooled else "",
        f"epoch {dropped.number} removed" if dropped else "",
    ]
    console.print(Text(", ".join(filter(None, said))))
