"""``toril log tail``: events as they come."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click
from rich.text import Text

from toril.aggregate import check_aggregate_type, check_tenant
from toril.cli.careful import INTERRUPTED, until_signal
from toril.cli.log.bodies import as_value, event_type, read_body
from toril.cli.log.target import Target, name_argument, on_log
from toril.cli.looks import size
from toril.cli.show import as_json, console, note, one_line, say_line, width
from toril.cli.times import local, whole
from toril.errors import InvalidValue
from toril.log import Entry, Position, Reader
from toril.log.store import PartitionStore

LAST = 10
"""How many of the last events are shown, unless it is said."""
PAGE = 100
WINDOW = 1000
"""How far back each partition is looked through for events of one tenant or type."""
MOST = 1_000_000

ROOM_FOR_DATES = 110
"""Columns of a terminal; on a narrower one, only the time of day is shown."""

HEADINGS = ("time", "part", "ordinal", "version", "size", "type", "aggregate")

Wanted = Callable[[Entry], bool]


def _check_from(ctx: click.Context, param: click.Parameter, value: str) -> str:  # noqa: ARG001 - click's
    if value not in ("first", "tail"):
        raise InvalidValue("--from", value, "first or tail")
    return value


@click.command()
@name_argument
@click.option(
    "--from",
    "start",
    default="tail",
    show_default=True,
    metavar="first|tail",
    callback=_check_from,
    help="Begin with the first event that is there, or with the last ones.",
)
@click.option("--tenant", metavar="TENANT", help="Only events of this tenant.")
@click.option("--type", "kind", metavar="TYPE", help="Only events of aggregates of this type.")
@click.option(
    "-n",
    "count",
    metavar="N",
    callback=whole("-n", 0, MOST),
    help=f"From the tail: begin with the last N ({LAST}). From the first: stop after N.",
)
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until Ctrl-C.")
@on_log
async def tail(
    at: Target, start: str, tenant: str | None, kind: str | None, count: int | None, follow: bool
) -> None:
    """Print events, a line each; with --json, a JSON object each.

    Time, partition, ordinal, version, size, event type (where the body is JSON that says it), aggregate. In
    each partition they come in order. A temporary reader keeps them from being trimmed meanwhile.
    """
    wanted = _filter(tenant, kind)
    line = _Lines(at.json)
    work = _from_tail if start == "tail" else _from_first
    stopped = await until_signal(work(at, wanted, line, count, follow))
    if stopped is not None and not follow:
        sys.exit(INTERRUPTED)
    if not line.printed and not at.json and stopped is None:
        which = "" if tenant is None and kind is None else " such"
        note(f"there are no{which} events in log {at.name!r}")


def _filter(tenant: str | None, kind: str | None) -> Wanted:
    if tenant is not None:
        check_tenant(tenant)
    if kind is not None:
        check_aggregate_type(kind)

    def wanted(entry: Entry) -> bool:
        whose, what, _ = entry.key.split(":", 2)
        return tenant in (None, whose) and kind in (None, what)

    return wanted


async def _from_first(at: Target, wanted: Wanted, line: _Lines, count: int | None, follow: bool) -> None:
    if count == 0:
        return
    async with at.log.reader(start="first", page=PAGE) as reader:
        batches = aiter(reader) if follow else reader.until_now()
        async for batch in batches:
            for entry in batch.entries:
                if wanted(entry):
                    line(entry)
                if line.printed == count:
                    return


async def _from_tail(at: Target, wanted: Wanted, line: _Lines, count: int | None, follow: bool) -> None:
    async with at.log.reader(start="tail", page=PAGE) as reader:
        for entry in await _last(at, reader, wanted, LAST if count is None else count):
            line(entry)
        if follow:
            async for batch in reader:
                for entry in filter(wanted, batch.entries):
                    line(entry)


async def _last(at: Target, reader: Reader, wanted: Wanted, count: int) -> list[Entry]:
    """The last events up to where a reader begins, over all partitions, in the order of time."""
    if count == 0:
        return []
    positions = reader.positions
    cut = False

    async def one(store: PartitionStore) -> list[Entry]:
        nonlocal cut
        position = positions[store.partition]
        found: list[Entry] = []
        looked = 0
        while position.ordinal and len(found) < count and looked < max(WINDOW, count):
            page = await store.page_back(position.id, min(PAGE, max(count, 10)))
            found += [entry for entry in page if not entry.erased and wanted(entry)]
            looked += len(page)
            if not page or page[-1].ordinal <= 1:
                return found[:count]
            position = _before(page[-1])
        cut = cut or (len(found) < count and position.ordinal > 0)
        return found[:count]

    pages = await at.log.each(one, sorted(positions))
    entries = sorted((entry for page in pages for entry in page), key=_when)[-count:]
    if cut and len(entries) < count:
        note(f"looked at the last {WINDOW:,} events of each partition; all: --from first")
    return entries


def _before(entry: Entry) -> Position:
    ms, seq = map(int, entry.id.split("-"))
    place = f"{ms}-{seq - 1}" if seq else f"{ms - 1}"
    return Position(entry.ordinal - 1, place)


def _when(entry: Entry) -> tuple[int, int, int, int]:
    ms, seq = map(int, entry.id.split("-"))
    return entry.partition.epoch, ms, seq, entry.partition.number


class _Lines:
    """Prints events, and counts them."""

    def __init__(self, json_: bool) -> None:
        self._json = json_
        self.printed = 0

    def __call__(self, entry: Entry) -> None:
        if self._json:
            as_json(as_value(entry), indent=None)
        else:
            if not self.printed and console.is_terminal:
                say_line(Text(_line(*HEADINGS).plain, "dim"))
            self._show(entry)
        self.printed += 1

    def _show(self, entry: Entry) -> None:
        kind = event_type(read_body(entry.body))
        shown = _line(
            local(entry.recorded_at // 1_000_000)[:23],
            str(entry.partition),
            f"{entry.ordinal:,}",
            f"{entry.version:,}",
            size(len(entry.body)),
            "-" if kind is None else one_line(kind),
            one_line(entry.key),
        )
        say_line(shown)
        sys.stdout.flush()


def _line(time: str, partition: str, ordinal: str, version: str, large: str, kind: str, key: str) -> Text:
    shown = Text()
    if console.is_terminal and width() < ROOM_FOR_DATES:
        shown.append(f"{time[11:] or time:<12}  ", "dim")
    else:
        shown.append(f"{time:<23}  ", "dim")
    shown.append(f"{partition:>4} {ordinal:>8} {version:>7} {large:>10}  ")
    shown.append(f"{kind:<16}  ", "bold")
    shown.append(key)
    return shown
