"""Generations, one step at a time; the same in memory, on one server and on a cluster."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

import toril.runtime.redis_generations
from tests.conftest import Servers
from tests.queue.audit import until
from tests.runtime.generations import (
    PLACES,
    QUICK,
    SERVED,
    Doubled,
    Lake,
    Total,
    Traffic,
    agrees,
    entries_of,
    orders,
    sourcing_of,
)
from toril.aggregate import Aggregate
from toril.connection import DurabilityNotReached
from toril.events import AnyEvent, EventHandler, HandlerContext, NewEvent, ProjectionStore
from toril.events.errors import ConfigurationError
from toril.runtime import (
    EventSourcing,
    GenerationError,
    Rebuilt,
    RegisteredPipeline,
)
from toril.runtime.pipeline import TypedPipelineBuilder
from toril.runtime.redis_generations import RedisGenerations
from toril.runtime.work import ProjectionWork
from toril.stores import MemoryProjectionStore
from toril.testing import Cluster


@pytest.mark.parametrize("place", PLACES)
async def test_a_generation_of_the_same_class_is_run_without_a_restart(
    servers: Servers, place: str, rng: random.Random
) -> None:
    """Nobody declared it: its number is from the log, its class the one that the program has."""
    async with sourcing_of(place, servers) as sourcing:
        pipeline = orders(sourcing, both=False)
        service = pipeline.service
        traffic = Traffic(pipeline, rng, ["1", "2", "3"])
        lake = Lake()
        async with sourcing.worker():
            await traffic.once()
            await agrees(pipeline, traffic, "total", 1)
            made = await service.generations.reserve("total")
            await traffic.once()
            lake.entries = await entries_of(sourcing)
            await service.generations.load("total", 2, await lake.states(made.cut, Total()))
            await traffic.once()
            await agrees(pipeline, traffic, "total@2", 1)
            await service.generations.switch("total", 2, within=0)
            assert await service.current("total") == "total@2"
            assert await service.generations.retire("total", 1) == 3
            assert [one.name for one in await service.standings()] == ["total@2"]
            await traffic.once()
            await agrees(pipeline, traffic, "total", 1)
            assert (await service.generations.standings())[1].behind == 0


def new(sourcing: EventSourcing) -> RegisteredPipeline:
    """With a projection that waits to be loaded, and has no generation yet."""
    builder = sourcing.register_pipeline().with_name("orders").with_aggregate_type("order")
    return builder.with_projection("total", None, Total, start="loaded").build()


@pytest.mark.parametrize("place", PLACES)
async def test_a_new_projection_is_backfilled_without_a_gap_or_a_double(
    servers: Servers, place: str, rng: random.Random
) -> None:
    async with sourcing_of(place, servers) as sourcing:
        pipeline = new(sourcing)
        traffic = Traffic(pipeline, rng, ["1", "2", "3"])
        lake = Lake()
        async with sourcing.worker():
            await traffic.once()
            made = await pipeline.service.generations.reserve("total")
            assert (made.number, made.state) == (1, "loading")
            lake.entries = await entries_of(sourcing)
            await traffic.once()
            assert await pipeline.service.get_projection("total", "acme", "1") is None  # it waits
            generations = pipeline.service.generations
            await generations.load("total", 1, await lake.states(made.cut, Total()))

            async def ready() -> bool:
                return (await generations.ready("total", 1, within=0)).state == "ready"

            await until(ready, "it to catch up")
            # Nobody sees it before somebody says so: neither readers, nor what depends on it.
            assert await pipeline.service.get_projection("total", "acme", "1") is None
            assert await pipeline.service.current("total") == ""
            assert sourcing.backend is not None
            assert await sourcing.backend.generations.seen(["orders/total"]) == ("orders/total@0",)
            with pytest.raises(ConfigurationError, match="see no generation of 'total' yet"):
                await generations.reading("total")
            assert await generations.switch("total", 1) == 0
            assert await generations.before("total") == ()
            await agrees(pipeline, traffic, "total", 1)


@pytest.mark.parametrize("place", PLACES)
async def test_a_new_projection_that_was_never_seen_can_be_given_up(servers: Servers, place: str) -> None:
    async with sourcing_of(place, servers) as sourcing:
        pipeline = new(sourcing)
        generations = pipeline.service.generations
        await generations.reserve("total")
        assert await generations.retire("total", 1) == 0
        assert (await generations.reserve("total")).number == 2
        await generations.load("total", 2, [])
        assert await generations.switch("total", 2) == 0
        with pytest.raises(GenerationError, match="readers see generation 2"):
            await generations.retire("total", 2)


@pytest.mark.parametrize("place", PLACES)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    servers: Servers, place: str, rng: random.Random
) -> None:
    async with sourcing_of(place, servers) as sourcing:
        pipeline = orders(sourcing)
        generations = pipeline.service.generations
        await Traffic(pipeline, rng, ["1", "2", "3"]).once()
        cut = (await generations.reserve("total", 3)).cut
        future = {one: at._replace(ordinal=at.ordinal + 9) for one, at in cut.items()}
        before = await generations.standings()
        for refused, why in (
            (generations.reserve("total", 4, cut=future), "in the future"),
            (generations.reserve("total", 3, cut=future), "another cut"),
            (generations.reserve("total", 3, version=1), "made by version 2"),
            (generations.load("total", 2, []), "reserve one first"),
            (generations.switch("total", 3, force=True), "being loaded"),
            (generations.switch("total", 9), "no generation 9"),
            (generations.switch("total", 2, force=True), "never loaded"),
            (generations.retire("total", 1), "readers see"),
            (generations.retire("total", 9), "no generation 9"),
            (generations.reserve("total", 1), "built from the log by workers; the next one is 4"),
        ):
            with pytest.raises(GenerationError, match=why):
                await refused
        with pytest.raises(ConfigurationError, match="no projection 'nope'"):
            await generations.reserve("nope")
        assert await generations.standings() == before
        assert (await generations.reserve("total", 3)).cut == cut  # once more is the same
        assert await generations.retire("total", 3) == 0
        with pytest.raises(GenerationError, match="retired already; the next one is 4"):
            await generations.reserve("total", 3)
        await generations.reserve("total", 4, version=7)
        await generations.load("total", 4, [])
        await generations.reserve("total", 5, version=2)
        wrong = Rebuilt(Aggregate("acme", "order", "1"), 1, Total().encode({"sum": 1, "by": 1}))
        with pytest.raises(GenerationError, match="cannot be read as total version 2"):
            await generations.load("total", 5, [wrong])
        await generations.retire("total", 5)
        await Traffic(pipeline, rng, ["1", "2", "3"]).once()
        with pytest.raises(GenerationError, match="3 events behind; 2 are allowed"):
            await generations.switch("total", 4, within=2)
        await generations.switch("total", 4, force=True)
        with pytest.raises(ConfigurationError, match="version 7 .* this program has: 1, 2"):
            await pipeline.service.get_projection("total", "acme", "1")


@pytest.mark.parametrize("step", ["reserve", "enlist"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_generation_that_is_retired_while_it_is_loaded_stays_so(
    servers: Servers, place: str, step: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is left, neither states nor a place in the log that would hold up trimming."""
    async with sourcing_of(place, servers) as sourcing:
        pipeline = orders(sourcing)
        assert sourcing.backend is not None
        generations, backend = pipeline.service.generations, sourcing.backend
        await Traffic(pipeline, rng, ["1", "2"]).once()
        real = getattr(backend.generations, step)

        async def overtaken(*args: Any) -> None:
            await real(*args)
            await generations.retire("total", 2)

        async def load() -> None:
            await generations.reserve("total", 2)
            await generations.load("total", 2, [])

        monkeypatch.setattr(backend.generations, step, overtaken)
        with pytest.raises(GenerationError, match="generation 2 of 'total' was retired meanwhile"):
            await load()
        monkeypatch.undo()
        (standing,) = [one for one in await generations.standings() if one.number == 2]
        assert standing.state == "retired"
        for partition in await backend.partitions():
            names = ["orders/total@2", "orders/total@2:load"]
            assert await backend.positions(partition, names) == [None, None]
        assert (await generations.reserve("total")).number == 3


