"""Processors: order, retries, parking, gating; the same in memory, on one server and on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.conftest import MATRIX, Servers
from tests.runtime.parts import Place, Recorder, handler, order, place_of, projection, state_of
from tests.waiting import until
from toril.aggregate import Aggregate
from toril.events import AnyEvent, HandlerContext, HandlerError, NewEvent
from toril.runtime.decisions import Decision
from toril.runtime.handling import AT_ONCE
from toril.runtime.trouble import Troubles
from toril.runtime.work import Work
from toril.runtime.worker import ProcessorWorker


@pytest.fixture(params=["inline", *MATRIX])
async def place(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[Place]:
    async with place_of(request.param, servers) as made:
        yield made


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
    async with place.worker(work) as worker:
        await has_all(place, worker)
        await place.put(order(2), 1)
        await until(lambda: recorder.versions(2) == [1, 2, 3, 4])
        assert recorder.versions(1) == [1]
        decision = Decision(processor=work.processor, aggregate_type="order", version=2, decision="retry")
        await place.store.append(Decision.home(order(1)), [decision.to_event()])
        await until(lambda: recorder.versions(1) == [1, 2, 3, 4])
        assert await failed() == []
        await place.put(order(1), 5)
        await until(lambda: recorder.versions(1) == [1, 2, 3, 4, 5])


async def has_all(place: Place, worker: ProcessorWorker) -> None:
    """Return when a worker has all partitions, and has read all that was there."""
    partitions = await place.backend.partitions()
    await until(lambda: worker.engines[0].slices.keys() == set(partitions))
    await until(lambda: place_backlog_done(place, worker.engines[0].work))


async def test_a_failed_event_can_be_skipped(place: Place) -> None:
    work = projection()
    await place.store.append(order(1), [NewEvent(type="n", data=value) for value in (1, "broken", 5)])
    await place.put(order(2), 1)
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


async def test_a_decision_is_not_passed_before_it_is_carried_out(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that has read it dies; the next one meets it again."""
    work = projection()
    await place.store.append(order(1), [NewEvent(type="n", data=value) for value in (1, "broken", 5)])
    carry_out = Troubles.carry_out

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async def state_is(expected: object) -> bool:
        return bool(await state_of(place, order(1), work) == expected)

    async with place.worker(work) as worker:
        await until(lambda: worker.engines[0].counts.failed == 1)
        monkeypatch.setattr(Troubles, "carry_out", never)
        decision = Decision(processor=work.processor, aggregate_type="order", version=2, decision="skip")
        await place.store.append(Decision.home(order(1)), [decision.to_event()])
        await place.put(order(1), 10)
        engine = worker.engines[0]
        await until(lambda: any(part.window for part in engine.slices.values()))
        await until(lambda: all(part.idle.is_set() for part in engine.slices.values()))
        await asyncio.sleep(0.2)  # long enough for a position to be committed that must not be
        assert await state_is({"sum": 1, "events": 1})
    monkeypatch.setattr(Troubles, "carry_out", carry_out)
    async with place.worker(work):
        await until(lambda: state_is({"sum": 16, "events": 3}))


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
    recorder, other = Recorder(), Recorder()
    work = handler(recorder)
    await place.backend.pause("tenant acme", on=True)
    await place.put(order(1), 1, 2)
    await place.put(order(1, "other"), 1)
    async with place.worker(work, handler(other, "other")) as worker:
        engine = worker.engines[0]
        await until(lambda: len(recorder.seen) == 1 and engine.counts.parked >= 1)
        assert len(recorder.seen) == 1
        await place.backend.pause("tenant acme", on=False)
        await until(lambda: len(recorder.seen) == len(other.seen) == 3)
        await place.backend.pause(f"processor {work.processor}", on=True)
        await until(engine._desk.is_paused)
        await place.put(order(3), 1)
        await until(lambda: len(other.seen) == 4)
        assert len(recorder.seen) == 3
        await place.backend.pause(f"processor {work.processor}", on=False)
        await until(lambda: len(recorder.seen) == 4)
