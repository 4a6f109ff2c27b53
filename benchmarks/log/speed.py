"""Appends and reads through the log, beside raw XADD and XRANGE with the same client.

The raw side writes the same four fields and bodies into as many streams, picks the stream of an aggregate
in the same way, and has as many entries under way.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from zlib import crc32

from toril import Connection, connect
from toril.aggregate import Aggregate
from toril.keyspace import Key, PartitionKeys
from toril.log import Append, Log
from toril.testing import Server

PARTITIONS = 64
AGGREGATES = 5_000
"""Among which appends are spread, where they do not begin new ones."""
IN_FLIGHT = 500
"""Events under way at a time, where there are many."""
BULK = 1_000
"""Events in one call of ``append_many``."""
FEW = 10
"""Events in an append of several."""
LOG_EVENTS = 96_000
"""Events in the log that is read."""
LONG = 1_000
"""Events of the one aggregate that is read."""
PAGE = 500
TENANT, KIND = "acme", "order"
BODY = b'{"type":"order.item_added","data":{"sku":"' + b"4bf92f3577b34da6" * 8 + b'","quantity":3}}'


class NotDone(RuntimeError):
    """What was to be written or read is not there."""


class Place:
    """Servers, a connection to them, an empty log, and streams for the raw side."""

    def __init__(self, servers: Sequence[Server], redis: Connection) -> None:
        self.servers = servers
        self.redis = redis
        self.log = Log(redis, "bench", partitions=PARTITIONS)
        self.streams = [PartitionKeys("raw", 1, number).entries for number in range(PARTITIONS)]
        self.numbers = count()

    async def empty(self) -> None:
        """Remove all that is there."""
        for server in self.servers:
            server.ask("FLUSHALL", "SYNC")
        self.log = Log(self.redis, "bench", partitions=PARTITIONS)
        await self.log.layout()
        self.numbers = count()

    def aggregate(self) -> Aggregate:
        """The next one in turn."""
        return Aggregate(TENANT, KIND, f"{next(self.numbers) % AGGREGATES:032x}")

    def new_aggregate(self) -> Aggregate:
        """One that was not there before."""
        return Aggregate(TENANT, KIND, f"{next(self.numbers):032x}")

    def cpu(self) -> float:
        """Processor time of the servers so far."""
        total = 0.0
        for server in self.servers:
            for line in server.ask("INFO", "cpu").decode().splitlines():
                name, _, value = line.partition(":")
                if name in ("used_cpu_sys", "used_cpu_user"):
                    total += float(value)
        return total

    def written(self) -> int:
        """Entries in all streams, as the servers know it."""
        script = (
            "local n = 0 for _, key in ipairs(redis.call('KEYS', '*:entries')) do "
            "n = n + redis.call('XLEN', key) end return n"
        )
        return sum(int(server.ask("EVAL", script, 0)) for server in self.servers)

    # ------------------------------------------------------------------ the raw side

    def xadd(self, number: int) -> Awaitable[object]:
        """One entry like the log's."""
        ident = f"{number % AGGREGATES:032x}"
        stream = self.streams[crc32(f"{TENANT}:{ident}".encode()) % PARTITIONS]
        aggregate = f"{TENANT}:{KIND}:{ident}"
        return self.redis.command("XADD", stream, "*", "o", number, "v", 1, "a", aggregate, "e1", BODY)

    async def pages(self, stream: Key) -> int:
        """Read a stream to its end, in pages."""
        at, entries = b"-", 0
        while True:
            page = await self.redis.command("XRANGE", stream, at, "+", "COUNT", PAGE)
            entries += len(page)
            if len(page) < PAGE:
                return entries
            at = b"(" + page[-1][0]


Side = Callable[[Place], Awaitable[int]]
"""Does something once and says how many events that were."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Something that is done again and again, through the log and raw."""

    title: str
    toril: Side
    raw: Side
    toril_tasks: int = 1
    raw_tasks: int = 1
    target: float | None = None
    peer: str = "raw XADD"
    fill: Callable[[Place], Awaitable[None]] | None = None
    """Written before, where something is read."""
    also_on_cluster: bool = True


