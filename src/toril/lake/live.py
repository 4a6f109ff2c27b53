"""A generation against the live states: aggregate by aggregate, each at the version that live is at.

Live goes on after the cut. So the state of the generation is taken further by the same events before it is
compared: what differs then is a difference of code or of data, and not of time. An aggregate that only live
has is taken further from nothing, where it began after the cut; where it began before, the generation lacks
it. Where live has less, as it has not read so far, or an event waits, that is counted, and no difference.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events.projection import wants
from toril.lake.diff import SAMPLES, Diff, Held, Side, Tally
from toril.lake.generations import Generation, read
from toril.lake.history import KEYS
from toril.lake.keysets import Key, Keysets, named
from toril.lake.lake import Lake
from toril.lake.quoting import quoted
from toril.lake.subjects import Subject, code_of
from toril.lake.tables import EVENTS
from toril.log import HistoryTrimmed, Log, Partition
from toril.log.entry import START
from toril.runtime.backend import Backend
from toril.runtime.redis import RedisBackend
from toril.runtime.service import EventSourcingService
from toril.runtime.work import ANY_TYPE, ProjectionWork

AT_ONCE = 64
"""Aggregates that are asked for at the same time."""

READ_AT_ONCE = 500
"""Events of an aggregate that are read at a time."""

NAMES_AT_ONCE = 20_000
"""Live aggregates that are named in one go."""

BUCKETS = 10_000
"""Parts into which a sample divides aggregates, by their keys."""

ALL = "true"
"""The sample that all are in."""


async def diff_live(
    lake: Lake,
    generation: Generation,
    subject: Subject,
    service: EventSourcingService,
    backend: Backend,
    *,
    fraction: float = 1.0,
    samples: int = SAMPLES,
    told: Callable[[int, int], None] | None = None,
) -> Diff:
    """Compare a generation with what readers see; with a ``fraction``, the same ones of them each time.

    ``told`` is told how many aggregates were compared, and of about how many.
    """
    if not 0 < fraction <= 1:
        raise InvalidValue("fraction", fraction, "more than 0, and at most 1")
    work = await service.generations.reading(subject.name)
    subject = subject.of_version(generation.plan.code.projection)
    part = max(1, round(fraction * BUCKETS))
    chosen = f"pmod(xxhash64({', '.join(KEYS)}), {BUCKETS}) < {part}" if part < BUCKETS else ALL
    rows = read(lake, generation).select(*KEYS, *Held._fields).where(chosen)
    live = Side("live", code_of(work.projection, upcasters=work.upcasters))
    tally = Tally(Side.of(generation.plan), live, samples)
    expected = round((generation.rows or 0) * part / BUCKETS)
    apart: Counter[str] = Counter()
    with Keysets() as keys:
        there = await asyncio.to_thread(rows.toLocalIterator, prefetchPartitions=True)
        while some := await asyncio.to_thread(_some, there):
            pairs = await asyncio.gather(*(_pair(row, lake, subject, work, service, backend) for row in some))
            for row, (one, other, why) in zip(some, pairs, strict=True):
                key = (row["tenant"], row["aggregate_type"], row["aggregate_id"])
                keys.add(GENERATION, key)
                if why:
                    apart[why] += 1
                    continue
                tally.compare(key, one, other)
            if told is not None:
                told(tally.compared, expected)
        await _list_live(keys, rows, chosen, generation, subject, backend)
        async for aggregate, place in _only_live(keys, lake, rows, chosen, work, backend):
            found = await _live(aggregate, work, backend)
            if found is None:
                continue
            held = None
            if place is not None and place[1] > generation.plan.cut.get(place[0], (0, ""))[0]:
                held = await _further(Held(0, None), found, aggregate, lake, subject, work, service, backend)
            tally.compare((aggregate.tenant, aggregate.type, aggregate.id), held, found)
    return replace(tally.finished(), not_read=apart[NOT_READ], waiting=apart[WAITS])


# ---------------------------------------------------------------------------- what only live has

GENERATION, LIVE, ARCHIVED = "generation", "live", "archived"
"""Who has an aggregate, or an event of it."""


async def _list_live(
    keys: Keysets, rows: DataFrame, chosen: str, generation: Generation, subject: Subject, backend: Backend
) -> None:
    """Note which aggregates of the live log are to be compared."""
    tenant = generation.plan.filters.tenant
    async for page in aggregates_in(_log_of(backend)):
        wanted = [
            (one.tenant, one.type, one.id)
            for one in map(Aggregate.parse, page)
            if subject.aggregate_type in (ANY_TYPE, one.type) and tenant in (None, one.tenant)
        ]
        for key in await asyncio.to_thread(_sampled, rows.sparkSession, chosen, wanted):
            keys.add(LIVE, key)


def _sampled(spark: SparkSession, chosen: str, names: Sequence[Key]) -> Sequence[Key]:
    """Of aggregates by name, those that are in the sample."""
    if chosen == ALL or not names:
        return names
    return [tuple(row) for row in named(spark, KEYS, names).where(chosen).collect()]


async def _only_live(
    keys: Keysets, lake: Lake, rows: DataFrame, chosen: str, work: ProjectionWork, backend: Backend
) -> AsyncIterator[tuple[Aggregate, tuple[str, int] | None]]:
    """Aggregates that only live has, each once, and where in the log their first events are or were."""
    with Keysets() as trimmed:
        found = 0
        for part in keys.parts():
            lacking = sorted(part[LIVE].keys() - part[GENERATION].keys())
            for first in range(0, len(lacking), AT_ONCE):
                some = [Aggregate(*key) for key in lacking[first : first + AT_ONCE]]
                places = await asyncio.gather(*(_place(_log_of(backend), one) for one in some))
                for aggregate, place in zip(some, places, strict=True):
                    if place is not None:
                        yield aggregate, place
                    elif await backend.find(work.processor, aggregate) is not None:
                        trimmed.add(LIVE, (aggregate.tenant, aggregate.type, aggregate.id))
                        found += 1
        if found:
            await asyncio.to_thread(_note_archived, trimmed, lake, rows, chosen)
            for part in trimmed.parts():
                for key in sorted(part[LIVE]):
                    archived = part[ARCHIVED].get(key)
                    yield Aggregate(*key), None if archived is None else (archived[0], archived[1])


async def _place(log: Log, aggregate: Aggregate, version: int = 1) -> tuple[str, int] | None:
    """Where an event of an aggregate is, the first one by default; None where it was trimmed."""
    try:
        first = await log.read(aggregate, version, most=1)
    except HistoryTrimmed:
        return None
    return (str(first[0].partition), first[0].ordinal) if first and first[0].ordinal else None


def _note_archived(keys: Keysets, lake: Lake, rows: DataFrame, chosen: str) -> None:
    """Where the first events are of aggregates that the generation does not have."""
    firsts = lake.read(EVENTS).where("version = 1").where(chosen)
    lacking = firsts.join(rows.select(*KEYS), list(KEYS), "left_anti")
    names = [*KEYS, "log_epoch", "log_partition", "ordinal"]
    for row in lacking.select(*names).toLocalIterator(prefetchPartitions=True):
        place = str(Partition(row["log_epoch"], row["log_partition"])), row["ordinal"]
        keys.add(ARCHIVED, tuple(row[name] for name in KEYS), place)


async def aggregates_in(log: Log) -> AsyncIterator[list[str]]:
    """All aggregates of a log by their keys, in Redis and cold, some at a time; one may come twice."""
    page: list[str] = []
    layout = await log.layout(anew=True)
    # While a resize is unfinished, some are only in the epoch before.
    for partition in layout.partitions() if layout.carrying else layout.current.all():
        cursor = -1
        while cursor:
            cursor, some = await log.store(partition).scan_hot(max(cursor, 0), READ_AT_ONCE)
            page += some
            if len(page) >= NAMES_AT_ONCE:
                yield page
                page = []
    if log.cold is not None:
        async for aggregate in log.cold.aggregates():
            page.append(aggregate.key)
            if len(page) >= NAMES_AT_ONCE:
                yield page
                page = []
    yield page


def _log_of(backend: Backend) -> Log:
    """The log whose live states are compared: what is replayed is on a server."""
    assert isinstance(backend, RedisBackend)
    return backend.log


# ---------------------------------------------------------------------------- what both have

NOT_READ, WAITS = "not read", "waits"
"""Why live has less of an aggregate, where that is no difference."""


def _some(there: Iterator[Row]) -> Sequence[Row]:
    return list(islice(there, AT_ONCE))


async def _pair(
    row: Row,
    lake: Lake,
    subject: Subject,
    work: ProjectionWork,
    service: EventSourcingService,
    backend: Backend,
) -> tuple[Held, Held | None, str]:
    """What the generation has of an aggregate, taken as far as live is, and what live has.

    And why live has less, where it will have more without any change of code.
    """
    aggregate = Aggregate(*(row[name] for name in KEYS))
    state = None if row["state"] is None else bytes(row["state"])
    held = Held(row["version"], state, row["failed_version"], row["failed"])
    found = await _live(aggregate, work, backend)
    if found is None or found.version < held.version or _tried(found) < _tried(held):
        if why := await _why_less(found, aggregate, work, backend):
            return held, found, why
        if found != await _live(aggregate, work, backend):  # it has gone on meanwhile
            return await _pair(row, lake, subject, work, service, backend)
    if found is None or _tried(found) <= held.version:
        return held, found, ""
    return await _further(held, found, aggregate, lake, subject, work, service, backend), found, ""


def _tried(held: Held) -> int:
    """The last event that it has taken, or could not take."""
    return held.failed_version or held.version


async def _why_less(
    found: Held | None, aggregate: Aggregate, work: ProjectionWork, backend: Backend
) -> str | None:
    """Why live does not have the next event; None where it has passed it, and should."""
    loaded = await backend.find(work.processor, aggregate)
    if loaded is not None and loaded.status != "p":
        return WAITS
    place = await _place(_log_of(backend), aggregate, 1 if found is None else found.version + 1)
    if place is None:  # what is trimmed was read
        return None
    (at,) = await backend.positions(Partition.parse(place[0]), [work.processor])
    return NOT_READ if (at or START).ordinal < place[1] else None


async def _live(aggregate: Aggregate, work: ProjectionWork, backend: Backend) -> Held | None:
    loaded = await backend.find(work.processor, aggregate)
    if loaded is None:
        return None
    projection, state, version = work.projection, loaded.state, loaded.version
    if work.store is not None:
        kept = await work.store.load(projection, aggregate)
        if kept is not None:
            state, version = projection.encode(kept.state), kept.version
        elif version:
            return None
    if state is None:  # it has taken no event yet, so nothing is kept
        state = projection.encode(projection.initial())
    return Held(version, state, loaded.version + 1 if loaded.status == "f" else None)


async def _further(
    held: Held,
    found: Held,
    aggregate: Aggregate,
    lake: Lake,
    subject: Subject,
    work: ProjectionWork,
    service: EventSourcingService,
    backend: Backend,
) -> Held:
    """A state taken on by the events that live has tried, up to the first that it cannot take."""
    projection = subject.projection
    state = projection.initial() if held.state is None else projection.decode(held.state)
    name = aggregate.id if subject.aggregate_type == aggregate.type else f"{aggregate.type}:{aggregate.id}"
    left_out = await service.skipped(work.name, aggregate.tenant, name)
    at = held.version
    while recorded := await _recorded(
        lake, backend, aggregate, at + 1, min(at + READ_AT_ONCE, _tried(found))
    ):
        for one in recorded:
            try:
                if one.version not in left_out:
                    event = subject.event(aggregate.key, *one)
                    state = projection.apply(state, event) if wants(projection.event_types, event) else state
            except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
                failed = f"{type(problem).__name__}: {problem}"
                return Held(at, projection.encode(state), one.version, failed)
            at = one.version
    return Held(at, projection.encode(state))


class _Recorded(NamedTuple):
    """An event as it was recorded, which may be one that cannot be read."""

    version: int
    recorded_at: int
    body: bytes


async def _recorded(
    lake: Lake, backend: Backend, aggregate: Aggregate, first: int, last: int
) -> Sequence[_Recorded]:
    """Events of an aggregate, from the log, or from the lake where they were trimmed."""
    if first > last:
        return []
    try:
        entries = await _log_of(backend).read(aggregate, first, most=last - first + 1)
    except HistoryTrimmed:
        return await asyncio.to_thread(_archived, lake, aggregate, first, last)
    return [_Recorded(one.version, one.recorded_at, one.body) for one in entries]


def _archived(lake: Lake, aggregate: Aggregate, first: int, last: int) -> Sequence[_Recorded]:
    rows = lake.read(EVENTS).where(f"{_is(aggregate)} AND version BETWEEN {first} AND {last}")
    chosen = rows.select(*_Recorded._fields).orderBy("version")
    return [_Recorded(version, recorded_at, bytes(body)) for version, recorded_at, body in chosen.collect()]


def _is(aggregate: Aggregate) -> str:
    """Which rows are an aggregate's."""
    return (
        f"tenant = {quoted(aggregate.tenant)} AND aggregate_type = {quoted(aggregate.type)} AND "
        f"aggregate_id = {quoted(aggregate.id)}"
    )
