"""Handlers that take the events of an aggregate together; the same in memory, on one server, on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.conftest import MATRIX, Servers
from tests.runtime.parts import Place, handler, order, place_of
from tests.waiting import until
from toril.events import AnyEvent, BatchEventHandler, HandlerContext, HandlerError


@pytest.fixture(params=["inline", *MATRIX])
async def place(request: pytest.FixtureRequest, servers: Servers) -> Any:
    async with place_of(request.param, servers) as made:
        yield made


class Batches(BatchEventHandler[Any]):
    """Notes what it was given together; does what ``act`` says before."""

    def __init__(self, act: Callable[[Sequence[AnyEvent]], Awaitable[None]] | None = None) -> None:
        self.seen: list[tuple[str, list[int]]] = []
        self._act = act

    async def handle_many(self, events: Sequence[AnyEvent], context: HandlerContext) -> None:
        assert {event.tenant for event in events} == {context.tenant}
        if self._act is not None:
            await self._act(events)
        (ident,) = {event.aggregate_id for event in events}
        self.seen.append((ident, [event.version for event in events]))

    def versions(self, number: int) -> list[int]:
        return [version for ident, some in self.seen if ident == str(number) for version in some]


async def test_order_kept_events_that_wait_are_taken_together(place: Place) -> None:
    running: set[str] = set()

    async def act(events: Sequence[AnyEvent]) -> None:
        ident = events[0].aggregate_id
        assert ident not in running
        running.add(ident)
        await asyncio.sleep(0.001)
        running.discard(ident)

    batches = Batches(act)
    for number in range(10):
        await place.put(order(number), *range(1, 301))
        await place.put(order(number), *range(301, 601))
    async with place.worker(handler(batches)):
        await until(lambda: sum(len(some) for _, some in batches.seen) == 6000)
    for number in range(10):
        assert batches.versions(number) == list(range(1, 601))
    assert max(len(some) for _, some in batches.seen) <= 500
    assert len(batches.seen) < 600, "hardly any were taken together"


async def test_what_fails_together_is_handled_one_by_one_and_only_the_bad_one_waits(place: Place) -> None:
    tried: list[list[int]] = []

    async def act(events: Sequence[AnyEvent]) -> None:
        tried.append([event.version for event in events])
        if any(event.data == -1 for event in events):
            raise HandlerError("the row is bad")

    batches = Batches(act)
    await place.put(order(1), 1, 2, -1, 4)
    work = handler(batches)
    async with place.worker(work) as worker:
        await until(lambda: worker.engines[0].counts.failed == 1)
        assert batches.versions(1) == [1, 2]
        await place.put(order(2), 1)
        await until(lambda: batches.versions(2) == [1])
    assert [1, 2, 3, 4] in tried, "they were never tried together"
    assert tried.count([1, 2, 3, 4]) + sum(len(some) == 1 for some in tried) == len(tried), "once is enough"
    assert tried.count([3]) == 3, "all attempts at the bad one are its own"
    assert [4] not in tried


async def test_a_batch_that_is_not_finished_comes_again(place: Place) -> None:
    begun = asyncio.Event()

    async def act(_: Sequence[AnyEvent]) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(60)

    batches = Batches(act)
    await place.put(order(1), 1, 2, 3)
    task = asyncio.create_task(_run_until_cancelled(place, batches))
    await asyncio.wait_for(begun.wait(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not batches.seen
    async with place.worker(handler(batches)):
        await until(lambda: batches.versions(1) == [1, 2, 3])


async def _run_until_cancelled(place: Place, batches: Batches) -> None:
    async with place.worker(handler(batches)):
        await asyncio.sleep(60)
