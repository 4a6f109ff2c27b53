"""Promote: the states of a generation go to the live store, its processor catches up, and readers see it.

Each step can be cut off anywhere and run again. Live traffic goes on all the time, and so does the generation
that was seen before, until it is retired.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from pyspark.sql import DataFrame, Row

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events.errors import ConfigurationError
from toril.lake.engine.fold import gap
from toril.lake.errors import LakeError, NotWhole
from toril.lake.generations import Generation, read, remove
from toril.lake.history import KEYS, history
from toril.lake.lake import Lake
from toril.lake.sending import sent_round
from toril.lake.subjects import Code, code_of, version_said
from toril.log import Log
from toril.log.layout import LOADING
from toril.runtime.backend import Rebuilt
from toril.runtime.generations import WITHIN, GenerationBehind, GenerationStanding, Loaded
from toril.runtime.names import generation_name, split_generation
from toril.runtime.pipeline import Definition
from toril.runtime.service import EventSourcingService
from toril.runtime.work import ProjectionWork

ROWS_AT_ONCE = 500
"""Rows that are taken from Spark at a time."""

MOST_FAILED = 10_000
"""Aggregates with an event that could not be taken, of a generation that is promoted."""

EVENTS_AT_ONCE = 2000
BYTES_AT_ONCE = 4 * 1024 * 1024
"""Events of one aggregate that wait for a decision, and their bytes, passed by one event at most, that are
brought at a time."""

PARTITION_BYTES = 16 * 1024 * 1024
"""Bytes of such events that are taken from Spark at a time, about."""

ROW_BYTES = 200
"""Bytes that an event has besides its body, about."""

SAID = 5
"""Fields that are named where they are declared otherwise."""

LOOK_EVERY = 0.2
"""Seconds between two looks at how far a generation has caught up."""


class Progress:
    """Told how far a promotion is. All of it may be left out."""

    def other_code(self, made_by: Code, goes_on_by: Code) -> None:
        """Its code has changed since its states were made, though not the fields that it declares."""

    def loading(self, loaded: Loaded, of: int) -> None:
        """States have come."""

    def loaded(self, loaded: Loaded) -> None:
        """All states have come."""

    def behind(self, standing: GenerationStanding, runs: bool) -> None:
        """How far it has caught up, and whether a worker runs it."""

    def ready(self, standing: GenerationStanding) -> None:
        """It has caught up. Where it falls behind before readers are switched, it is told again."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """What a promotion has done."""

    number: int
    before: int
    """Which generation readers saw before; 0: none."""
    loaded: Loaded
    failed: int
    """How many aggregates stand still, at an event that the projection could not take."""


async def promote(
    lake: Lake,
    generation: Generation,
    service: EventSourcingService,
    *,
    url: str | None,
    within: int = WITHIN,
    patience: float | None = None,
    progress: Progress | None = None,
) -> Promoted:
    """Load a generation, wait until it has caught up within so many events, and let readers see it.

    The last few events are waited for as well, if only for a moment (see :meth:`Generations.draw_level
    <toril.runtime.generations.Generations.draw_level>`), so that readers do not go back in time.
    ``service``: of the pipeline that it belongs to. ``patience``: seconds to wait; None: as long as it takes.
    """
    told = progress or Progress()
    loaded, failed = await load(lake, generation, service, url=url, progress=told)
    told.loaded(loaded)
    name, number = _name(generation), generation.number
    began = time.monotonic()
    while True:
        standing = await service.generations.ready(name, number, within=within)
        if standing.state != "catching up":
            told.ready(standing)
            with suppress(GenerationBehind):  # it has fallen behind again just now
                before = await service.generations.switch(name, number, within=within)
                return Promoted(number, before, loaded, failed)
            continue
        runs = await _runs(service, generation_name(name, number))
        told.behind(standing, runs)
        if patience is not None and time.monotonic() - began > patience:
            who = "no worker runs it" if not runs else "its workers are not fast enough"
            raise LakeError(
                f"generation {number} of {generation.plan.projection} is {standing.behind:,} events behind "
                f"after {patience:g} s ({who}); readers still see the one before"
            )
        await asyncio.sleep(LOOK_EVERY)


async def load(
    lake: Lake,
    generation: Generation,
    service: EventSourcingService,
    *,
    url: str | None,
    progress: Progress | None = None,
) -> tuple[Loaded, int]:
    """Bring the states of a generation to the live store, and let workers go on from its cut.

    Says how many of them an event has stopped, too.
    """
    told = progress or Progress()
    refuse_part(generation)
    await _refuse_other(generation, service)
    if (here := other_code(generation, service.generations.program.definition)) is not None:
        told.other_code(generation.plan.code, here)
    rows = read(lake, generation)
    counts = rows.selectExpr("count(1)", "count_if(failed_version IS NOT NULL)")
    ((count, failed),) = await asyncio.to_thread(counts.collect)
    if failed > MOST_FAILED:
        raise LakeError(
            f"{failed:,} aggregates of generation {generation.number} of {generation.plan.projection} have "
            f"an event that the projection could not take, and {MOST_FAILED:,} may have: fix it first"
        )
    async with aclosing(_rebuilt(lake, generation, rows, url, failed)) as states:
        loaded = await service.generations.load(
            _name(generation),
            generation.number,
            states,
            progress=lambda done: told.loading(done, count),
        )
    return loaded, failed


async def take_back(service: EventSourcingService, name: str) -> tuple[int, int]:
    """Let readers see the generation that they saw before: which they see now, and which they saw.

    Where workers still run it, it draws level first, which takes a moment and never more than a few seconds.
    Where none do, readers see it at once, as far as it had come: what they see then may be older than what
    they saw.
    """
    standings = await service.generations.standings(name)
    seen = next((one.number for one in standings if one.state == "current"), 0)
    saw = await service.generations.before(name)
    if not saw:
        raise LakeError(f"readers of {name} see generation {seen or 'none'}, and saw none before it")
    before = saw[-1]
    state = next((one.state for one in standings if one.number == before), "gone")
    if state not in ("ready", "catching up"):
        raise LakeError(
            f"readers saw generation {before} of {name} before, and it is {state}: they still see {seen}; "
            "`toril lake promote` with a number lets them see another one"
        )
    await service.generations.draw_level(name, before)
    await service.generations.switch(name, before, force=True, back=True)
    return before, seen


async def retire(
    lake: Lake | None,
    generation: Generation | None,
    service: EventSourcingService | None,
    name: str,
    number: int,
    *,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Remove a generation from the live store and from the lake; says how many live states went.

    ``progress`` is told so as it goes.
    """
    gone = 0
    if service is not None:
        standings = await service.generations.standings(name)
        if any(one.number == number for one in standings):
            gone = await service.generations.retire(name, number, progress=progress)
    if lake is not None and generation is not None:
        await asyncio.to_thread(remove, lake, generation, time.time_ns())
    return gone


