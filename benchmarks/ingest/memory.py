"""Whether memory is flat: a long run of all processes, in which traces go cold and the log is trimmed.

The load generator keeps the slowest processor a bounded number of events behind: what waits in Redis is then
what it would be with a collector and a worker that fit each other, and is no growth.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from toril import connect
from toril.log import Log

from .load import PER_REQUEST, Load, send
from .process import resident
from .speed import Stage, stage

LOG = "log"
QUIET = 20.0
"""Seconds after which a trace goes cold."""
LEAD = 5_000
"""Events that the slowest processor may be behind."""
EVERY = 1.0
"""Seconds between two looks."""
MARKS = (0.25, 0.5, 0.75, 1.0)
WIDTH = 0.05
"""A mark stands for so much of the run before it: the median of what was seen there."""


@dataclass(slots=True)
class Run:
    """What was seen of each process while the spans came."""

    spans: int
    traces: int = 0
    seconds: float = 0.0
    others: float = 0.0
    seen: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    """Which part of the spans was accepted, and the resident bytes of each process."""

    def at(self, mark: float, process: str) -> float:
        """Resident bytes of a process at a mark."""
        return median(its[process] for done, its in self.seen if mark - WIDTH <= done <= mark)

    def growth(self, process: str) -> float:
        """How much larger it is in the end than it was at half of the run."""
        return self.at(1.0, process) / self.at(0.5, process)

    @property
    def processes(self) -> list[str]:
        """Who was looked at."""
        return list(self.seen[0][1])


async def measure(spans: int, say: Callable[[str], None], seed: int = 7) -> Run:
    """Send so many spans, and look at every process meanwhile."""
    run = Run(spans)
    async with (
        stage("collector", "worker", quiet=QUIET) as on,
        connect(on.server.url) as redis,
        Log(redis, LOG) as log,
    ):
        worker = on["worker"]
        await worker.ask("work")
        pacing = _Pacing(on, log, run, say)
        began = time.monotonic()
        watching = asyncio.create_task(pacing.watch())
        try:
            await send(on["collector"].up["port"], Load(seed, spans).lazily(), turn=pacing.turn)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        pacing.look()
        run.seconds = await worker.ask("settled", spans=spans) - began
        run.traces = (await worker.ask("summed"))["traces"]
        run.others = on.others()
    return run


class _Pacing:
    """Looks at the processes, and lets the senders wait where the worker is behind."""

    def __init__(self, on: Stage, log: Log, run: Run, say: Callable[[str], None]) -> None:
        self._on = on
        self._log = log
        self._run = run
        self._say = say
        self._sent = 0
        self._said = 0
        self._go = asyncio.Event()
        self._go.set()

    async def turn(self) -> None:
        """After each request."""
        self._sent += PER_REQUEST
        await self._go.wait()

    async def watch(self) -> None:
        """Again and again."""
        while True:
            behind = await self._behind()
            (self._go.set if behind < LEAD else self._go.clear)()
            self.look(behind)
            await asyncio.sleep(EVERY)

    async def _behind(self) -> int:
        """Events that the slowest processor has not processed."""
        behind: Counter[str] = Counter()
        for standing in await self._log.standings():
            behind.update({name: standing.backlog(name) for name in standing.readers})
        return max(behind.values(), default=0)

    def look(self, behind: int = 0) -> None:
        """Note how large everyone is."""
        pids = {role: part.pid for role, part in self._on.parts.items()}
        pids["Valkey"] = self._on.server.pid
        sizes = {name: resident(pid) for name, pid in pids.items()}
        done = self._sent / self._run.spans
        self._run.seen.append((done, sizes))
        if int(done * 20) > self._said:
            self._said = int(done * 20)
            shown = ", ".join(f"{name} {size / 2**20:,.0f} MB" for name, size in sizes.items())
            self._say(f"{done:4.0%}: {shown}; {behind:,} events behind")
