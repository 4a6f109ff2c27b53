"""Executes sent commands, to be killed: ``python -m tests.runtime.command_victim SETTINGS`` (JSON).

It says ``ready`` when it works. SIGTERM closes it. When its standard input ends, it is gone.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
from typing import Any

import msgspec

from tests.queue.victim import leave_with_the_test, say
from tests.runtime.probes import Note
from toril import Connection, connect
from toril.events import AnyNewEvent, Command, CommandHandler, NewEvent
from toril.log import Log
from toril.queue import Backoff
from toril.runtime.commands import CommandDispatcher, CommandOptions
from toril.stores import LogEventStore


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a victim is told."""

    url: str
    seed: int = 0
    longest_ms: int = 50
    """The longest that a command takes, before it stores its events and after."""


CHANCE = random.Random()
LONGEST = 0.05


class KeepNote(CommandHandler[Note]):
    """Takes a while, and fails now and then."""

    delay = 20
    concurrency = 10

    @classmethod
    def get_aggregate_id(cls, payload: Note) -> str:
        return payload.key

    @classmethod
    def make_job_id(cls, payload: Note) -> str:
        return payload.key

    async def handle(self, command: Command[Note]) -> list[AnyNewEvent]:
        await asyncio.sleep(CHANCE.random() * LONGEST)
        if CHANCE.random() < 0.1:
            raise ValueError("meant to fail")
        return [NewEvent(type="note.kept", data={"n": command.data.n})]


class Slow(LogEventStore):
    """Goes on for a while after it has stored: a worker may die when its job is done and not reported."""

    async def append(self, *args: Any, **how: Any) -> Any:
        done = await super().append(*args, **how)
        await asyncio.sleep(CHANCE.random() * LONGEST)
        return done


def dispatcher(redis: Connection, *, slow: bool = False) -> CommandDispatcher[Note]:
    """The command, as test and victims have it."""
    log = Log(redis, "kept", partitions=4)
    return CommandDispatcher(
        KeepNote,
        pipeline="storm",
        aggregate_type="note",
        store=Slow(log) if slow else LogEventStore(log),
        redis=redis,
        options=CommandOptions(attempts=100, backoff=Backoff("fixed", 20), max_wait=200),
    )


async def serve(settings: Settings) -> None:
    global LONGEST
    LONGEST = settings.longest_ms / 1000
    CHANCE.seed(settings.seed)
    async with connect(settings.url) as redis:
        worker = dispatcher(redis, slow=True).worker(
            lock_duration=1500, stalled_interval=750, max_stalled_count=1_000_000
        )
        closing = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, closing.set)
        async with worker:
            say("ready")
            await closing.wait()
    say("closed")


if __name__ == "__main__":
    threading.Thread(target=leave_with_the_test, daemon=True).start()
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=Settings)))
