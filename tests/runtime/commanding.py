"""A dispatcher at work, and what became of the commands it was given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from toril import Connection
from toril.events import Aggregate, CommandHandler
from toril.queue import Backoff
from toril.queue.telemetry import Telemetry
from toril.runtime.commands import CommandDispatcher, CommandOptions
from toril.stores import MemoryEventStore

QUICK = CommandOptions(attempts=3, backoff=Backoff("fixed", 20))
PIPELINE, TYPE = "notes", "note"


@asynccontextmanager
async def at_work(
    place: Connection | None,
    handler: type[CommandHandler[Any]],
    options: CommandOptions = QUICK,
    store: Any = None,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[CommandDispatcher[Any]]:
    """A dispatcher, and a worker for what it sends."""
    dispatcher = CommandDispatcher(
        handler,
        pipeline=PIPELINE,
        aggregate_type=TYPE,
        store=store or MemoryEventStore(),
        redis=place,
        options=options,
        telemetry=telemetry,
    )
    async with dispatcher.worker():
        yield dispatcher


async def until(condition: Callable[[], Any], what: str, timeout: float = 20.0) -> None:
    end = time.monotonic() + timeout
    while True:
        found = condition()
        if await found if isinstance(found, Awaitable) else found:
            return
        assert time.monotonic() < end, f"waited {timeout:g} s in vain for {what}"
        await asyncio.sleep(0.005)


async def quiet(dispatcher: CommandDispatcher[Any]) -> bool:
    """Whether nothing waits or runs."""
    if dispatcher.inline is not None:
        return not dispatcher.inline._lanes
    assert dispatcher.queue is not None
    counts = await dispatcher.queue.counts("waiting", "active", "delayed", "waiting-children")
    return not any(counts.values())


async def until_none_runs(dispatcher: CommandDispatcher[Any]) -> None:
    """Until what ran has ended, and what comes of that is decided."""

    async def none_runs() -> bool:
        if dispatcher.inline is not None:
            return not any(lane.running for lane in dispatcher.inline._lanes.values())
        assert dispatcher.queue is not None
        return not any((await dispatcher.queue.counts("active")).values())

    await until(none_runs, "what runs to end")


async def until_quiet(dispatcher: CommandDispatcher[Any]) -> None:
    await until(lambda: quiet(dispatcher), "all commands to be done")


async def failures(dispatcher: CommandDispatcher[Any]) -> list[str]:
    """Why commands have failed for good."""
    if dispatcher.inline is not None:
        return [str(failed.error) for failed in dispatcher.inline.failed]
    assert dispatcher.queue is not None
    return [job.failed_reason or "" for job in await dispatcher.queue.jobs("failed")]


async def stored(dispatcher: CommandDispatcher[Any], key: str, tenant: str = "acme") -> list[Any]:
    """What is in the event store."""
    stream = await dispatcher._store.read(Aggregate(tenant, TYPE, key))
    return [event.data["n"] for event in stream.events]
