"""Parked events are tried again, however soon they are due and however long their parking takes."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.waiting import until
from toril.events import AnyEvent, EventHandler, HandlerContext, NewEvent
from toril.log.entry import START, Partition
from toril.runtime import EngineOptions, EventSourcing, Retry
from toril.runtime.backend import Lease
from toril.runtime.slice import Slice

AT_ONCE = Retry(attempts=3, first=0.001, longest=0.001)


class Broken(EventHandler[Any]):
    async def handle(self, event: AnyEvent, context: HandlerContext) -> None:  # noqa: ARG002
        raise RuntimeError(f"no {event.data} today")


async def test_an_event_that_is_due_before_its_parking_is_committed_is_not_forgotten() -> None:
    sourcing = EventSourcing("memory://", options=EngineOptions(lease=2.0, grace=2.0))
    made = sourcing.register_pipeline().with_name("orders").with_aggregate_type("order")
    pipeline = made.with_event_handler("broken", Broken(), retry=AT_ONCE).build()
    async with sourcing:
        backend: Any = sourcing.backend
        commit = backend.commit

        async def slowly(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(30 * AT_ONCE.first)
            return await commit(*args, **kwargs)

        backend.commit = slowly
        async with sourcing.worker():
            idents = [str(number) for number in range(20)]
            for ident in idents:
                await pipeline.service.store_events("acme", ident, [NewEvent(type="made", data=ident)])

            async def all_failed() -> bool:
                failed = await pipeline.service.get_failed_events("acme")
                return sorted(one.aggregate.id for one in failed) == sorted(idents)

            await until(all_failed)


async def test_an_event_that_is_due_while_its_attempt_ends_stays_due() -> None:
    part = Slice(Lease(Partition(1, 0), "me", START, 1, 0))
    part.park("acme:order:1", 10.0)
    part.retrying.add("acme:order:1")
    assert part.due_now(20.0) == []
    part.retrying.clear()
    assert part.due_now(20.0) == ["acme:order:1"]
    assert part.due_now(20.0) == []
