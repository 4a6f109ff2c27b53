"""Processors: order, retries, parking, gating; the same in memory, on one server and on a cluster."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conftest import MATRIX, Servers, emptied
from toril import connect
from toril.aggregate import Aggregate
from toril.events import AnyEvent, EventHandler, FoldProjection, HandlerContext, HandlerError, NewEvent
from toril.events.stores import EventStore
from toril.log import Log
from toril.runtime.backend import Backend
from toril.runtime.engine import EngineOptions
from toril.runtime.handling import AT_ONCE
from toril.runtime.memory import MemoryBackend
from toril.runtime.redis import RedisBackend
from toril.runtime.work import HandlerWork, ProjectionWork, Retry, Work
from toril.runtime.worker import ProcessorWorker
from toril.stores import LogEventStore

QUICK = Retry(attempts=3, first=0.02, longest=0.05)
OPTIONS = EngineOptions(lease=2.0, grace=2.0)


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


@pytest.fixture(params=["inline", *MATRIX])
async def place(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[Place]:
    async with place_of(request.param, servers) as made:
        yield made


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


async def until(true: Callable[[], bool | Awaitable[bool]], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            met = true()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.01)


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


async def test_order_kept_events_of_an_aggregate_run_in_order(place: Place) -> None:
    running: set[str] = set()

    async def act(event: AnyEvent, _: HandlerContext) -> None:
        assert event.aggregate_id not in running
        running.add(event.aggregate_id)
        await asyncio.sleep(0.001)
        running.discard(event.aggregate_id)

    recorder = Recorder(act)
    for number in range(20):
        await place.put(order(number), 1, 2, 3)
    async with place.worker(handler(recorder)):
        for number in range(20):
            await place.put(order(number), 4, 5)
        await until(lambda: len(recorder.seen) >= 100)
    for number in range(20):
        assert recorder.versions(number) == [1, 2, 3, 4, 5]


async def test_events_of_other_aggregate_types_are_passed_over(place: Place) -> None:
    recorder = Recorder()
    await place.put(Aggregate("acme", "invoice", "1"), 1, 2)
    await place.put(order(1), 1)
    async with place.worker(handler(recorder)):
        await until(lambda: len(recorder.seen) == 1)
    assert recorder.seen == [("1", 1)]


async def test_a_failing_event_is_tried_again_and_later_ones_wait(place: Place) -> None:
    async def act(event: AnyEvent, context: HandlerContext) -> None:
        if event.data == 2 and context.attempt < 3:
            raise HandlerError("not yet")

    recorder = Recorder(act)
    await place.put(order(1), 1, 2, 3)
    await place.put(order(2), 1, 1, 1)
    async with place.worker(handler(recorder)):
        await until(lambda: len(recorder.seen) == 6)
        await place.put(order(1), 4)
        await until(lambda: len(recorder.seen) == 7)
    assert recorder.versions(1) == [1, 2, 3, 4]
    assert recorder.attempts["1", 2] == 3


async def test_event_2_fails_3_waits_others_go_on_and_after_a_fix_it_is_processed(place: Place) -> None:
    """The seed's example of a failure."""
    fixed = False

    async def act(event: AnyEvent, _: HandlerContext) -> None:
        if event.data == 2 and not fixed:
            raise RuntimeError("broken")

    recorder = Recorder(act)
    work = handler(recorder)
    await place.put(order(1), 1, 2, 3)
    await place.put(order(2), 1, 1)

    async def failed() -> list[tuple[str, int, str, int]]:
        return [
            (key, its.version, its.status, its.attempts)
            for partition in await place.backend.partitions()
            for key, its in (await place.backend.troubles(work.processor, partition)).items()
            if its.status == "failed"
        ]

    async def one_failed() -> bool:
        return bool(await failed())

    async with place.worker(work):
        await until(one_failed)
        await place.put(order(1), 4)
        await place.put(order(2), 1)
        await until(lambda: len(recorder.seen) == 4)
        assert await failed() == [(order(1).key, 2, "failed", 3)]
        assert recorder.versions(1) == [1]
        assert recorder.versions(2) == [1, 2, 3]
    # Another worker finds it as it was left.
    fixed = True
    from toril.runtime.decisions import Decision

    async with place.worker(work):
        await asyncio.sleep(0.2)
        assert recorder.versions(1) == [1]
        decision = Decision(processor=work.processor, aggregate_type="order", version=2, decision="retry")
        await place.store.append(Decision.home(order(1)), [decision.to_event()])
        await until(lambda: recorder.versions(1) == [1, 2, 3, 4])
        assert await failed() == []
        await place.put(order(1), 5)
        await until(lambda: recorder.versions(1) == [1, 2, 3, 4, 5])


