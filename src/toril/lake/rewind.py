"""Going on after a failover has lost what the lake has: back to the last entry that log and lake both have.

An abrupt failover may lose entries that were archived already. The log goes on without them, and gives their
ordinals and versions to other events: two histories, of which only one can go on. So the archive leaves the
partition alone, until somebody decides. To rewind it is to decide for the log's:

1. the rows of lost entries are copied to the table ``lost``, so that nothing is thrown away;
2. the tables that are made of events are removed; the next run makes them anew;
3. the rows are deleted from ``events``, and the same commit says that the table is back at the last entry
   that both have.

It can be cut off anywhere and run again. Nothing else may write to the lake meanwhile: it is refused while a
command that writes has not said that it ended, and is not known to be gone; which only the machine knows that
it ran on. Should one write all the same, it is noticed: the numbers of both batches are taken before anything
is read, and whose they are is looked at afterwards.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec
from pyspark.sql.functions import current_timestamp, desc

from toril.errors import InvalidValue
from toril.lake.archive import GROUP, lost
from toril.lake.errors import LakeError, OtherWriter, SourceDiverged
from toril.lake.files import files_of
from toril.lake.generations import generations
from toril.lake.lake import Lake, Record
from toril.lake.runs import ONLY_READ, RUNS, Runs
from toril.lake.source import Door
from toril.lake.summaries import TRACE_SUMMARIES
from toril.lake.tables import BATCH, EVENTS, LOG_COLUMNS, QUARANTINE, ROLLUPS, SPANS, Column, Table
from toril.log import Log, Partition, Position
from toril.log.entry import START, ordinal_of

LOST = Table(
    name="lost",
    comment="Events that were archived, and that a failover has then lost from the log: another history.",
    columns=(
        *LOG_COLUMNS,
        Column("noted_at", "timestamp", "When they were taken out of events.", True),
        BATCH,
    ),
)

MADE_OF_EVENTS = (ROLLUPS, TRACE_SUMMARIES, SPANS, QUARANTINE)
"""What is removed, and made anew: the last one first, so that none is there without what it is made of."""

AT_ONCE = 200
"""Entries that the log is asked for in one go."""


@dataclass(slots=True, kw_only=True)
class Rewound:
    """What a rewind has done."""

    partition: str
    to: Position
    """The last entry that log and lake both have."""
    lost: int
    """Events that are in the table ``lost`` now."""
    removed: list[str] = field(default_factory=list)
    """Tables that the next run makes anew."""
    generations: list[str] = field(default_factory=list)
    """Generations that were made of lost events as well: replay those projections again."""


def rewind(
    lake: Lake,
    partition: str,
    *,
    url: str | None,
    log: str = "log",
    group: str = GROUP,
    force: bool = False,
    run: str = "",
) -> Rewound:
    """Take a partition back to the last entry that log and lake both have. See the module's text.

    ``group``: the archive's name in the log. ``force``: whoever asks knows that nothing is under way,
    whatever the table ``runs`` says. ``run``: what this is called there itself.
    """
    files = files_of(lake)  # first: where they cannot be reached, nothing is begun
    lake.check_all()
    lake.check(EVENTS)
    if not force:
        _refuse_beside_others(lake, run)
    have = lake.last(EVENTS)
    if partition not in have.positions:
        there = ", ".join(sorted(have.positions)) or "none"
        raise InvalidValue("partition", partition, f"one that the lake has events of: {there}")
    with Door(url, log) as door:
        at = have.positions[partition]
        problem = door.do(lost(door.log, {partition: at})).get(partition)
        if not isinstance(problem, SourceDiverged):
            raise LakeError(f"partition {partition} has lost nothing that the lake has (nothing was changed)")
        to = _last_common(lake, door, Partition.parse(partition), group)
    after = f"{_of(partition)} AND ordinal > {to.ordinal}"
    with_them = _with_them(lake, partition, to)
    made = Rewound(partition=partition, to=to, lost=_copy(lake, after), generations=with_them)
    for table in MADE_OF_EVENTS:
        if lake.exists(table):
            files.remove(table.name)
            made.removed.append(table.name)
    positions = {**have.positions, partition: (to.ordinal, to.id)}
    back = msgspec.structs.replace(have, batch=have.batch + 1, positions=positions, run=_own_name())
    with lake.recording(EVENTS, back):
        lake.spark.sql(f"DELETE FROM {lake.sql_name(EVENTS)} WHERE {after}")  # noqa: S608 - numbers of ours
    _check_ours(lake, EVENTS, back)
    return made


def _refuse_beside_others(lake: Lake, own: str) -> None:
    if not lake.exists(RUNS):
        return
    for one in Runs(lake).running():
        if one.run != own and one.what not in ONLY_READ:
            raise LakeError(
                f"{one.what} {one.run} is under way (process {one.pid} on {one.host}): stop it first. If you "
                "know that it was killed there and never said so, use --force (nothing was changed)"
            )


def _own_name() -> str:
    return f"rewind-{secrets.token_urlsafe(9)}"


def _check_ours(lake: Lake, table: Table, record: Record) -> None:
    """An error where another process took the number of a batch: then Delta has dropped ours in silence."""
    if lake.last(table, record.batch).run != record.run:
        raise OtherWriter(
            f"another process has written batch {record.batch} of {lake.place(table)} meanwhile: stop what "
            "writes to the lake; the same command finishes this"
        )


def _of(partition: str) -> str:
    epoch, number = Partition.parse(partition)
    return f"log_epoch = {epoch} AND log_partition = {number}"


def _last_common(lake: Lake, door: Door, partition: Partition, group: str) -> Position:
    """The last entry that log and lake both have.

    It is never before the archive's floor, which was moved to what both had: there may be no row of that, as
    its tenant was erased. Nor is it in what was trimmed, of which the lake has all that it can have.
    """
    standing = door.do(door.log.store(partition).look())
    if group not in standing.readers:
        there = ", ".join(sorted(standing.readers)) or "none"
        raise InvalidValue("group", group, f"the archive's name in the log, one of its readers: {there}")
    floor, trimmed = standing.readers[group].position, Position(standing.trimmed, START.id)
    has = lake.last(EVENTS).positions[str(partition)][0]
    if floor.ordinal > has or door.do(door.log.kept_in(group)) not in (None, lake.identity(EVENTS)):
        rule = f"the name under which {lake.place(EVENTS)} is fed: that is another lake's"
        raise InvalidValue("group", group, rule)
    least = floor if floor.ordinal >= trimmed.ordinal else trimmed
    places = _places_from(lake, partition, least.ordinal)
    while some := list(islice(places, AT_ONCE)):
        for (ordinal, ident), both in zip(some, door.do(_has(door.log, partition, some)), strict=True):
            if both or ordinal <= trimmed.ordinal:
                return Position(ordinal, ident)
    return least


def _places_from(lake: Lake, partition: Partition, ordinal: int) -> Iterator[tuple[int, str]]:
    """Where the lake has events from an ordinal on, the last one first."""
    rows = lake.read(EVENTS).where(f"{_of(str(partition))} AND ordinal >= {ordinal}")
    found: Iterator[tuple[int, str]] = iter(
        rows.select("ordinal", "entry_id").orderBy(desc("ordinal")).toLocalIterator()
    )
    return found


async def _has(log: Log, partition: Partition, places: Sequence[tuple[int, str]]) -> list[bool]:
    """Of each place, whether the log has that entry there."""
    key = log.store(partition).keys.entries
    found = await log.redis.read_many([("XRANGE", key, ident, ident) for _, ident in places], key)
    return [
        bool(page) and ordinal_of(page[0]) == ordinal
        for page, (ordinal, _) in zip(found, places, strict=True)
    ]


def _copy(lake: Lake, after: str) -> int:
    """Copy rows to the table ``lost``, those that are not there; how many there are."""
    lake.ensure(LOST)
    record = Record(batch=lake.last(LOST).batch + 1, run=_own_name())
    rows = lake.read(EVENTS).where(after).select(*(column.name for column in LOG_COLUMNS))
    place = ["log_epoch", "log_partition", "ordinal", "entry_id"]
    new = rows.join(lake.read(LOST).select(*place), place, "left_anti")
    lake.append(new.withColumn("noted_at", current_timestamp()), LOST, record)
    _check_ours(lake, LOST, record)
    return rows.count()


def _with_them(lake: Lake, partition: str, to: Position) -> list[str]:
    """The generations whose cut is after the last entry that both have."""
    return [
        f"{one.plan.projection} {one.number}"
        for one in generations(lake)
        if one.state != "retired" and one.plan.cut.get(partition, START)[0] > to.ordinal
    ]
