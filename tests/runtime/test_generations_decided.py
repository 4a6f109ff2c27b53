"""What people decided about the events of one generation, in the generations after it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conftest import Servers
from tests.queue.audit import until
from tests.runtime.generations import (
    PLACES,
    QUICK,
    Doubled,
    Total,
    entries_of,
    orders,
    sourcing_of,
)
from toril.events import AnyEvent, NewEvent
from toril.log.entry import Entry
from toril.runtime import (
    Decision,
    RegisteredPipeline,
    decision_in,
    skipped,
)


class Forgiving(Doubled):
    """It takes what the one before cannot."""

    def apply(self, state: dict[str, int], event: AnyEvent) -> dict[str, int]:
        return state if event.data == "odd" else super().apply(state, event)


@pytest.mark.parametrize("place", PLACES[:2])
async def test_what_was_decided_for_readers_counts_for_later_generations(
    servers: Servers, place: str
) -> None:
    """And what was decided for a generation that they do not see any more counts for that one alone."""
    async with sourcing_of(place, servers) as sourcing:
        pipeline = (
            sourcing.register_pipeline()
            .with_name("orders")
            .with_aggregate_type("order")
            .with_projection("total", None, Total, retry=QUICK)
            .with_projection("total", None, Forgiving, retry=QUICK, generation=2, start="loaded")
            .build()
        )
        service = pipeline.service

        async def fails(names: set[str], ident: str, *numbers: Any) -> None:
            """Events, one of which fails in generations."""
            await service.store_events("acme", ident, [NewEvent(type="n", data=n) for n in numbers])

            async def so() -> bool:
                failed = await service.get_failed_events("acme")
                return {one.processor for one in failed if one.aggregate.id == ident} == names

            await until(so, f"an event to fail in {names}")

        async def passed(name: str, ident: str) -> None:
            async def so() -> bool:
                found = await service.get_checkpoint(name, "acme", ident)
                return found is not None and found.version == 3

            await until(so, f"{name} to be done")

        async with sourcing.worker():
            await service.generations.reserve("total", 2)
            await service.generations.load("total", 2, [])
            await fails({"total", "total@2"}, "before", 1, "broken", 3)
            await service.skip_failed("total", "acme", "before")
            for name in ("total", "total@2"):
                await passed(name, "before")
            await service.generations.switch("total", 2, force=True)
            await fails({"total"}, "old", 1, "odd", 3)
            await passed("total@2", "old")
            await service.skip_failed("total", "acme", "old")
            await passed("total", "old")
            await fails({"total", "total@2"}, "seen", 1, "broken", 3)
            await service.skip_failed("total@2", "acme", "seen")
            await passed("total@2", "seen")
        skips = {
            name: [await service.skipped(name, "acme", ident) for ident in ("before", "old", "seen")]
            for name in ("total", "total@2")
        }
        assert skips == {"total": [{2}, {2}, set()], "total@2": [{2}, set(), {2}]}
        decided = [
            found for entry in await entries_of(sourcing) if (found := decision_in(entry.key, entry.body))
        ]
        assert {one.aggregate for one in skipped(decided, "orders/total@3")} == {
            "acme:order:before",
            "acme:order:seen",
        }


async def fail(pipeline: RegisteredPipeline, ident: str, **versions: int) -> None:
    """Return when these events of an aggregate wait for a person; ``total2`` is the second generation."""

    async def so() -> bool:
        failed = await pipeline.service.get_failed_events("acme")
        its = {one.processor.replace("@", ""): one.version for one in failed if one.aggregate.id == ident}
        return its == versions

    await until(so, f"{versions} of {ident} to fail")


async def sums_to(pipeline: RegisteredPipeline, name: str, ident: str, version: int, total: int) -> None:
    """Return when a generation has all events of an aggregate but for those that were skipped."""

    async def so() -> bool:
        found = await pipeline.service.get_checkpoint(name, "acme", ident)
        return found is not None and found.version == version and found.status.name == "PROCESSED"

    await until(so, f"{name} to be done with {ident}")
    found = await pipeline.service.get_projection(name, "acme", ident)
    assert found is not None
    assert found.state["sum"] == total


@pytest.mark.parametrize("place", PLACES)
async def test_what_was_skipped_is_not_asked_again_in_a_generation_that_catches_up(
    servers: Servers, place: str
) -> None:
    """It meets decisions while their events are still tried, or wait behind another one that failed."""
    async with sourcing_of(place, servers) as sourcing:
        pipeline = orders(sourcing)
        service = pipeline.service
        await service.generations.reserve("total", 2)
        events = [NewEvent(type="n", data=data) for data in (1, "broken", "broken", 4, "broken", 6)]
        async with sourcing.worker():
            await service.store_events("acme", "skipped", events)
            await service.store_events("acme", "undecided", events[:3])
            for version in (2, 3, 5):
                await fail(pipeline, "skipped", total=version)
                await service.skip_failed("total", "acme", "skipped")
            await sums_to(pipeline, "total", "skipped", 6, 1 + 4 + 6)
            await service.generations.load("total", 2, [])
            await sums_to(pipeline, "total@2", "skipped", 6, 2 * (1 + 4 + 6))
            # What nobody decided waits for a person, as ever, and can be decided then.
            await fail(pipeline, "undecided", total=2, total2=2)
            await service.skip_failed("total@2", "acme", "undecided")
            await fail(pipeline, "undecided", total=2, total2=3)


@pytest.mark.parametrize("place", PLACES)
async def test_an_event_that_is_skipped_twice_takes_no_other_with_it(servers: Servers, place: str) -> None:
    """By both names, before a worker has seen either: a decision about the first counts for the second."""
    async with sourcing_of(place, servers) as sourcing:
        pipeline = orders(sourcing)
        service = pipeline.service
        async with sourcing.worker():
            await service.generations.reserve("total", 2)
            await service.generations.load("total", 2, [])
            events = [NewEvent(type="n", data=data) for data in (1, "broken", 3, 4)]
            await service.store_events("acme", "1", events)
            await fail(pipeline, "1", total=2, total2=2)
        for name in ("total", "total@2"):
            await service.skip_failed(name, "acme", "1")
        async with sourcing.worker():
            await sums_to(pipeline, "total", "1", 4, 1 + 3 + 4)
            await sums_to(pipeline, "total@2", "1", 4, 2 * (1 + 3 + 4))


@pytest.mark.parametrize("place", PLACES[:2])
async def test_an_event_that_is_skipped_while_it_is_looked_at_is_not_tried_again(
    servers: Servers, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sourcing_of(place, servers) as sourcing:
        pipeline = orders(sourcing)
        service, backend = pipeline.service, sourcing.backend
        assert backend is not None
        read, reading = backend.parked_entries, asyncio.Event()

        async def slow(processor: str, *args: Any) -> list[Entry]:
            found = await read(processor, *args)
            its = (await backend.troubles(processor, args[0])).values() if processor.endswith("@2") else ()
            if any(one.status == "failed" for one in its):
                reading.set()
                await asyncio.sleep(0.5)
            return found

        async with sourcing.worker():
            await service.generations.reserve("total", 2)
            await service.generations.load("total", 2, [])
            monkeypatch.setattr(backend, "parked_entries", slow)
            await service.store_events("acme", "1", [NewEvent(type="n", data=d) for d in (1, "broken")])
            await reading.wait()
            await service.skip_failed("total@2", "acme", "1")
            await sums_to(pipeline, "total@2", "1", 2, 2 * 1)
            await service.store_events("acme", "1", [NewEvent(type="n", data=3)])
            await sums_to(pipeline, "total@2", "1", 3, 2 * (1 + 3))


def test_a_retry_in_a_later_generation_takes_back_what_was_skipped_before_it() -> None:
    def left_out(*decisions: str) -> bool:
        made = [
            Decision(processor=name, aggregate_type="order", version=2, decision=what)  # type: ignore[arg-type]
            for name, _, what in (one.partition(" ") for one in decisions)
        ]
        return bool(skipped([("acme:order:1", one) for one in made], "orders/total@9"))

    first, second = "orders/total", "orders/total@2"
    assert left_out(f"{first} skip")
    assert not left_out(f"{first} skip", f"{second} retry")
    assert left_out(f"{first} skip", f"{second} retry", f"{second} skip")
    assert left_out(f"{second} retry", f"{first} skip"), "it was decided later"
    assert left_out(f"{second} skip", f"{first} retry"), "of one that is older"
    assert left_out(f"{first} skip", f"{first} retry"), "what is skipped cannot be tried any more"
