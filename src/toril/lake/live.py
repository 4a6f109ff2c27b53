"""A generation against the live states: aggregate by aggregate, each at the version that live is at.

Live goes on after the cut. So the state of the generation is taken further by the same events before it is
compared: what differs then is a difference of code or of data, and not of time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice

from pyspark.sql import Row

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events.errors import StoreError
from toril.events.event import AnyEvent, restore_event
from toril.events.projection import wants
from toril.events.upcasters import Upcasters
from toril.lake.diff import SAMPLES, Diff, Held, Side, Tally
from toril.lake.generations import Generation, read
from toril.lake.history import KEYS, quoted
from toril.lake.lake import Lake
from toril.lake.subjects import Subject, code_of
from toril.lake.tables import EVENTS
from toril.runtime.backend import Backend
from toril.runtime.service import EventSourcingService
from toril.runtime.work import ProjectionWork

AT_ONCE = 64
"""Aggregates that are asked for at the same time."""

READ_AT_ONCE = 500
"""Events of an aggregate that are read at a time."""

BUCKETS = 10_000
"""Parts into which a sample divides aggregates, by their keys."""


async def diff_live(
    lake: Lake,
    generation: Generation,
    subject: Subject,
    service: EventSourcingService,
    backend: Backend,
    *,
    fraction: float = 1.0,
    samples: int = SAMPLES,
) -> Diff:
    """Compare a generation with what readers see; with a ``fraction``, the same ones of them each time."""
    if not 0 < fraction <= 1:
        raise InvalidValue("fraction", fraction, "more than 0, and at most 1")
    work = await service.generations.reading(subject.name)
    rows = read(lake, generation).select(*KEYS, *Held._fields)
    if fraction < 1:
        part = max(1, round(fraction * BUCKETS))
        rows = rows.where(f"pmod(xxhash64({', '.join(KEYS)}), {BUCKETS}) < {part}")
    live = Side("live", code_of(work.projection))
    tally = Tally(Side.of(generation.plan), live, samples)
    there = await asyncio.to_thread(rows.toLocalIterator, prefetchPartitions=True)
    while some := await asyncio.to_thread(_some, there):
        pairs = await asyncio.gather(*(_pair(row, lake, subject, work, service, backend) for row in some))
        for row, (one, other) in zip(some, pairs, strict=True):
            tally.compare((row["tenant"], row["aggregate_type"], row["aggregate_id"]), one, other)
    return tally.finished()


def _some(there: Iterator[Row]) -> Sequence[Row]:
    return list(islice(there, AT_ONCE))


async def _pair(
    row: Row,
    lake: Lake,
    subject: Subject,
    work: ProjectionWork,
    service: EventSourcingService,
    backend: Backend,
) -> tuple[Held, Held | None]:
    """What the generation has of an aggregate, taken as far as live is, and what live has."""
    aggregate = Aggregate(*(row[name] for name in KEYS))
    state = None if row["state"] is None else bytes(row["state"])
    held = Held(row["version"], state, row["failed_version"], row["failed"])
    found = await _live(aggregate, work, backend)
    if found is None or found.version <= held.version:
        return held, found
    return await _further(held, found.version, aggregate, lake, subject, work, service), found


async def _live(aggregate: Aggregate, work: ProjectionWork, backend: Backend) -> Held | None:
    loaded = await backend.find(work.processor, aggregate)
    if loaded is None:
        return None
    failed = loaded.version + 1 if loaded.status == "f" else None
    if work.store is None:
        return Held(loaded.version, loaded.state, failed)
    kept = await work.store.load(work.projection, aggregate)
    return None if kept is None else Held(kept.version, work.projection.encode(kept.state), failed)


async def _further(
    held: Held,
    version: int,
    aggregate: Aggregate,
    lake: Lake,
    subject: Subject,
    work: ProjectionWork,
    service: EventSourcingService,
) -> Held:
    """A state taken on by the events after it, as live has them, up to the first that it cannot take."""
    projection = subject.projection
    state = projection.initial() if held.state is None else projection.decode(held.state)
    name = aggregate.id if subject.aggregate_type == aggregate.type else f"{aggregate.type}:{aggregate.id}"
    left_out = await service.skipped(work.name, aggregate.tenant, name)
    at = held.version
    while at < version:
        last = min(at + READ_AT_ONCE, version)
        try:
            events = (await service.store.read(aggregate, at + 1, last - at)).events
        except StoreError:  # they were trimmed
            events = await asyncio.to_thread(_archived, lake, subject, aggregate, at + 1, last)
        if not events:
            break
        for event in events:
            try:
                if event.version not in left_out and wants(projection.event_types, event):
                    state = projection.apply(state, event)
            except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
                failed = f"{type(problem).__name__}: {problem}"
                return Held(at, projection.encode(state), event.version, failed)
            at = event.version
    return Held(at, projection.encode(state))


def _archived(
    lake: Lake, subject: Subject, aggregate: Aggregate, first: int, last: int
) -> tuple[AnyEvent, ...]:
    """Events of an aggregate from the lake."""
    upcasters = subject.upcasters or Upcasters()
    rows = lake.read(EVENTS).where(
        f"tenant = {quoted(aggregate.tenant)} AND aggregate_type = {quoted(aggregate.type)} AND "
        f"aggregate_id = {quoted(aggregate.id)} AND version BETWEEN {first} AND {last}"
    )
    return tuple(
        upcasters.apply(
            restore_event(
                bytes(row["body"]), aggregate.key, version=row["version"], recorded_at=row["recorded_at"]
            )
        )
        for row in rows.select("version", "recorded_at", "body").orderBy("version").collect()
    )
