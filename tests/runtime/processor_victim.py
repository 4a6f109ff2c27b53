"""A worker process that is there to be killed: ``python -m tests.runtime.processor_victim SETTINGS`` (JSON).

It runs the pipeline ``ledger``: a handler that keeps a journal, a projection that depends on the order of
events, and a declared one. Lines of the journal (each with the time, of a clock that all processes share):

- ``begin KEY VERSION ATTEMPT`` and ``end KEY VERSION``: the handler;
- ``done KEY VERSION``: a commit of the handler has returned;
- ``take PROCESSOR PARTITION FENCE`` and ``commit PROCESSOR PARTITION FENCE SENT``: leases, and commits
  that were accepted.

SIGTERM closes it. When its standard input ends, because the test is gone, it is gone too.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.queue.victim import leave_with_the_test, say
from toril.events import (
    AnyEvent,
    Count,
    DeclaredProjection,
    EventHandler,
    FoldProjection,
    HandlerContext,
    Maximum,
    Minimum,
    SetOf,
    Sum,
)
from toril.log.entry import Partition, Position
from toril.runtime import EngineOptions, EventSourcing, RegisteredPipeline, Retry
from toril.runtime.backend import Change, Done, Lease, Resume
from toril.runtime.redis import RedisBackend

POISON = "poison"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a victim is told."""

    url: str
    folder: str
    name: str
    lease: float = 1.0
    concurrency: int = 8
    longest_ms: int = 3
    """The longest that a handler takes."""
    seed: int = 0


class Chained(FoldProjection[dict[str, Any]]):
    """Every event, once and in its order, or the digest is another."""

    name = "chained"
    state_type = dict[str, Any]

    def initial(self) -> dict[str, Any]:
        return {"events": 0, "sum": 0, "digest": ""}

    def apply(self, state: dict[str, Any], event: AnyEvent) -> dict[str, Any]:
        chained = f"{state['digest']} {event.tenant} {event.id} {event.version}"
        return {
            "events": state["events"] + 1,
            "sum": state["sum"] + event.data["n"],
            "digest": hashlib.sha256(chained.encode()).hexdigest(),
        }


class Summed(DeclaredProjection):
    """Declared, and kept with the checkpoints as well."""

    name = "summed"

    events = Count()
    total = Sum("data.n")
    least = Minimum("data.n", int)
    most = Maximum("data.n", int)
    remainders = SetOf("data.rest", int)


class Journal(EventHandler[Any]):
    """Notes what it is given, before and after."""

    def __init__(self, settings: Settings) -> None:
        self._file = os.open(
            Path(settings.folder) / settings.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )
        self._chance = random.Random(settings.seed)
        self._longest = settings.longest_ms / 1000

    def note(self, *words: object) -> None:
        os.write(self._file, f"{time.monotonic_ns()} {' '.join(map(str, words))}\n".encode())

    async def handle(self, event: AnyEvent, context: HandlerContext) -> None:
        assert event.tenant == context.tenant
        self.note("begin", event.aggregate.key, event.version, context.attempt)
        if event.type == POISON:
            os._exit(9)
        await asyncio.sleep(self._chance.random() * self._longest)
        self.note("end", event.aggregate.key, event.version)


class NotingBackend(RedisBackend):
    """Notes which partitions it was given, and what it could commit."""

    journal: Journal

    async def take(
        self, processor: str, worker: str, partitions: Iterable[Partition], lasts: float
    ) -> list[Lease]:
        taken = await super().take(processor, worker, partitions, lasts)
        for lease in taken:
            self.journal.note("take", processor, lease.partition, lease.fence)
        return taken

    async def commit(
        self,
        processor: str,
        lease: Lease,
        number: int,
        position: Position,
        changes: Sequence[Change],
        *,
        awaited: bool = False,
    ) -> None:
        sent = time.monotonic_ns()
        await super().commit(processor, lease, number, position, changes, awaited=awaited)
        self.journal.note("commit", processor, lease.partition, lease.fence, sent)
        if processor.endswith("/journal"):
            for change in changes:
                if isinstance(change, Done):
                    self.journal.note("done", change.aggregate, change.last)
                elif isinstance(change, Resume):
                    self.journal.note("done", change.aggregate, change.version)


def ledger(sourcing: EventSourcing, handler: EventHandler[Any], concurrency: int = 8) -> RegisteredPipeline:
    """The pipeline of all victims, and of the tests that look at what they did."""
    return (
        sourcing.register_pipeline()
        .with_name("ledger")
        .with_aggregate_type("account")
        .with_event_handler(
            "journal", handler, concurrency=concurrency, retry=Retry(attempts=50, first=0.05, longest=0.2)
        )
        .with_projection("chained", None, Chained)
        .with_projection("summed", None, Summed)
        .build()
    )


async def serve(settings: Settings) -> None:
    journal = Journal(settings)
    sourcing = EventSourcing(settings.url, options=EngineOptions(lease=settings.lease, grace=5))
    ledger(sourcing, journal, settings.concurrency)
    closing = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, closing.set)
    async with sourcing:
        assert sourcing.log is not None
        backend = NotingBackend(sourcing.log)
        backend.journal = journal
        sourcing.backend = backend
        async with sourcing.worker(upkeep=False):
            say("ready")
            await closing.wait()
    say("closed")


if __name__ == "__main__":
    threading.Thread(target=leave_with_the_test, daemon=True).start()
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=Settings)))
