"""What becomes of calls while servers move, fail and stall under them.

Tasks call a script that may not run twice: it counts the call, and the call's own id. Meanwhile
something happens to the server in charge. Afterwards the ids on the server are compared with what the
client told its callers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from toril.keyspace import slot_of
from toril.testing import Cluster, Server

from .clients import Client, Opener
from .events import Event

TASKS = 20
PAUSE = 0.004
"""Seconds between two calls of a task: every client is asked for the same load."""
BEFORE, AFTER = 0.3, 1.0
"""Seconds of calls before the event and after it."""
LONGEST_WAIT = 40.0
"""Seconds a call under way may take after the last event; then it counts as hanging."""
LONGEST_RUN = 90.0
"""Seconds for one run; a client that cannot even connect or close ends the benchmark here."""
FILLING = 200
"""Other keys in the slot, so that moving it takes a while and its keys are apart for some of it."""

COUNT = """
redis.call('INCR', KEYS[1])
return redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
"""


@dataclass(slots=True)
class Tally:
    """What became of the calls."""

    calls: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Calls that raised, by the type of the exception."""
    lost: int = 0
    """Reported as done, and not there."""
    doubled: int = 0
    """Executed more than once, whatever was reported."""
    failed_yet_done: int = 0
    """Reported as failed, and executed: the caller has to find out by itself."""
    misreported: int = 0
    """As before, with an error that says the call was *not* executed. Only Toril has such errors."""
    hanging: int = 0
    slowest: float = 0.0
    """Seconds that the slowest call took."""

    @property
    def failed(self) -> int:
        """How many calls raised."""
        return self.errors.total()

    def add(self, other: Tally) -> None:
        """Take in the tally of another run."""
        self.calls += other.calls
        self.errors += other.errors
        self.lost += other.lost
        self.doubled += other.doubled
        self.failed_yet_done += other.failed_yet_done
        self.misreported += other.misreported
        self.hanging += other.hanging
        self.slowest = max(self.slowest, other.slowest)


class Load:
    """Tasks that call the script until they are stopped, and remember what they were told."""

    def __init__(self, client: Client, keys: Sequence[str], pause: float) -> None:
        self.done: set[str] = set()
        self.failed: dict[str, Exception] = {}
        self.hanging = 0
        self.slowest = 0.0
        self._ids = keys[1]
        self._keys = [client.key(key) for key in keys]
        self._call = client.prepare(COUNT)
        self._pause = pause
        self._stopped = False
        self._tasks = [asyncio.create_task(self._work(number)) for number in range(TASKS)]

    async def _work(self, number: int) -> None:
        # Spread over the pause, so that at any moment some calls are under way.
        await asyncio.sleep(self._pause * number / TASKS)
        turn = 0
        while not self._stopped:
            turn += 1
            call = f"{number}-{turn}"
            started = time.monotonic()
            try:
                await self._call(self._keys, [call])
                self.done.add(call)
            except Exception as problem:  # noqa: BLE001 - what a client raises is what is measured
                self.failed[call] = problem
            self.slowest = max(self.slowest, time.monotonic() - started)
            await asyncio.sleep(self._pause)

    async def stop(self) -> None:
        """Let calls under way end; those that do not are counted."""
        self._stopped = True
        _, late = await asyncio.wait(self._tasks, timeout=LONGEST_WAIT)
        self.hanging = len(late)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def compare(self, server: Server) -> Tally:
        """Compare what was reported with what the server has."""
        flat = server.ask("HGETALL", self._ids)
        there = {str(name, "ascii"): int(times) for name, times in zip(flat[::2], flat[1::2], strict=True)}
        failed_yet_done = [problem for call, problem in self.failed.items() if call in there]
        return Tally(
            calls=len(self.done) + len(self.failed) + self.hanging,
            errors=Counter(type(problem).__name__ for problem in self.failed.values()),
            lost=len(self.done - there.keys()),
            doubled=sum(times > 1 for times in there.values()),
            failed_yet_done=len(failed_yet_done),
            misreported=sum(type(problem).__name__ == "Unavailable" for problem in failed_yet_done),
            hanging=self.hanging,
            slowest=self.slowest,
        )


async def measure(nodes: Cluster, openers: Mapping[str, Opener], event: Event, tag: str) -> dict[str, Tally]:
    """One event, with one client at work or with several at the same time."""
    slot = slot_of(f"{{{tag}}}")
    await asyncio.to_thread(_prepare, nodes, tag, slot)
    addresses = [server.address for server in nodes.servers]
    async with asyncio.timeout(LONGEST_RUN), AsyncExitStack() as stack:
        loads = {}
        for name, opener in openers.items():
            client = await stack.enter_async_context(opener(addresses, True))
            keys = (f"{{{tag}}}:count:{name}", f"{{{tag}}}:ids:{name}")
            # Several at the same time ask for as much as one alone would.
            loads[name] = Load(client, keys, PAUSE * len(openers))
        await asyncio.sleep(BEFORE)
        await asyncio.to_thread(event, nodes, slot)
        await asyncio.sleep(AFTER)
        await asyncio.gather(*(load.stop() for load in loads.values()))
    await asyncio.to_thread(_heal, nodes, slot)
    return {name: load.compare(nodes.primary_of(slot)) for name, load in loads.items()}


def _prepare(nodes: Cluster, tag: str, slot: int) -> None:
    for server in nodes.servers:
        server.ask("SCRIPT", "FLUSH")  # what one client loaded must not help the next one
    fill = "for n = 1, tonumber(ARGV[1]) do redis.call('SET', KEYS[1] .. n, string.rep('x', 100)) end"
    nodes.primary_of(slot).ask("EVAL", fill, 1, f"{{{tag}}}:", FILLING)


def _heal(nodes: Cluster, slot: int) -> None:
    for server in nodes.servers:
        if not server.pid:
            server.start()
    until = time.monotonic() + 30
    while len({_owner(server, slot) for server in nodes.servers}) != 1:
        if time.monotonic() > until:
            raise AssertionError(f"the servers did not agree within 30 s on who has slot {slot}")
        time.sleep(0.05)
    nodes.wait_until_whole()


def _owner(server: Server, slot: int) -> int:
    """The port of the server that this one holds to have the slot."""
    rows = server.ask("CLUSTER", "SLOTS")
    return next((int(row[2][1]) for row in rows if row[0] <= slot <= row[1]), 0)
