"""A process that is there to be killed: ``python -m tests.log.victim SETTINGS`` (JSON).

As a ``writer`` it appends to few aggregates, with keys of its own. It notes in its journal what it is about
to append and what it was told then; where it finds a journal, it first sends again what was left without an
answer. As a ``reader`` it reads under a name and notes what it saw, what it is about to commit, and what it
has committed. As a ``cooler`` it lets quiet aggregates leave for a cold store.

It says on its standard output what happens: ``ready``, ``wrong TEXT``, ``closed``.
SIGTERM closes it. When its standard input ends, because the test is gone, it is gone too.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal

import msgspec

from tests.log.journal import Ask, Journal
from toril import Connection, Durability, connect
from toril.aggregate import Aggregate
from toril.connection import ConnectionFailed, DurabilityNotReached, OutcomeUnknown
from toril.log import Frozen, Log, LogError, ReaderFenced, ReaderGone, VersionConflict
from toril.stores import SqliteColdStore


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a victim is told."""

    url: str
    name: str
    journal: str
    role: Literal["writer", "reader", "cooler"] = "writer"
    aggregates: int = 6
    tasks: int = 4
    durability: Literal["memory", "fsync", "replicated"] = "memory"
    pause_ms: float = 2.0
    """The longest that a task waits between two appends."""
    page: int = 50
    cold: str = ""
    """The file of the cold store."""
    cold_ms: float = 0.0
    """The longest that the cold store usually takes, on top."""
    quiet_ms: int = 3_600_000
    seed: int = 0


def aggregate(number: int) -> Aggregate:
    return Aggregate("acme", "order", f"{number:04d}")


class SlowColdStore(SqliteColdStore):
    """A cold store that takes its time, before and after."""

    def __init__(self, path: str, chance: random.Random, longest: float) -> None:
        super().__init__(path)
        self._chance = chance
        self._longest = longest

    async def _dawdle(self) -> None:
        longest = self._longest * (10 if self._chance.random() < 0.05 else 0.5)  # some take very long
        await asyncio.sleep(self._chance.random() * longest)

    async def put(self, batch: Sequence[Frozen]) -> None:
        await self._dawdle()
        await super().put(batch)
        await self._dawdle()

    async def get_many(self, aggregates: Sequence[Aggregate]) -> list[Frozen | None]:
        await self._dawdle()
        found = await super().get_many(aggregates)
        await self._dawdle()
        return found


def say(what: str, about: object = "") -> None:
    print(what, " ".join(str(about).split()), flush=True)


class Victim:
    def __init__(self, settings: Settings, redis: Connection) -> None:
        self.settings = settings
        self.chance = random.Random(settings.seed)
        self.closing = asyncio.Event()
        self.log = Log(
            redis,
            cold=SlowColdStore(settings.cold, self.chance, settings.cold_ms / 1000)
            if settings.cold
            else None,
            quiet=timedelta(milliseconds=settings.quiet_ms),
            durability=Durability(settings.durability, timeout=1.0),
        )
        self.journal = Journal(Path(settings.journal))
        self.versions: dict[int, int] = {}

    # ------------------------------------------------------------------ writing

    async def write(self) -> None:
        left = self.journal.unanswered()
        number = len(self.journal.asked)
        await asyncio.gather(*(self.send(ask) for ask in left))

        async def task() -> None:
            nonlocal number
            while not self.closing.is_set():
                number += 1
                one = self.chance.randrange(self.settings.aggregates)
                expected = self.versions.get(one) if self.chance.random() < 0.5 else None
                ask = Ask(f"{self.settings.name}:{number}", one, self.chance.randint(1, 5), expected)
                self.journal.ask(ask)
                await self.send(ask)
                if self.chance.random() < 0.05:
                    await self.send(ask)
                await asyncio.sleep(self.chance.random() * self.settings.pause_ms / 1000)

        say("ready")
        await asyncio.gather(*(task() for _ in range(self.settings.tasks)))

    async def send(self, ask: Ask) -> None:
        """Append until there is an answer, and note it."""
        while True:
            try:
                done = await self.log.append(
                    aggregate(ask.aggregate),
                    ask.bodies(),
                    expected_version=ask.expected,
                    idempotency_key=ask.key,
                )
            except VersionConflict as conflict:
                self.versions[ask.aggregate] = conflict.actual
                self.journal.conflict(ask)
                return
            except (ConnectionFailed, OutcomeUnknown, DurabilityNotReached, LogError):
                await asyncio.sleep(0.02)
            else:
                self.versions[ask.aggregate] = done.version
                self.journal.answer(ask, done)
                return

    # ------------------------------------------------------------------ reading

    async def read(self) -> None:
        ready = False
        while not self.closing.is_set():
            try:
                async with self.log.reader(self.settings.name, page=self.settings.page) as reader:
                    self.journal.begin(reader.positions)
                    if not ready:
                        ready = True
                        say("ready")
                    async for batch in reader:
                        self.journal.saw(batch)
                        if self.chance.random() < 0.1:  # long enough to be killed in
                            await asyncio.sleep(self.chance.random() * self.settings.pause_ms / 100)
                        self.journal.commits(batch)
                        await batch.done()
                        self.journal.committed(batch)
                        if self.closing.is_set():
                            return
            except (ReaderGone, ReaderFenced, ConnectionFailed, OutcomeUnknown) as problem:
                self.journal.left(problem)
                await asyncio.sleep(0.02)

    # ------------------------------------------------------------------ cooling

    async def cool(self) -> None:
        say("ready")
        while not self.closing.is_set():
            with suppress(ConnectionFailed, OutcomeUnknown):
                self.journal.cooled(await self.log.cool(at_once=5))
            await asyncio.sleep(self.chance.random() * self.settings.pause_ms / 1000)


def leave_with_the_test() -> None:
    """End this process when the other end of its standard input is closed."""
    os.read(0, 1)  # not sys.stdin: a thread that holds it would break the interpreter's own end
    os._exit(1)


async def serve(settings: Settings) -> None:
    async with connect(settings.url) as redis:
        victim = Victim(settings, redis)
        loop = asyncio.get_running_loop()
        role = {"writer": victim.write, "reader": victim.read, "cooler": victim.cool}[settings.role]
        task = asyncio.create_task(role())

        def close() -> None:
            victim.closing.set()
            if settings.role == "reader":  # it may wait for events that never come
                loop.call_later(0.5, task.cancel)

        loop.add_signal_handler(signal.SIGTERM, close)
        with suppress(asyncio.CancelledError):
            await task
    say("closed")


if __name__ == "__main__":
    threading.Thread(target=leave_with_the_test, daemon=True).start()
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=Settings)))