async def test_a_failed_event_can_be_skipped(place: Place) -> None:
    work = projection()
    await place.store.append(order(1), [NewEvent(type="n", data=value) for value in (1, "broken", 5)])
    await place.put(order(2), 1)
    from toril.runtime.decisions import Decision

    async with place.worker(work) as worker:
        engine = worker.engines[0]
        await until(lambda: engine.counts.failed == 1)
        assert await state_of(place, order(1), work) == {"sum": 1, "events": 1}
        decision = Decision(processor=work.processor, aggregate_type="order", version=2, decision="skip")
        await place.store.append(Decision.home(order(1)), [decision.to_event()])

        async def skipped() -> bool:
            return bool(await state_of(place, order(1), work) == {"sum": 6, "events": 2})

        await until(skipped)
        await place.put(order(1), 10)

        async def on() -> bool:
            return bool(await state_of(place, order(1), work) == {"sum": 16, "events": 3})

        await until(on)


async def test_once_per_state_a_projection_has_every_event_once(place: Place) -> None:
    work = projection()
    total = 0
    for round_ in range(3):
        async with place.worker(work):
            for number in range(15):
                await place.put(order(number), *range(round_ + 1))
                total += round_ + 1
            await until(lambda: place_backlog_done(place, work))
    for number in range(15):
        assert await state_of(place, order(number), work) == {"sum": 0 + 1 + 3, "events": 6}


async def place_backlog_done(place: Place, work: Work) -> bool:
    for partition in await place.backend.partitions():
        (at,) = await place.backend.positions(partition, [work.processor])
        if at is None or await place.backend.page(partition, at, 1):
            return False
    return True


async def test_a_handler_gets_events_only_after_those_it_depends_on(place: Place) -> None:
    done: set[tuple[str, int]] = set()
    early: list[tuple[str, int]] = []

    async def first(event: AnyEvent, context: HandlerContext) -> None:
        await asyncio.sleep(0.002)
        if event.data == 3 and context.attempt < 3:
            raise HandlerError("again")
        done.add((event.aggregate_id, event.version))

    async def second(event: AnyEvent, _: HandlerContext) -> None:
        if (event.aggregate_id, event.version) not in done:
            early.append((event.aggregate_id, event.version))

    one, two = Recorder(first), Recorder(second)
    works = [
        handler(one, "storage", awaited=True),
        handler(two, "trigger", depends_on=("orders/storage",)),
    ]
    for number in range(10):
        await place.put(order(number), 1, 2, 3, 4)
    async with place.worker(*works):
        await until(lambda: len(two.seen) >= 40)
    assert early == []
    for number in range(10):
        assert two.versions(number) == [1, 2, 3, 4]


async def test_tenants_take_turns(place: Place) -> None:
    """Much of one tenant waits; the first event of another runs soon."""
    gate = asyncio.Event()

    async def act(_: AnyEvent, __: HandlerContext) -> None:
        await gate.wait()

    order_of: list[str] = []

    class Noting(Recorder):
        async def handle(self, event: AnyEvent, context: HandlerContext) -> None:
            await super().handle(event, context)
            order_of.append(event.tenant)

    recorder = Noting(act)
    for number in range(300):
        await place.put(order(number, "loud"), 1)
    await place.put(order(1, "quiet"), 1)
    async with place.worker(handler(recorder, concurrency=4)) as worker:
        await until(lambda: sum(len(part.window) for part in worker.engines[0].slices.values()) == 301)
        gate.set()
        await until(lambda: len(order_of) == 301)
    # A task that has taken turns for quick handlers may end them first.
    assert order_of.index("quiet") < 2 * 4 + AT_ONCE


async def test_a_paused_processor_and_a_paused_tenant_wait(place: Place) -> None:
    recorder = Recorder()
    work = handler(recorder)
    await place.backend.pause("tenant acme", on=True)
    await place.put(order(1), 1, 2)
    await place.put(order(1, "other"), 1)
    async with place.worker(work):
        await until(lambda: len(recorder.seen) == 1)
        await asyncio.sleep(0.3)
        assert len(recorder.seen) == 1
        await place.backend.pause("tenant acme", on=False)
        await until(lambda: len(recorder.seen) == 3)
        await place.backend.pause(f"processor {work.processor}", on=True)
        await asyncio.sleep(1.0)
        await place.put(order(3), 1)
        await asyncio.sleep(0.3)
        assert len(recorder.seen) == 3
        await place.backend.pause(f"processor {work.processor}", on=False)
        await until(lambda: len(recorder.seen) == 4)