@pytest.mark.parametrize("place", PLACES)
async def test_readers_go_back_to_what_they_saw_before(servers: Servers, place: str) -> None:
    """Not to what has the number before."""
    async with sourcing_of(place, servers) as sourcing:
        service = orders(sourcing).service
        generations = service.generations
        for number in (2, 3, 12):
            await generations.reserve("total", number)
            await generations.load("total", number, [])
        assert await generations.before("total") == ()
        for number in (3, 3, 12, 3, 12):
            await generations.switch("total", number, force=True)
        assert await generations.before("total") == (1, 3), "each once"
        for refused in (2, 1):
            with pytest.raises(GenerationError, match=f"{refused} is not what they saw before it"):
                await generations.switch("total", refused, force=True, back=True)
        for _ in range(2):  # once more is the same
            assert await generations.switch("total", 3, force=True, back=True) in (12, 3)
            assert (await service.current("total"), await generations.before("total")) == ("total@3", (1,))
        assert [one.number for one in await generations.standings() if one.state == "current"] == [3]
        assert await generations.switch("total", 1, force=True, back=True) == 3
        assert (await service.current("total"), await generations.before("total")) == ("total", ())
        for number in (2, 3, 12):
            await generations.switch("total", number, force=True)
        for _ in range(2):  # once more is the same
            await generations.retire("total", 3)
            assert await generations.before("total") == (1, 2), "not to what is retired"
        await generations.retire("total", 2)
        assert await generations.switch("total", 1, force=True, back=True) == 12


