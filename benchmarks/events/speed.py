"""Backlogs through Toril's worker and through bare loops, and how long a new event takes to its handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from statistics import median, quantiles
from typing import Any

import msgspec

from toril import connect
from toril.events import NewEvent
from toril.log import Log
from toril.runtime.redis import RedisBackend
from toril.stores import LogEventStore
from toril.testing import Server

from .load import EVENTS, EVENTS_EACH, PARTITIONS, TYPE, Summary, aggregate, expected, fill, fresh
from .player import FULL_NAME, STREAMS, bare_key, play

LONGEST_WAIT = 60.0
GAP = 0.02
"""Seconds between two events where latency is measured: 50 events/s."""
KINDS = ("handler", "projection")
BY_HAND = " by hand"
TWO = ", 2 processes"
SIDES: Mapping[str, Sequence[str]] = {
    kind: (kind, f"bare {kind}", f"{kind}{BY_HAND}", f"{kind}{TWO}") for kind in KINDS
}
SAMPLE = 20
"""Aggregates whose states are looked at after a run."""


class NotDone(RuntimeError):
    """What was to be processed is not."""


class Player:
    """A worker process."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def tell(self, what: object) -> None:
        """Say something to it."""
        self._pipe.send(what)

    def hear(self) -> Any:
        """What it says next."""
        if not self._pipe.poll(LONGEST_WAIT):
            raise NotDone("a worker process does not answer")
        return self._pipe.recv()


@contextmanager
def players(number: int) -> Iterator[list[Player]]:
    """So many worker processes; they are gone afterwards."""
    context = get_context("spawn")
    made, processes = [], []
    try:
        for _ in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=play, args=(theirs,), daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
            made.append(Player(ours))
        yield made
    finally:
        for process in processes:
            process.kill()
            process.join()


@dataclass(frozen=True, slots=True)
class Reading:
    """What one run gave."""

    per_second: float
    client_cpu: float
    """Microseconds per event, of all worker processes."""
    server_cpu: float
    """The same of the server."""


@dataclass(slots=True)
class Readings:
    """What all rounds gave, by side."""

    speeds: dict[str, list[Reading]] = field(default_factory=dict)
    delays: dict[str, list[list[float]]] = field(default_factory=dict)
    """Milliseconds, by round."""

    def values(self, side: str, part: str = "per_second") -> list[float]:
        """One side's readings of one part."""
        return [float(getattr(reading, part)) for reading in self.speeds[side]]

    def middle(self, side: str, part: str = "per_second") -> float:
        """Their median."""
        return median(self.values(side, part))

    def ratios(self, side: str, peer: str) -> list[float]:
        """How many times faster a side was, round by round: the machine may be busier in some."""
        pairs = zip(self.values(side), self.values(peer), strict=True)
        return [ours / theirs for ours, theirs in pairs]

    def delay(self, side: str, percent: int) -> list[float]:
        """A percentile of the delays of each round, in ms."""
        return [quantiles(found, n=100, method="inclusive")[percent - 1] for found in self.delays[side]]


