"""Rounds: the same load into the bare receiver, into the collector, and on to summaries.

Every round has processes, a server and tables of its own. On a machine with few cores, all that runs at the
same time shares them: the load generator and the server too.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

from toril.testing import Server, standalone

from .load import Load, Sent, send
from .process import Part, busy, cpu, start

SERVER: dict[str, str | int] = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "save": "",
}
"""As Toril sets its embedded server: what is accepted is on disk."""
WARM_UP = 2_000
"""Spans that are sent before each measurement, and not counted."""
HOUR = 3600.0

BARE = "bare receiver"
ALONE = "collector, worker stopped"
BACKLOG = "summaries, a backlog"
TOGETHER = "collector, worker running"
ALONG = "summaries, worker running"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one run gave."""

    per_second: float
    cpu: dict[str, float]
    """Microseconds per span, by process."""


@dataclass(slots=True)
class Readings:
    """What all rounds gave, by side."""

    by_side: dict[str, list[Reading]] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)
    """By round, which part of the machine others had."""

    def rates(self, side: str) -> list[float]:
        """Spans per second, by round."""
        return [one.per_second for one in self.by_side[side]]

    def cpu(self, side: str, process: str) -> float:
        """The median of what a process used, in µs per span."""
        return median(one.cpu[process] for one in self.by_side[side])

    def ratios(self, side: str) -> list[float]:
        """What a side reached of the ceiling, round by round: the machine may be busier in some."""
        return [ours / most for ours, most in zip(self.rates(side), self.rates(BARE), strict=True)]


class Stage:
    """All processes of a run, and a server."""

    def __init__(self, server: Server, parts: Sequence[Part]) -> None:
        self.server = server
        self.parts = {part.role: part for part in parts}
        self._busy, self._own, self._began = busy(), self._all(), time.monotonic()

    def __getitem__(self, role: str) -> Part:
        return self.parts[role]

    def cpu(self) -> dict[str, float]:
        """Seconds of processor time, by process."""
        return {"Valkey": cpu(self.server.pid), **{role: cpu(one.pid) for role, one in self.parts.items()}}

    def others(self) -> float:
        """Which part of the machine others had since this was made."""
        used, had = busy()
        ours = self._all() - self._own
        return max(0.0, used - self._busy[0] - ours) / (had - self._busy[1])

    def _all(self) -> float:
        return sum(self.cpu().values()) + cpu(os.getpid())


@asynccontextmanager
async def stage(*roles: str, quiet: float = HOUR) -> AsyncIterator[Stage]:
    """A fresh server and these processes on it; all are gone afterwards."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(standalone(SERVER))
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="toril-bench-"))
        parts = []
        for role in roles:
            where = f"{home}/{role.replace(' ', '-')}"
            parts.append(
                await stack.enter_async_context(start(role, redis=server.url, home=where, quiet=quiet))
            )
        yield Stage(server, parts)


class Contest:
    """All sides, in turns."""

    def __init__(self, spans: int, seed: int = 1) -> None:
        self.spans = spans
        self.seed = seed
        self.readings = Readings()

    async def round(self, turn: int) -> None:
        """One round; the ceiling comes first in one, last in the next."""
        async with stage(BARE, "collector", "worker") as on:
            if (promised := on["collector"].up["durability"]) != "fsync":
                raise RuntimeError(f"the collector promises {promised}, the bare receiver fsync")
            load = Load(self.seed + turn, 3 * (self.spans + WARM_UP))
            sides = [self._bare, self._toril]
            for side in sides if turn % 2 == 0 else sides[::-1]:
                await side(on, load)
            self.readings.others.append(on.others())

    async def _bare(self, on: Stage, load: Load) -> None:
        port = on[BARE].up["port"]
        await send(port, load.take(WARM_UP))
        requests = load.take(self.spans)
        before = on.cpu()
        sent = await send(port, requests)
        self._note(BARE, sent, sent.ended, on, before)

    async def _toril(self, on: Stage, load: Load) -> None:
        worker, port = on["worker"], on["collector"].up["port"]
        await worker.ask("work")
        await send(port, load.take(WARM_UP))
        await worker.ask("settled", spans=WARM_UP)
        await worker.ask("rest")
        requests, more = load.take(self.spans), load.take(self.spans)

        before = on.cpu()
        sent = await send(port, requests)
        self._note(ALONE, sent, sent.ended, on, before)

        before, began = on.cpu(), time.monotonic()
        await worker.ask("work")
        ended = await worker.ask("settled", spans=WARM_UP + self.spans)
        self._note(BACKLOG, Sent(self.spans, began, ended), ended, on, before)

        before = on.cpu()
        sent = await send(port, more)
        self._note(TOGETHER, sent, sent.ended, on, before)
        ended = await worker.ask("settled", spans=WARM_UP + 2 * self.spans)
        self._note(ALONG, sent, ended, on, before)

    def _note(self, side: str, sent: Sent, ended: float, on: Stage, before: dict[str, float]) -> None:
        used = {name: (now - before[name]) / sent.spans * 1e6 for name, now in on.cpu().items()}
        reading = Reading(sent.spans / (ended - sent.began), used)
        self.readings.by_side.setdefault(side, []).append(reading)


async def profiles(spans: int, seed: int = 99) -> dict[str, dict[str, float]]:
    """Where the time goes: seconds of processor time by row, of the collector and of the worker.

    Each is looked at while the other rests, so that neither waits for the other.
    """
    async with stage("collector", "worker") as on:
        load = Load(seed, spans + WARM_UP)
        worker, collector = on["worker"], on["collector"]
        await worker.ask("work")
        await send(collector.up["port"], load.take(WARM_UP))
        await worker.ask("settled", spans=WARM_UP)
        await worker.ask("rest")
        requests = load.take(spans)
        await collector.ask("profile")
        await send(collector.up["port"], requests)
        found = {"collector": await collector.ask("profiled")}
        await worker.ask("profile")
        await worker.ask("work")
        await worker.ask("settled", spans=WARM_UP + spans)
        return {**found, "worker": await worker.ask("profiled")}