def refuse_part(generation: Generation) -> None:
    """Refuse what is not of all of history."""
    plan = generation.plan
    if plan.filters:
        raise LakeError(
            f"generation {plan.number} of {plan.projection} is of a part of history ({plan.filters}): "
            "it can be looked at, and not be promoted"
        )


def refuse_other_log(generation: Generation, log: str) -> None:
    """Refuse what was made of another log than the one whose live states are meant."""
    plan = generation.plan
    if plan.log != log:
        raise InvalidValue(
            "--log", log, f"generation {plan.number} of {plan.projection} was made of log {plan.log!r}"
        )


async def _refuse_other(generation: Generation, service: EventSourcingService) -> None:
    """Refuse what has the number of a generation that the live store knows, and is another one."""
    plan = generation.plan
    standing = await service.generations.ready(_name(generation), plan.number)
    if any(plan.cut.get(str(place)) != (at.ordinal, at.id) for place, at in standing.cut.items()):
        raise LakeError(
            f"generation {plan.number} of {plan.projection} has another cut here than the one that the "
            "live store keeps a place for: that is of another lake, or this one was only to be looked at; "
            "promote that one, or replay again"
        )


def other_code(generation: Generation, definition: Definition) -> Code | None:
    """The code by which this program would go on with a generation, where that is not what made it.

    Refused where its fields are declared otherwise: each state would be of both. None also where the program
    does not have that version of the projection, and so does not go on with it.
    """
    plan = generation.plan
    work = _work(generation, definition)
    here = None if work is None else code_of(work.projection, upcasters=work.upcasters)
    if here is None or here.digest == plan.code.digest:
        return None
    before, now = _kept(plan.code), _kept(here)
    others = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if others:
        more = ", …" if len(others) > SAID else ""
        raise LakeError(
            f"generation {plan.number} of {plan.projection} was made by {plan.code.projection} with other "
            f"fields than this program has ({', '.join(others[:SAID])}{more}): its states would be of both; "
            "replay again with this code, or give the projection another version"
        )
    return here


def _kept(code: Code) -> dict[str, Any]:
    """The fields that states have; what is derived of them is not kept."""
    return {name: said for name, said in code.fields.items() if "field" in said}


def _work(generation: Generation, definition: Definition) -> ProjectionWork | None:
    """What goes on with a generation in a program: declared under its number, or of the same version."""
    name, plan = _name(generation), generation.plan
    works = [one for one in definition.works.values() if isinstance(one, ProjectionWork)]
    of_it = [one for one in works if split_generation(one.name)[0] == name]
    declared = [one for one in of_it if one.name == generation_name(name, plan.number)]
    same = [one for one in of_it if version_said(one.projection) == plan.code.projection]
    return next(iter(declared + same), None)


# ---------------------------------------------------------------------------- states on their way