@pytest.mark.parametrize("place", PLACES)
async def test_whoever_depends_on_a_projection_or_decides_on_it_follows_the_pointer(
    servers: Servers, place: str, rng: random.Random
) -> None:
    """Also when the first generation is gone."""
    told: dict[str, int] = defaultdict(int)

    class Tell(EventHandler[Any]):
        async def handle(self, event: AnyEvent, context: HandlerContext) -> None:
            found = await pipeline.service.get_projection("total", context.tenant, event.aggregate_id)
            assert found is not None
            assert found.version >= event.version
            told[event.aggregate_id] = event.version

    async with sourcing_of(place, servers) as sourcing:
        pipeline = (
            sourcing.register_pipeline()
            .with_name("orders")
            .with_aggregate_type("order")
            .with_projection("total", None, Total, retry=QUICK)
            .with_projection("total", None, Doubled, retry=QUICK, generation=2, start="loaded")
            .with_event_handler("tell", Tell(), depends_on=["total"], retry=QUICK)
            .build()
        )
        service = pipeline.service
        traffic = Traffic(pipeline, rng, ["1", "2", "3"])
        lake = Lake()
        aggregate = Aggregate("acme", "order", "1")

        async def all_told() -> bool:
            return dict(told) == {ident: len(numbers) for (_, ident), numbers in traffic.sent.items()}

        async with sourcing.worker():
            await traffic.once()
            await until(all_told, "all to be told")
            made = await service.generations.reserve("total", 2)
            lake.entries = await entries_of(sourcing)
            await service.generations.load("total", 2, await lake.states(made.cut, Doubled()))
            await agrees(pipeline, traffic, "total@2", 2)
            for made_by in (Total(), Doubled()):
                snapshot = await service.snapshots.latest(aggregate, "total", made_by.version)
                assert snapshot is not None
                assert made_by.decode(snapshot.state)["by"] == made_by.version
            await service.generations.switch("total", 2)
            await service.generations.retire("total", 1)
            assert await service.snapshots.latest(aggregate, "total", 1) is None
            assert await service.snapshots.latest(aggregate, "total", 2) is not None
            await traffic.once()
            await until(all_told, "all to be told")
            await agrees(pipeline, traffic, "total", 2)


@pytest.mark.parametrize("place", PLACES)
async def test_events_that_wait_come_in_portions_each_once(servers: Servers, place: str) -> None:
    """Also where a load was cut off, and is run again with other portions."""
    async with sourcing_of(place, servers) as sourcing:
        service = orders(sourcing).service
        numbers = [1, "broken", 3, 4, 5, 6, 7]
        await service.store_events("acme", "1", [NewEvent(type="n", data=number) for number in numbers])
        cut = (await service.generations.reserve("total", 2)).cut
        found = await service.store.read(Aggregate("acme", "order", "1"))
        waiting = [
            (one.version, one.recorded_at, NewEvent(type="n", data=one.data).to_bytes())
            for one in found.events[1:]
        ]

        def portions(most: int) -> list[Rebuilt]:
            first = Rebuilt(Aggregate("acme", "order", "1"), 1, Doubled().encode({"sum": 2, "by": 2}))
            parts = [(at, waiting[at : at + most]) for at in range(0, len(waiting), most)]
            return [
                replace(first, state=first.state if not at else b"", waiting=some, after=at)
                for at, some in parts
            ]

        done = [await service.generations.place("total", 2, [one]) for one in portions(2)[:2]]
        assert [one.placed for one in done] == [1, 0]
        loaded = await service.generations.load("total", 2, portions(3))
        assert (loaded.placed, loaded.there) == (0, 1), "an aggregate counts once"
        async with sourcing.worker():

            async def failed() -> bool:
                return len(await service.get_failed_events("acme", processor="total@2")) == 1

            await until(failed, "the broken event to fail")
            await service.skip_failed("total@2", "acme", "1")

            async def passed() -> bool:
                found = await service.get_projection("total@2", "acme", "1")
                return found is not None and found.version == 7

            await until(passed, "the others to be processed")
        state = await service.get_projection("total@2", "acme", "1")
        assert state is not None
        assert state.state == {"sum": 2 * (1 + 3 + 4 + 5 + 6 + 7), "by": 2}
        assert (await service.generations.standings("total"))[1].cut == cut


