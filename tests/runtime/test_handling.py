"""Quick events share a task: what must not be shared is not."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from tests.runtime.parts import Place, Recorder, handler, order
from tests.waiting import until
from toril.events import AnyEvent, HandlerContext
from toril.log.entry import START, Partition
from toril.runtime.backend import Lease
from toril.runtime.handling import AT_ONCE, IN_A_ROW, Turn, apart
from toril.runtime.memory import MemoryBackend
from toril.runtime.slice import Chain, Slice

seen_by: ContextVar[str] = ContextVar("seen_by", default="nobody")


def make_place() -> Place:
    memory = MemoryBackend()
    return Place(memory, memory)


async def test_what_a_handler_sets_in_its_context_no_other_sees() -> None:
    place, found, tasks = make_place(), [], set()

    async def act(event: AnyEvent, _: HandlerContext) -> None:
        found.append(seen_by.get())
        tasks.add(asyncio.current_task())
        seen_by.set(event.aggregate_id)
        if event.aggregate_id == "3":
            await asyncio.sleep(0.01)
        assert seen_by.get() == event.aggregate_id

    for number in range(200):
        await place.put(order(number), 1)
    recorder = Recorder(act)
    async with place.worker(handler(recorder)):
        await until(lambda: len(recorder.seen) == 200)
    assert set(found) == {"nobody"}
    assert 200 / AT_ONCE <= len(tasks) < 200


async def test_a_time_limit_of_a_handler_is_its_own() -> None:
    place = make_place()

    async def act(event: AnyEvent, context: HandlerContext) -> None:
        if event.aggregate_id == "5" and context.attempt == 1:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(5)

    for number in range(50):
        await place.put(order(number), 1, 2)
    recorder = Recorder(act)
    async with place.worker(handler(recorder)):
        await until(lambda: len(recorder.seen) == 100)
    assert all(recorder.versions(number) == [1, 2] for number in range(50))
    assert recorder.attempts["5", 1] == 2
    assert sum(recorder.attempts.values()) == 101 + (recorder.attempts["5", 2] - 1)


async def test_slow_handlers_run_beside_quick_ones() -> None:
    place, gate = make_place(), asyncio.Event()

    async def act(event: AnyEvent, _: HandlerContext) -> None:
        if int(event.aggregate_id) % 40 == 0:
            await gate.wait()

    for number in range(200):
        await place.put(order(number), 1)
    recorder = Recorder(act)
    async with place.worker(handler(recorder, concurrency=8)):
        await until(lambda: len(recorder.seen) == 195)
        gate.set()
        await until(lambda: len(recorder.seen) == 200)


async def test_tenants_take_turns_where_nothing_is_waited_for() -> None:
    place, order_of = make_place(), []

    async def act(event: AnyEvent, _: HandlerContext) -> None:
        order_of.append(event.tenant)

    for number in range(20):
        await place.put(order(number, "loud"), *range(20))
    await place.put(order(1, "quiet"), 1)
    async with place.worker(handler(Recorder(act), concurrency=4)):
        await until(lambda: len(order_of) == 401)
    assert order_of.index("quiet") <= IN_A_ROW


async def test_apart_passes_on_values_errors_and_cancellation() -> None:
    begun = asyncio.Event()

    async def work(what: str) -> str:
        seen_by.set(what)
        begun.set()
        try:
            await asyncio.sleep(0 if what == "value" else 5)
        except asyncio.CancelledError:
            return "cancelled " + seen_by.get()
        raise ValueError(seen_by.get())

    turn = Turn(Chain("acme:order:1", Slice(Lease(Partition(1, 0), "me", START, 1, 0))))
    with pytest.raises(ValueError, match="value"):
        await apart(work("value"), turn)
    assert turn.waited
    begun.clear()
    task = asyncio.ensure_future(asyncio.wait_for(apart(work("long"), turn), 5))
    await asyncio.wait_for(begun.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen_by.get() == "nobody"