class Contest:
    """All sides on one server."""

    def __init__(self, server: Server, workers: Sequence[Player], seconds: float) -> None:
        self._server = server
        self._workers = workers
        self._drips = round(seconds / GAP)
        self.readings = Readings()

    async def round(self, turn: int) -> None:
        """One round; each begins with another side."""
        sides = [side for kind in KINDS for side in SIDES[kind]]
        first = turn * 3 % len(sides)
        for side in sides[first:] + sides[:first]:
            self.readings.speeds.setdefault(side, []).append(await self.read(side))
        for side in ("arrivals", "bare arrivals") if turn % 2 == 0 else ("bare arrivals", "arrivals"):
            self.readings.delays.setdefault(side, []).append(await self._listen(side))

    async def read(self, side: str) -> Reading:
        """One backlog through one side."""
        self._server.ask("FLUSHALL", "SYNC")
        await fill(self._server.url)
        workers = self._workers if side.endswith(TWO) else self._workers[:1]
        for worker in workers:
            worker.tell((side.removesuffix(TWO), self._server.url, len(workers)))
        for worker in workers:
            worker.hear()
        server, began = self._cpu(), time.monotonic()
        for worker in workers:
            worker.tell("go")
        ends = [worker.hear() for worker in workers]
        server = self._cpu() - server
        await self._check(side)
        for worker in workers:
            worker.tell("stop")
        for worker in workers:
            worker.hear()
        took = max(ended for ended, _ in ends) - began
        cpu = sum(used for _, used in ends)
        return Reading(EVENTS / took, cpu / EVENTS * 1e6, server / EVENTS * 1e6)

    async def _listen(self, side: str) -> list[float]:
        """The way of events that come now and then, from the call that appends one to its handler, in ms."""
        self._server.ask("FLUSHALL", "SYNC")
        async with connect(self._server.url) as redis, Log(redis, "log", partitions=PARTITIONS) as log:
            store = LogEventStore(log)
            await log.layout()
            worker = self._workers[0]
            worker.tell((side, self._server.url, 1))
            await asyncio.to_thread(worker.hear)
            began = time.monotonic()
            for number in range(self._drips):
                await asyncio.sleep(max(began + number * GAP - time.monotonic(), 0))
                data = {"sent": time.monotonic()}
                await store.append(aggregate(next(fresh)), [NewEvent(type=TYPE, data=data)])
            await asyncio.sleep(0.2)
        worker.tell("stop")
        delays: list[float] = worker.hear()
        if len(delays) != self._drips:
            raise NotDone(f"{side}: {len(delays)} events of {self._drips} came to the handler")
        return [delay * 1000 for delay in delays[self._drips // 10 :]]  # the first ones wake what has slept

    def _cpu(self) -> float:
        lines = self._server.ask("INFO", "cpu").decode().splitlines()
        values = dict(line.split(":", 1) for line in lines if ":" in line)
        return float(values["used_cpu_user"]) + float(values["used_cpu_sys"])

    async def _check(self, side: str) -> None:
        """End the benchmark if a side has not done what it says, by what the server has."""
        by_hand = side.endswith(BY_HAND)
        ours = not by_hand and not side.startswith("bare")
        async with connect(self._server.url) as redis, Log(redis, "log") as log:
            layout = await log.layout()
            backend = RedisBackend(log)
            for number, stream in enumerate(STREAMS):
                (last,) = await redis.command("XREVRANGE", stream, "+", "-", "COUNT", 1)
                if not ours:
                    at = await redis.command("HGET", bare_key(number, "position"), "bench")
                else:
                    (position,) = await backend.positions(layout.partitions()[number], [FULL_NAME])
                    at = None if position is None else position.id.encode()
                if at != last[0]:
                    raise NotDone(f"{side}: partition {number} is done up to {at!r}, not {last[0]!r}")
            if "projection" not in side:
                return
            for which in range(0, EVENTS // EVENTS_EACH, EVENTS // EVENTS_EACH // SAMPLE):
                its = aggregate(which)
                number = layout.current.of(its).number
                state: Any
                if by_hand:
                    raw = await redis.command("HGET", bare_key(number, "all"), its.key)
                elif not ours:
                    raw = await redis.command("HGET", bare_key(number, its.key), "state")
                else:
                    loaded = await backend.find(FULL_NAME, its)
                    raw = None if loaded is None else loaded.state
                if raw is None:
                    raise NotDone(f"{side}: there is no state of {its!r}")
                state = msgspec.json.decode(raw) if by_hand else Summary.decode(raw).as_dict()
                found = state["cost"], state["spans"], state["started_at"], state["ended_at"]
                if found != expected(which):
                    raise NotDone(f"{side}: the state is {found}, not {expected(which)}")