async def test_states_have_come_when_a_replica_has_them(servers: Servers) -> None:
    """Also those that a load has brought which was cut off before it knew."""
    nodes = servers.get(PLACES[2])
    assert isinstance(nodes, Cluster)
    async with sourcing_of(PLACES[2], servers) as sourcing:
        service = orders(sourcing).service
        await service.store_events("acme", "1", [NewEvent(type="n", data=1)])
        await service.generations.reserve("total", 2)
        states = [Rebuilt(Aggregate("acme", "order", "1"), 1, Doubled().encode({"sum": 2, "by": 2}))]
        replicas = [one for primary in nodes.primaries() for one in nodes.replicas_of(primary)]
        for replica in replicas:
            replica.pause()
        try:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(service.generations.load("total", 2, states), 0.5)
        finally:
            for replica in replicas:
                replica.resume()
        loaded = await service.generations.load("total", 2, states)
        assert (loaded.placed, loaded.there) == (0, 1)


async def test_a_replica_is_waited_for_while_there_is_one(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it has taken over, it has none itself, and is told once more."""
    monkeypatch.setattr(toril.runtime.redis_generations, "REPLICA_WITHIN", 0.1)
    async with sourcing_of(PLACES[1], servers) as sourcing:
        service = orders(sourcing).service
        looks: list[bool] = []

        async def has_replica(*_: object) -> bool:
            return looks.pop(0)

        monkeypatch.setattr(RedisGenerations, "_has_replica", has_replica)
        await service.generations.reserve("total", 2)
        for ident in ("1", "2"):
            await service.store_events("acme", ident, [NewEvent(type="n", data=1)])
        one, two = (Rebuilt(Aggregate("acme", "order", ident), 0, b"") for ident in ("1", "2"))
        looks = [True, True]
        with pytest.raises(DurabilityNotReached, match="0 of 1 replicas"):
            await service.generations.place("total", 2, [one])
        looks = [True, False]
        assert (await service.generations.place("total", 2, [two])).there == 1


async def test_a_projection_with_a_store_of_its_own_is_loaded_into_it(
    servers: Servers, rng: random.Random
) -> None:
    async with sourcing_of(SERVED[0], servers) as sourcing:
        store = MemoryProjectionStore()
        pipeline = (
            sourcing.register_pipeline()
            .with_name("orders")
            .with_aggregate_type("order")
            .with_projection("total", MemoryProjectionStore(), Total)
            .with_projection("total", store, Doubled, generation=2, start="loaded")
            .build()
        )
        traffic = Traffic(pipeline, rng, ["1", "2", "3"])
        lake = Lake()
        async with sourcing.worker():
            await traffic.once()
            made = await pipeline.service.generations.reserve("total", 2)
            await traffic.once()
            lake.entries = await entries_of(sourcing)
            await pipeline.service.generations.load("total", 2, await lake.states(made.cut, Doubled()))
            await agrees(pipeline, traffic, "total@2", 2)
            assert await store.load(Doubled(), Aggregate("acme", "order", "1")) is not None


def in_store(sourcing: EventSourcing, store: ProjectionStore, *later: type[Total]) -> RegisteredPipeline:
    """With states in a store of their own, also those of later generations."""
    builder = sourcing.register_pipeline().with_name("orders").with_aggregate_type("order")
    builder.with_projection("total", store, Total, retry=QUICK)
    for number, made_by in enumerate(later, 2):
        builder.with_projection("total", store, made_by, retry=QUICK, generation=number, start="loaded")
    return builder.build()


@pytest.mark.parametrize("place", PLACES)
async def test_a_generation_in_the_rows_of_another_one_is_refused_and_changes_nothing(
    servers: Servers, place: str, rng: random.Random
) -> None:
    async with sourcing_of(place, servers) as sourcing:
        store = MemoryProjectionStore()
        pipeline = in_store(sourcing, store)
        generations = pipeline.service.generations
        traffic = Traffic(pipeline, rng, ["1", "2", "3"])
        async with sourcing.worker():
            await traffic.once()
            await agrees(pipeline, traffic, "total", 1)
            before = await generations.standings()
            why = (
                r"generation 2 of 'total' would be in the rows of generation 1: both are of version 1 of the "
                r"projection, in the same store; make it by another version of the projection, or give it "
                r"another store"
            )
            with pytest.raises(GenerationError, match=why):
                await generations.reserve("total")
            assert await generations.standings() == before
            # A program that gives it another store may; where that is not declared, no state is brought.
            work = pipeline.definition.works["total"]
            assert isinstance(work, ProjectionWork)
            other = replace(work, name="total@2", store=MemoryProjectionStore(), start="loaded")
            pipeline.definition.works["total@2"] = other
            made = await generations.reserve("total")
            lake = Lake()
            lake.entries = await entries_of(sourcing)
            states = await lake.states(made.cut, Total())
            wrong = [replace(one, state=Total().encode({"sum": -1, "by": 1})) for one in states]
            del pipeline.definition.works["total@2"]
            before = await generations.standings()
            for refused in (
                generations.place("total", 2, wrong),
                generations.load("total", 2, wrong),
                generations.finish("total", 2),
            ):
                with pytest.raises(GenerationError, match=why):
                    await refused
            assert await generations.standings() == before
            pipeline.definition.works["total@2"] = other
            assert (await generations.load("total", 2, states)).placed == 3
            await traffic.once()
            for name in ("total", "total@2"):
                await agrees(pipeline, traffic, name, 1)


@pytest.mark.parametrize("place", PLACES)
async def test_what_a_retired_generation_has_in_a_store_of_its_own_is_not_gone_on_from(
    servers: Servers, place: str, rng: random.Random
) -> None:
    """Where states of it came; the same version is free where none did."""
    async with sourcing_of(place, servers) as sourcing:
        pipeline = in_store(sourcing, MemoryProjectionStore(), Doubled)
        generations = pipeline.service.generations
        traffic = Traffic(pipeline, rng, ["1", "2", "3"])
        lake = Lake()
        async with sourcing.worker():
            await traffic.once()
            assert (await generations.reserve("total")).number == 2
            assert await generations.retire("total", 2) == 0
            made = await generations.reserve("total")
            lake.entries = await entries_of(sourcing)
            states = await lake.states(made.cut, Doubled())
            await generations.load("total", 3, states)
            for name, times in (("total", 1), ("total@3", 2)):
                await agrees(pipeline, traffic, name, times)
            await generations.switch("total", 3)
            await generations.retire("total", 1)
        for version, other in ((1, 1), (2, 3)):
            with pytest.raises(GenerationError, match=f"generation 4 .* in the rows of generation {other}:"):
                await generations.reserve("total", version=version)
        await generations.reserve("total", 5, version=3)
        work = pipeline.definition.works["total@2"]
        assert isinstance(work, ProjectionWork)
        third = type("Third", (Doubled,), {"version": 3})()
        pipeline.definition.works["total@5"] = replace(work, name="total@5", projection=third)
        await generations.place("total", 5, [replace(states[0], state=b"")])
        assert await generations.retire("total", 5) == 1, "it was given up half loaded"
        with pytest.raises(GenerationError, match="in the rows of generation 5:"):
            await generations.reserve("total", version=3)


def test_generations_that_workers_build_in_the_same_rows_are_refused() -> None:
    store = MemoryProjectionStore()

    def builder(made_by: type[Total], its: ProjectionStore | None) -> TypedPipelineBuilder:
        sourcing = EventSourcing("memory://")
        made = sourcing.register_pipeline().with_name("orders").with_aggregate_type("order")
        return made.with_projection("total", store, Total).with_projection(
            "total", its, made_by, generation=2
        )

    with pytest.raises(ConfigurationError, match="'total' and 'total@2' .* version 1 .* in the same store"):
        builder(Total, store).build()
    for made_by, its in ((Doubled, store), (Total, MemoryProjectionStore()), (Total, None)):
        builder(made_by, its).build()