async def _rebuilt(
    lake: Lake, generation: Generation, rows: DataFrame, url: str | None, failed: int
) -> AsyncGenerator[Rebuilt]:
    """States as the live store takes them; a few at a time are here."""
    if failed:
        there = stopped(lake, generation, rows, url, failed)
        loop = asyncio.get_running_loop()
        # One thread: what closes it comes after what it is doing.
        with ThreadPoolExecutor(1) as thread:
            try:
                while (one := await loop.run_in_executor(thread, next, there, None)) is not None:
                    yield one
            finally:
                await loop.run_in_executor(thread, there.close)
    chosen = rows.where("failed_version IS NULL").select(*KEYS, "version", "state")
    others = await asyncio.to_thread(chosen.toLocalIterator, prefetchPartitions=True)
    while some := await asyncio.to_thread(_some, others):
        for row in some:
            yield Rebuilt(_aggregate(row), row["version"], _state(row["version"], row["state"]))


def stopped(
    lake: Lake, generation: Generation, rows: DataFrame, url: str | None, count: int
) -> Generator[Rebuilt, None, None]:
    """So many aggregates with an event that the projection could not take, with all from that up to the cut.

    They come in portions, as there may be many of them.
    """
    failed = rows.where("failed_version IS NOT NULL")
    with history(lake, url, generation.plan.log, generation.plan.cut) as all_of_it:
        reached = sent_round(failed.selectExpr(*KEYS, "version AS reached"), count)
        events = all_of_it.events().join(reached, list(KEYS)).where("version > reached")
        # First the state, and then what comes after it.
        zero = "CAST(0 AS bigint)"
        parts = failed.selectExpr(
            *KEYS, "version AS reached", f"{zero} AS place", f"{zero} AS recorded_at", "state AS value"
        ).union(events.selectExpr(*KEYS, "reached", "version", "recorded_at", "body"))
        parts = all_of_it.keep(parts)
        (size,) = parts.selectExpr(f"sum(coalesce(length(value), 0) + {ROW_BYTES})").collect()[0]
        order = (*KEYS, "place")
        # One of Spark's partitions at a time is here.
        ordered = parts.repartitionByRange(-(-size // PARTITION_BYTES), *order).sortWithinPartitions(*order)
        door = all_of_it.door
        yield from in_portions(
            ordered.toLocalIterator(), lambda one: door.do(was_erased(door.log, generation, one))
        )


async def was_erased(log: Log, generation: Generation, aggregate: Aggregate) -> bool:
    """Whether an aggregate's tenant was erased since a generation got its place: live, it is refused."""
    reader = generation_name(generation.plan.projection, generation.number) + LOADING
    for epoch in (await log.layout(anew=True)).epochs:
        keys = log.store(epoch.of(aggregate)).keys
        for key in (keys.walls, keys.erased_since(reader)):
            if await log.redis.command("SISMEMBER", key, aggregate.tenant):
                return True
    return False


def in_portions(rows: Iterable[Row], erased: Callable[[Aggregate], bool]) -> Iterator[Rebuilt]:
    """Of each aggregate its state, then the events that wait, so many with the state and so many after it.

    An error where one is missing between them, unless it was erased: after a person's decision the live store
    would pass over it in silence. What came until then is as it must be, so another run goes on from there.
    """
    for aggregate, its in groupby(rows, _aggregate):
        yield from _portions(aggregate, its, erased)


def _portions(
    aggregate: Aggregate, rows: Iterator[Row], erased: Callable[[Aggregate], bool]
) -> Iterator[Rebuilt]:
    first = next(rows)
    reached = first["reached"]
    made = Rebuilt(aggregate, reached, _state(reached, first["value"]))
    waiting: list[tuple[int, int, bytes]] = []
    after = size = 0
    for row in rows:
        if row["place"] != reached + 1:
            if erased(aggregate):  # perhaps while it was read: some of it is there still
                break
            raise NotWhole(gap(aggregate.key, reached, row["place"]))
        reached += 1
        if len(waiting) >= EVENTS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield replace(made, waiting=waiting, after=after)
            after += len(waiting)
            made, waiting, size = replace(made, state=b""), [], 0
        waiting.append((row["place"], row["recorded_at"], bytes(row["value"])))
        size += len(row["value"])
    yield replace(made, waiting=waiting, after=after)


def _state(version: int, state: bytes | None) -> bytes:
    # As live, there is no state before the first event.
    return bytes(state) if version and state is not None else b""


def _some(there: Iterator[Row]) -> list[Row]:
    return list(islice(there, ROWS_AT_ONCE))


def _aggregate(row: Row) -> Aggregate:
    return Aggregate(*(row[name] for name in KEYS))


def _name(generation: Generation) -> str:
    return generation.plan.projection.partition("/")[2]


async def _runs(service: EventSourcingService, processor: str) -> bool:
    """Whether a worker has some of a processor's partitions."""
    try:
        return bool((await service.standing(processor)).owners)
    except ConfigurationError:  # of a version that this program does not have
        return True
