"""How many calls a second, and how much processor time of the client each costs."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from toril.connection import Address

from .clients import OPENERS, Client

LARGE = 200_000
ARGUMENTS = [b"job-1234", b"token-" + b"t" * 30, b"1700000000000", b'{"payload":"' + b"x" * 135 + b'"}']
"""About 200 bytes, in the parts a queue's script would get."""

SMALL_SCRIPT = "redis.call('SET', KEYS[1], ARGV[4]) return ARGV[1]"
LARGE_SCRIPT = "redis.call('SET', KEYS[1], ARGV[1]) return #ARGV[1]"

Once = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Workload:
    """Something that tasks do again and again."""

    name: str
    tasks: int
    make: Callable[[Client], Once]
    also_on_cluster: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """What one round gave."""

    per_second: float
    cpu: float
    """Microseconds of processor time per call, all threads of this process together."""


@dataclass(frozen=True, slots=True)
class Result:
    """What all rounds gave one client."""

    readings: tuple[Reading, ...]

    @property
    def per_second(self) -> float:
        """The median of the rounds."""
        return median(reading.per_second for reading in self.readings)

    @property
    def cpu(self) -> float:
        """The median of the rounds."""
        return median(reading.cpu for reading in self.readings)

    @property
    def spread(self) -> float:
        """Half the way from the slowest to the fastest round, as a share of the median."""
        rates = [reading.per_second for reading in self.readings]
        return (max(rates) - min(rates)) / 2 / self.per_second

    def times_faster(self, other: Result) -> float:
        """The median of what the rounds say, each by itself: the machine may be busier in some."""
        pairs = zip(self.readings, other.readings, strict=True)
        return median(mine.per_second / theirs.per_second for mine, theirs in pairs)

    def times_cheaper(self, other: Result) -> float:
        """As before, by processor time."""
        pairs = zip(self.readings, other.readings, strict=True)
        return median(theirs.cpu / mine.cpu for mine, theirs in pairs)


def _get(client: Client, name: str) -> Once:
    key = client.key(name)
    return lambda: client.get(key)


def _run(client: Client, name: str, source: str, arguments: list[bytes]) -> Once:
    keys, call = [client.key(name)], client.prepare(source)
    return lambda: call(keys, arguments)


def _small(client: Client) -> Once:
    return _run(client, "{speed}small", SMALL_SCRIPT, ARGUMENTS)


def _large(client: Client) -> Once:
    return _run(client, "{speed}large", LARGE_SCRIPT, [b"x" * LARGE])


WORKLOADS = (
    Workload("GET", 1, lambda client: _get(client, "{speed}small")),
    Workload("script, 200 B", 1, _small),
    Workload("script, 200 B", 50, _small),
    Workload("script, 200 KB argument", 1, _large, also_on_cluster=False),
    Workload("GET, 200 KB reply", 1, lambda client: _get(client, "{speed}large"), also_on_cluster=False),
)


async def measure(
    addresses: Sequence[Address], clustered: bool, *, rounds: int, seconds: float
) -> dict[Workload, dict[str, Result]]:
    """All workloads with all clients, in rounds that start with another client each."""
    chosen = [load for load in WORKLOADS if load.also_on_cluster or not clustered]
    readings: dict[Workload, dict[str, list[Reading]]] = {
        load: {name: [] for name in OPENERS} for load in chosen
    }
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(opener(addresses, clustered))
            for name, opener in OPENERS.items()
        }
        # The keys that are read later; and every script is known to every server.
        for client in clients.values():
            await _small(client)()
            await _large(client)()
        gc.collect()
        gc.freeze()  # the modules of four clients are no part of a call's cost
        names = list(clients)
        for turn in range(rounds):
            for load in chosen:
                first = turn % len(names)
                for name in names[first:] + names[:first]:
                    once = load.make(clients[name])
                    await _read(once, load.tasks, seconds / 10)  # opens what a pool has to open
                    readings[load][name].append(await _read(once, load.tasks, seconds))
    return {
        load: {name: Result(tuple(found)) for name, found in by_name.items()}
        for load, by_name in readings.items()
    }


async def _read(once: Once, tasks: int, seconds: float) -> Reading:
    began, cpu = time.perf_counter(), time.process_time()
    until = began + seconds
    if tasks == 1:
        calls = await _repeat(once, until)
    else:
        calls = sum(await asyncio.gather(*(_repeat(once, until) for _ in range(tasks))))
    cpu = time.process_time() - cpu
    return Reading(calls / (time.perf_counter() - began), cpu / calls * 1e6)


async def _repeat(once: Once, until: float) -> int:
    calls = 0
    while True:
        await once()
        calls += 1
        if time.perf_counter() >= until:
            return calls
