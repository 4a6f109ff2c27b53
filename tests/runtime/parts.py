"""What tests of processors have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.conftest import Servers, emptied
from toril import connect
from toril.aggregate import Aggregate
from toril.events import AnyEvent, EventHandler, FoldProjection, HandlerContext, NewEvent
from toril.events.stores import EventStore
from toril.log import Log
from toril.runtime.backend import Backend
from toril.runtime.engine import EngineOptions
from toril.runtime.memory import MemoryBackend
from toril.runtime.redis import RedisBackend
from toril.runtime.work import HandlerWork, ProjectionWork, Retry, Work
from toril.runtime.worker import ProcessorWorker
from toril.stores import LogEventStore

QUICK = Retry(attempts=3, first=0.02, longest=0.05)
OPTIONS = EngineOptions(lease=5.0, grace=2.0)


class Place:
    """Where a test runs: events are appended to the store, and processed by workers on the backend."""

    def __init__(self, store: EventStore, backend: Backend) -> None:
        self.store = store
        self.backend = backend

    async def put(self, aggregate: Aggregate, *numbers: int) -> None:
        await self.store.append(aggregate, [NewEvent(type="numbered", data=number) for number in numbers])

    def worker(self, *works: Work) -> ProcessorWorker:
        return ProcessorWorker(self.backend, works, OPTIONS)


@asynccontextmanager
async def place_of(kind: str, servers: Servers) -> AsyncIterator[Place]:
    if kind == "inline":
        memory = MemoryBackend()
        yield Place(memory, memory)
        return
    async with connect(emptied(servers.get(kind)).url) as redis, Log(redis, partitions=4) as log:
        yield Place(LogEventStore(log), RedisBackend(log))


def order(number: int, tenant: str = "acme") -> Aggregate:
    return Aggregate(tenant, "order", str(number))


class Recorder(EventHandler[Any]):
    """Notes what it was given; does what ``act`` says."""

    def __init__(self, act: Callable[[AnyEvent, HandlerContext], Awaitable[None]] | None = None) -> None:
        self.seen: list[tuple[str, int]] = []
        self.attempts: dict[tuple[str, int], int] = defaultdict(int)
        self._act = act

    async def handle(self, event: AnyEvent, context: HandlerContext) -> None:
        self.attempts[event.aggregate_id, event.version] += 1
        if self._act is not None:
            await self._act(event, context)
        self.seen.append((event.aggregate_id, event.version))

    def versions(self, number: int) -> list[int]:
        return [version for ident, version in self.seen if ident == str(number)]


def handler(recorder: EventHandler[Any], name: str = "handler", **more: Any) -> HandlerWork:
    made: dict[str, Any] = {"retry": QUICK, **more}
    return HandlerWork(pipeline="orders", name=name, aggregate_type="order", handler=recorder, **made)


class Total(FoldProjection[dict[str, int]]):
    name = "total"
    state_type = dict[str, int]

    def initial(self) -> dict[str, int]:
        return {"sum": 0, "events": 0}

    def apply(self, state: dict[str, int], event: AnyEvent) -> dict[str, int]:
        if event.data == "broken":
            raise ValueError("broken")
        return {"sum": state["sum"] + event.data, "events": state["events"] + 1}


def projection(**more: Any) -> ProjectionWork:
    made: dict[str, Any] = {"retry": QUICK, **more}
    return ProjectionWork(pipeline="orders", name="total", aggregate_type="order", projection=Total(), **made)


async def state_of(place: Place, aggregate: Aggregate, work: ProjectionWork) -> Any:
    partitions = await place.backend.partitions()
    for partition in partitions:
        (found,) = await place.backend.load(work.processor, partition, [aggregate.key])
        if found.state is not None:
            return work.projection.decode(found.state)
    return None