async def _append(place: Place) -> int:
    await place.log.append(place.aggregate(), [BODY])
    return 1


async def _append_new(place: Place) -> int:
    await place.log.append(place.new_aggregate(), [BODY])
    return 1


async def _append_few(place: Place) -> int:
    await place.log.append(place.aggregate(), [BODY] * FEW)
    return FEW


async def _xadd(place: Place) -> int:
    await place.xadd(next(place.numbers))
    return 1


async def _append_many(place: Place) -> int:
    await _check(place.log.append_many([Append(place.aggregate(), [BODY]) for _ in range(BULK)]))
    return BULK


async def _append_many_few(place: Place) -> int:
    appends = [Append(place.aggregate(), [BODY] * FEW) for _ in range(BULK // FEW)]
    await _check(place.log.append_many(appends))
    return BULK


async def _check(results: Awaitable[Sequence[object]]) -> None:
    for result in await results:
        if isinstance(result, BaseException):
            raise result


async def _xadd_many(place: Place) -> int:
    await asyncio.gather(*(place.xadd(next(place.numbers)) for _ in range(BULK)))
    return BULK


async def _fill_log(place: Place) -> None:
    for _ in range(LOG_EVENTS // BULK):
        await _append_many(place)
        await _xadd_many(place)


async def _read_log(place: Place) -> int:
    entries = 0
    async with place.log.reader(page=PAGE) as reader:
        async for batch in reader.until_now():
            entries += len(batch.entries)
    if entries != LOG_EVENTS:
        raise NotDone(f"{entries} events of {LOG_EVENTS} were read")
    return entries


async def _xrange_log(place: Place) -> int:
    entries = 0
    for stream in place.streams:
        entries += await place.pages(stream)
    if entries != LOG_EVENTS:
        raise NotDone(f"{entries} entries of {LOG_EVENTS} were read")
    return entries


LONG_ONE = Aggregate(TENANT, KIND, "long")
LONG_STREAM = PartitionKeys("raw", 1, 99).entries


async def _fill_long(place: Place, each: int, between: int) -> None:
    """One aggregate's events, with some of another one in the same partition after each of its appends."""
    for _ in range(LONG // each):
        await place.log.append(LONG_ONE, [BODY] * each)
        if between:
            await place.log.append(Aggregate(TENANT, "other", LONG_ONE.id), [BODY] * between)
    for number in range(LONG):
        fields = ("o", number, "v", number, "a", LONG_ONE.key, "e1", BODY)
        await place.redis.command("XADD", LONG_STREAM, "*", *fields)


async def _fill_long_alone(place: Place) -> None:
    await _fill_long(place, 1, between=0)


async def _fill_long_single(place: Place) -> None:
    await _fill_long(place, 1, between=4)


async def _fill_long_few(place: Place) -> None:
    await _fill_long(place, FEW, between=4)


async def _read_long(place: Place) -> int:
    entries = await place.log.read(LONG_ONE, page=PAGE)
    if [entry.version for entry in entries] != list(range(1, LONG + 1)):
        raise NotDone("an aggregate was not read as it is")
    return len(entries)


async def _xrange_long(place: Place) -> int:
    entries = await place.pages(LONG_STREAM)
    if entries != LONG:
        raise NotDone(f"{entries} entries of {LONG} were read")
    return entries


WORKLOADS = (
    Workload("append one by one", _append, _xadd),
    Workload(
        f"append, {IN_FLIGHT} tasks",
        _append,
        _xadd,
        toril_tasks=IN_FLIGHT,
        raw_tasks=IN_FLIGHT,
        target=0.5,
    ),
    Workload(
        f"append to new aggregates, {IN_FLIGHT} tasks",
        _append_new,
        _xadd,
        toril_tasks=IN_FLIGHT,
        raw_tasks=IN_FLIGHT,
        target=0.5,
        also_on_cluster=False,
    ),
    Workload(f"append_many, {BULK:,} appends", _append_many, _xadd_many, target=0.5),
    Workload(
        f"append {FEW} events, {IN_FLIGHT // FEW} tasks",
        _append_few,
        _xadd,
        toril_tasks=IN_FLIGHT // FEW,
        raw_tasks=IN_FLIGHT,
        target=0.5,
    ),
    Workload(
        f"append_many, {BULK // FEW:,} appends of {FEW} events", _append_many_few, _xadd_many, target=0.5
    ),
    Workload(
        f"read a log of {LOG_EVENTS:,} events",
        _read_log,
        _xrange_log,
        target=0.5,
        peer="raw XRANGE",
        fill=_fill_log,
    ),
    Workload(
        f"read an aggregate, {LONG:,} appends of 1, nothing between",
        _read_long,
        _xrange_long,
        target=0.5,
        peer="raw XRANGE",
        fill=_fill_long_alone,
    ),
    Workload(
        f"read an aggregate, {LONG:,} appends of 1, others between",
        _read_long,
        _xrange_long,
        target=0.5,
        peer="raw XRANGE",
        fill=_fill_long_single,
    ),
    Workload(
        f"read an aggregate, {LONG // FEW:,} appends of {FEW}, others between",
        _read_long,
        _xrange_long,
        target=0.5,
        peer="raw XRANGE",
        fill=_fill_long_few,
        also_on_cluster=False,
    ),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one round gave one side."""

    per_second: float
    client_cpu: float
    """Microseconds per event, of this process."""
    server_cpu: float
    """Microseconds per event, of all servers."""


@dataclass(slots=True)
class Result:
    """What all rounds gave both sides."""

    toril: list[Reading] = field(default_factory=list)
    raw: list[Reading] = field(default_factory=list)

    def ratios(self, part: str = "per_second") -> list[float]:
        """How much better Toril was, round by round: the machine may be busier in some."""
        pairs = zip(self.values("toril", part), self.values("raw", part), strict=True)
        if part == "per_second":
            return [ours / theirs for ours, theirs in pairs]
        return [theirs / ours for ours, theirs in pairs]

    def values(self, side: str, part: str = "per_second") -> list[float]:
        """One side's readings of one part."""
        return [float(getattr(reading, part)) for reading in getattr(self, side)]

    def middle(self, side: str, part: str = "per_second") -> float:
        """Their median."""
        return median(self.values(side, part))


async def measure(
    servers: Sequence[Server],
    url: str,
    *,
    rounds: int,
    seconds: float,
    workloads: Sequence[Workload] = WORKLOADS,
) -> dict[Workload, Result]:
    """All workloads, both sides in turn; each round begins with the other side."""
    results = {load: Result() for load in workloads}
    async with connect(url) as redis:
        place = Place(servers, redis)
        gc.collect()
        gc.freeze()
        for load, found in results.items():
            if load.fill is not None:
                await place.empty()
                await load.fill(place)
            for turn in range(rounds):
                sides = [
                    (load.toril, load.toril_tasks, found.toril),
                    (load.raw, load.raw_tasks, found.raw),
                ]
                for side, tasks, readings in sides if turn % 2 == 0 else reversed(sides):
                    if load.fill is None:
                        await place.empty()
                    readings.append(await _read(place, load, side, tasks, seconds))
        await place.empty()
    return results


async def _read(place: Place, load: Workload, side: Side, tasks: int, seconds: float) -> Reading:
    events = await _repeat(place, side, tasks, seconds / 5)  # opens what has to be opened
    server, cpu, began = place.cpu(), time.process_time(), time.perf_counter()
    counted = await _repeat(place, side, tasks, seconds)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    server = place.cpu() - server
    if load.fill is None and place.written() != events + counted:
        raise NotDone(f"{load.title}: {place.written()} entries are there of {events + counted}")
    return Reading(counted / took, cpu / counted * 1e6, server / counted * 1e6)


async def _repeat(place: Place, side: Side, tasks: int, seconds: float) -> int:
    until = time.perf_counter() + seconds

    async def repeat() -> int:
        events = 0
        while True:
            events += await side(place)
            if time.perf_counter() >= until:
                return events

    if tasks == 1:
        return await repeat()
    return sum(await asyncio.gather(*(repeat() for _ in range(tasks))))
