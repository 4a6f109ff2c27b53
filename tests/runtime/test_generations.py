"""Generations: made elsewhere, loaded beside the one that is seen, switched to, retired, under traffic."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conftest import PRODUCTS, SCALE, Servers, emptied
from tests.queue.audit import until
from toril.aggregate import Aggregate
from toril.events import AnyEvent, EventHandler, FoldProjection, HandlerContext, NewEvent
from toril.events.errors import ConfigurationError
from toril.log import Retention
from toril.log.entry import START, Entry, Positions
from toril.log.store import Standing
from toril.runtime import (
    EngineOptions,
    EventSourcing,
    GenerationError,
    Rebuilt,
    RegisteredPipeline,
    Retry,
    Skipped,
    decision_in,
    skipped,
)
from toril.stores import MemoryProjectionStore
from toril.stores.sqlite import SqliteColdStore

OPTIONS = EngineOptions(lease=1.0, grace=2.0)
QUICK = Retry(attempts=2, first=0.01, longest=0.02)
PLACES = ("memory", f"{PRODUCTS[0]}-standalone", f"{PRODUCTS[0]}-cluster")
SERVED = PLACES[1:]


class Total(FoldProjection[dict[str, int]]):
    """The sum of an aggregate's numbers, and who made it."""

    name = "total"
    state_type = dict[str, int]
    times = 1

    def initial(self) -> dict[str, int]:
        return {"sum": 0, "by": self.version}

    def apply(self, state: dict[str, int], event: AnyEvent) -> dict[str, int]:
        if event.data == "broken":
            raise ValueError("broken")
        return {"sum": state["sum"] + self.times * event.data, "by": self.version}


class Doubled(Total):
    """What it becomes."""

    version = 2
    times = 2


def orders(sourcing: EventSourcing, *, both: bool = True) -> RegisteredPipeline:
    builder = (
        sourcing.register_pipeline()
        .with_name("orders")
        .with_aggregate_type("order")
        .with_projection("total", None, Total, retry=QUICK)
    )
    if both:
        builder.with_projection("total", None, Doubled, retry=QUICK, generation=2, start="loaded")
    return builder.build()


class Lake:
    """What a batch job knows: every event that was ever in the log."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    async def follow(self, sourcing: EventSourcing) -> None:
        assert sourcing.log is not None
        async with sourcing.log.reader("lake") as reader:
            async for batch in reader:
                self.entries += batch.entries
                await batch.done()

    async def read(self, aggregate: Aggregate, first: int, last: int) -> list[tuple[int, int, bytes]]:
        """As a :class:`~toril.log.History`."""
        found = [one for one in self.entries if one.key == aggregate.key and first <= one.version <= last]
        return [(one.version, one.recorded_at, one.body) for one in sorted(found, key=lambda e: e.version)]

    def upto(self, cut: Positions) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            at = cut.get(entry.partition)
            if at is not None and entry.ordinal <= at.ordinal and ":order:" in entry.key:
                found[entry.key].append(entry)
        return {key: sorted(entries, key=lambda one: one.version) for key, entries in found.items()}

    async def states(self, cut: Positions, projection: Total) -> list[Rebuilt]:
        """All states at a cut, as soon as all events up to there are known."""

        async def there() -> bool:
            last: dict[Any, int] = defaultdict(int)
            for entry in self.entries:
                last[entry.partition] = max(last[entry.partition], entry.ordinal)
            return all(last[partition] >= at.ordinal for partition, at in cut.items())

        await until(there, "the lake to have all up to the cut")
        return [rebuilt(key, entries, projection) for key, entries in self.upto(cut).items()]


def rebuilt(key: str, entries: Sequence[Entry], projection: Total) -> Rebuilt:
    state, version = projection.initial(), 0
    waiting: list[tuple[int, int, bytes]] = []
    for entry in entries:
        data = msgspec.json.decode(entry.body)["data"]
        if waiting or data == "broken":
            waiting.append((entry.version, entry.recorded_at, entry.body))
        else:
            state = {"sum": state["sum"] + projection.times * data, "by": projection.version}
            version = entry.version
    return Rebuilt(Aggregate.parse(key), version, projection.encode(state), waiting=waiting)


class Traffic:
    """Events of some aggregates, for as long as it is entered; each known to the test in its order."""

    def __init__(self, pipeline: RegisteredPipeline, rng: random.Random, idents: Sequence[str]) -> None:
        self.sent: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        """By version, the numbers of each aggregate."""
        self.idents = idents
        self._service = pipeline.service
        self._rng = rng

    async def send(self, tenant: str, ident: str, count: int = 1) -> None:
        numbers = [self._rng.randrange(1000) for _ in range(count)]
        done = await self._service.store_events(
            tenant, ident, [NewEvent(type="n", data=number) for number in numbers]
        )
        self.sent[tenant, ident].update(enumerate(numbers, done.first_version))

    async def once(self, tenants: Sequence[str] = ("acme",), count: int = 1) -> None:
        for tenant in tenants:
            for ident in self._rng.sample(self.idents, len(self.idents)):
                await self.send(tenant, ident, count)

    async def run(self) -> None:
        while True:
            sending = asyncio.create_task(self.send("acme", self._rng.choice(self.idents)))
            try:
                await asyncio.shield(sending)
            finally:
                await sending  # what was begun is known to the test
            await asyncio.sleep(0.002)

    def sums(self, tenant: str, ident: str, times: int) -> tuple[int, int]:
        numbers = self.sent[tenant, ident]
        return times * sum(numbers.values()), len(numbers)


@asynccontextmanager
async def beside(*works: Awaitable[None]) -> AsyncIterator[None]:
    """Run these meanwhile; one that fails, fails the test."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            if task.done():
                task.result()  # why it failed is why all failed
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def look(pipeline: RegisteredPipeline, traffic: Traffic, seen: list[int]) -> None:
    """A reader: every answer is of one generation, and every state what the events up to its version give."""
    while True:
        found = await pipeline.service.get_projections("total", "acme", traffic.idents)
        by = {state.state["by"] for state in found.values()}
        assert len(by) <= 1, f"a mixture of {by}"
        seen += by
        for ident, state in found.items():
            sent = traffic.sent["acme", ident]
            numbers = [sent[version] for version in range(1, state.version + 1) if version in sent]
            if len(numbers) == state.version:  # else an append has not returned yet
                assert state.state["sum"] == state.state["by"] * sum(numbers), ident
        assert not found or len(found) == len(traffic.idents)
        await asyncio.sleep(0.005)


async def agrees(pipeline: RegisteredPipeline, traffic: Traffic, name: str, times: int) -> None:
    """The promise once-per-state: each event is in the state once."""

    async def all_there() -> bool:
        for (tenant, ident), numbers in traffic.sent.items():
            found = await pipeline.service.get_projection(name, tenant, ident)
            if found is None or found.version < len(numbers):
                return False
        return True

    await until(all_there, f"{name} to have all events", 60)
    for tenant, ident in traffic.sent:
        found = await pipeline.service.get_projection(name, tenant, ident)
        assert found is not None
        assert (found.state["sum"], found.version) == traffic.sums(tenant, ident, times), (tenant, ident)


async def leftovers(sourcing: EventSourcing, cold: SqliteColdStore, processor: str) -> list[str]:
    """What the server and the cold store still have of a processor."""
    log = sourcing.log
    assert log is not None
    found = []
    for store in map(log.store, (await log.layout(anew=True)).partitions()):
        keys = store.keys
        for key in await store.hot(0, 100_000):
            names = (await store.fields(Aggregate.parse(key)))[::2]
            if {f"c:{processor}".encode(), f"s:{processor}".encode()} & set(names):
                found.append(f"{store.partition} {key}")
        for name in (processor, f"{processor}:load"):
            if name in (await store.look()).readers:
                found.append(f"{store.partition} reader {name}")
            for key in (keys.waiting(name), keys.trouble(name), keys.erased_since(name)):
                found += [key] * await log.redis.command("EXISTS", key)
        noted = [field.decode() for field in await log.redis.command("HKEYS", keys.leases)]
        found += [f"{store.partition} {name}" for name in noted if name.split(" ")[-1] == processor]
        groups = await log.redis.command("XINFO", "GROUPS", keys.entries)
        found += [f"{store.partition} group" for group in groups if processor.encode() in group]
    async for aggregate in cold.aggregates():
        frozen = await cold.get(aggregate)
        if frozen is not None and any(processor.encode() == name[2:] for name in frozen.flat()[::2]):
            found.append(f"cold {aggregate.key}")
    if await log.redis.command("EXISTS", log.keys.members(processor)):
        found.append("members")
    return found


async def hot(scene: Scene, idents: Sequence[str]) -> list[str]:
    """Those of the aggregates that are in Redis."""
    layout = await scene.log.layout()
    aggregates = [Aggregate("acme", "order", ident) for ident in idents]
    return [one.id for one in aggregates if await scene.log.store(layout.current.of(one)).fields(one)]


async def tails(scene: Scene) -> Positions:
    return {one.partition: one.tail for one in await scene.log.standings()}


class Killed(BaseException):
    """The promoting process is no more."""


def kill_after(sourcing: EventSourcing, calls: int) -> None:
    """Let a program end after so many calls of the server: the last one is done, and nobody hears of it."""
    redis: Any = sourcing.redis
    left = calls

    def deadly(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def made(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            answer = await call(*args, **more)
            if left <= 0:
                raise Killed
            return answer

        return made

    redis.run, redis.command = deadly(redis.run), deadly(redis.command)


class Scene:
    """A log with traffic, cold aggregates, a lake, two workers, and everything that trims and cools it."""

    def __init__(self, url: str, rng: random.Random, path: Path) -> None:
        self.url = url
        self.lake = Lake()
        self.cold = SqliteColdStore(path / "cold.db")
        self.settings: dict[str, Any] = {
            "cold": self.cold,
            "quiet": timedelta(milliseconds=200),
            "options": OPTIONS,
            "history": self.lake,
        }
        self._rng = rng

    @asynccontextmanager
    async def open(self, idents: Sequence[str]) -> AsyncIterator[None]:
        async with (
            EventSourcing(self.url, partitions=3, **self.settings) as self.sourcing,
            EventSourcing(self.url, **self.settings) as other,
        ):
            self.pipeline = orders(self.sourcing)
            orders(other)
            self.traffic = Traffic(self.pipeline, self._rng, idents)
            assert self.sourcing.log is not None
            self.log = self.sourcing.log
            await self.log.choose_retention(Retention.archived_by("lake"))
            async with (
                beside(self.lake.follow(self.sourcing), self._upkeep()),
                self.sourcing.worker(upkeep=False),
                other.worker(upkeep=False),
            ):
                yield
        self.cold.close()

    async def _upkeep(self) -> None:
        while True:
            await self.log.trim()
            await self.log.cool()
            await self.log.drop_epoch()
            await asyncio.sleep(0.05)

    async def killed_everywhere(self, step: Callable[[RegisteredPipeline], Awaitable[Any]]) -> int:
        """A step in a process that dies after its first call, its second, …, until one gets through."""
        calls = 1
        while True:
            async with EventSourcing(self.url, **self.settings) as own:
                pipeline = orders(own)
                redis: Any = own.redis
                kill_after(own, calls)
                try:
                    await step(pipeline)
                except Killed:
                    calls += 1
                    continue
                finally:
                    del redis.run, redis.command
            return calls


@pytest.mark.timeout(180 + 120 * SCALE)
@pytest.mark.parametrize("place", SERVED)
async def test_once_per_state_when_a_generation_is_promoted_under_traffic(
    servers: Servers, place: str, rng: random.Random, tmp_path: Path
) -> None:
    """Killed at every step, with cold aggregates; readers never see a mixture; nothing is left behind."""
    scene = Scene(emptied(servers.get(place)).url, rng, tmp_path)
    busy, quiet = [str(n) for n in range(12)], [f"q{n}" for n in range(30)]
    async with scene.open(busy):
        service, traffic = scene.pipeline.service, scene.traffic
        for ident in quiet:
            await traffic.send("acme", ident)
        await traffic.once()
        await agrees(scene.pipeline, traffic, "total", 1)
        seen: list[int] = []
        async with beside(traffic.run(), look(scene.pipeline, traffic, seen)):

            async def reserve(pipeline: RegisteredPipeline) -> None:
                await pipeline.service.generations.reserve("total", 2, version=2)

            assert await scene.killed_everywhere(reserve) > 3
            await traffic.once()
            (_, second) = await service.generations.standings("total")
            assert second.state == "loading"
            states = await scene.lake.states(second.cut, Doubled())
            assert len(states) == len(busy) + len(quiet)
            with pytest.raises(GenerationError, match="being loaded"):
                await service.generations.switch("total", 2, force=True)

            async def load(pipeline: RegisteredPipeline) -> None:
                await pipeline.service.generations.load("total", 2, states)

            assert await scene.killed_everywhere(load) > 10
            await traffic.once()

            async def switch(pipeline: RegisteredPipeline) -> None:
                await pipeline.service.generations.switch("total", 2, within=1000)

            async def ready() -> bool:
                return (await service.generations.ready("total", 2, within=5)).state == "ready"

            await until(ready, "the generation to catch up")
            assert set(seen) == {1}
            await scene.killed_everywhere(switch)

            async def sees(which: int) -> None:
                seen.clear()

                async def so() -> bool:
                    return seen[-3:] == [which] * 3

                await until(so, f"readers to see {which}")
                assert len([one for one, other in pairwise(seen) if one != other]) <= 1, "back and forth"

            await sees(2)
            assert await service.generations.switch("total", 1, within=1000) == 2
            await sees(1)
            assert await service.generations.switch("total", 2, within=1000) == 1
            await sees(2)
            with pytest.raises(GenerationError, match="readers see generation 2"):
                await service.generations.retire("total", 2)

            async def retire(pipeline: RegisteredPipeline) -> None:
                await pipeline.service.generations.retire("total", 1)

            assert await scene.killed_everywhere(retire) > 10
            await traffic.once()
            await sees(2)
        await agrees(scene.pipeline, traffic, "total", 2)
        assert [one.state for one in await service.generations.standings("total")] == ["retired", "current"]
        with pytest.raises(GenerationError, match="retired"):
            await service.generations.switch("total", 1, force=True)

        async def all_cold() -> bool:
            return not any(one.hot for one in await scene.log.standings())

        await until(all_cold, "all to go cold")
        assert await leftovers(scene.sourcing, scene.cold, "orders/total") == []
        # One more, of which nobody has declared the number: what is cold comes for its state, and leaves.
        third = await service.generations.reserve("total", version=2)
        states = await scene.lake.states(third.cut, Doubled())
        done = await service.generations.load("total", 3, states)
        assert (done.placed, done.there, done.gone) == (len(busy) + len(quiet), 0, 0)
        assert not await hot(scene, quiet)
        await traffic.once()
        await agrees(scene.pipeline, traffic, "total@3", 2)
        await service.generations.switch("total", 3)
        await agrees(scene.pipeline, traffic, "total", 2)


@pytest.mark.timeout(120 + 60 * SCALE)
@pytest.mark.parametrize("place", SERVED)
async def test_once_per_state_when_tenants_are_erased_and_the_log_is_resized_after_the_cut(
    servers: Servers, place: str, rng: random.Random, tmp_path: Path
) -> None:
    """Who was erased does not come back, also under the same names; what failed waits for a person."""
    scene = Scene(emptied(servers.get(place)).url, rng, tmp_path)
    async with scene.open([str(n) for n in range(10)]):
        service, traffic = scene.pipeline.service, scene.traffic
        await traffic.once(["acme", "globex", "hooli"])
        await service.store_events("umbra", "1", [NewEvent(type="n", data=data) for data in (1, "broken", 3)])
        async with beside(traffic.run()):
            reserved = await service.generations.reserve("total", version=2)
            assert reserved.number == 2
            states = await scene.lake.states(reserved.cut, Doubled())
            await service.store_events("umbra", "1", [NewEvent(type="n", data=5)])
            for tenant in ("globex", "hooli"):
                await scene.log.erase_tenant(tenant)
                for ident in traffic.idents:
                    traffic.sent.pop((tenant, ident))
            await traffic.once(["globex"])
            await scene.log.resize(5)
            await traffic.once(["acme", "globex"])
            done = await service.generations.load("total", 2, states)
            assert done.gone == 2 * len(traffic.idents)
            await scene.log.resize(2)
            await traffic.once(["acme", "globex"])

            async def ready() -> bool:
                return (await service.generations.ready("total", 2, within=5)).state == "ready"

            await until(ready, "the generation to catch up", 60)
            await service.generations.switch("total", 2)
        await agrees(scene.pipeline, traffic, "total", 2)
        assert await service.get_projection("total", "hooli", "1") is None

        async def failed() -> bool:
            return len(await service.get_failed_events("umbra", processor="total@2")) == 1

        await until(failed, "the broken event to fail")
        # Decided for the generation before, it counts for this one as well.
        await service.skip_failed("total", "umbra", "1", by="me")

        async def healed() -> bool:
            found = await service.get_projection("total", "umbra", "1")
            return found is not None and found.version == 4

        await until(healed, "what was skipped to be passed")
        state = await service.get_projection("total", "umbra", "1")
        assert state is not None
        assert state.state["sum"] == 2 * (1 + 3 + 5)
        assert await service.skipped("total@2", "umbra", "1") == {2}
        assert (await service.rebuild_projection("total@2", "umbra", "1")).state == state.state
        decided = [found for entry in scene.lake.entries if (found := decision_in(entry.key, entry.body))]
        assert skipped(decided) == {Skipped("orders/total", "umbra:order:1", 2)}
        assert skipped(decided, "orders/total@2") == {Skipped("orders/total@2", "umbra:order:1", 2)}
        assert skipped(decided, "orders/other@2") == frozenset()


@pytest.mark.parametrize("place", SERVED)
async def test_retention_safe_from_the_cut_on_until_a_generation_has_passed(
    servers: Servers, place: str, rng: random.Random, tmp_path: Path
) -> None:
    scene = Scene(emptied(servers.get(place)).url, rng, tmp_path)
    async with scene.open([str(n) for n in range(12)]):
        generations, traffic = scene.pipeline.service.generations, scene.traffic

        async def trimmed(wanted: Callable[[Standing], bool]) -> None:
            async def so() -> bool:
                return all(wanted(one) for one in await scene.log.standings())

            await until(so, "the log to be trimmed")

        await traffic.once(count=200)
        cut = await tails(scene)
        await generations.reserve("total", 2, cut=cut)
        await traffic.once(count=200)
        await agrees(scene.pipeline, traffic, "total", 1)
        await trimmed(lambda one: one.trimmed > 0)
        await scene.log.trim()
        assert all(one.trimmed <= cut[one.partition].ordinal for one in await scene.log.standings())
        await generations.load("total", 2, await scene.lake.states(cut, Doubled()))
        await agrees(scene.pipeline, traffic, "total@2", 2)
        await trimmed(lambda one: one.trimmed > cut[one.partition].ordinal)
        before = await generations.standings()
        with pytest.raises(GenerationError, match="the cut cannot be kept in partition"):
            await generations.reserve("total", 3, cut=cut)
        assert await generations.standings() == before
        for one in await scene.log.standings():
            assert sorted(one.readers) == ["lake", "orders/total", "orders/total@2"]


@asynccontextmanager
async def sourcing_of(place: str, servers: Servers) -> AsyncIterator[EventSourcing]:
    url = "memory://" if place == "memory" else emptied(servers.get(place)).url
    more: dict[str, Any] = {} if place == "memory" else {"partitions": 2}
    async with EventSourcing(url, options=OPTIONS, **more) as sourcing:
        yield sourcing


async def entries_of(sourcing: EventSourcing) -> list[Entry]:
    backend = sourcing.backend
    assert backend is not None
    return [
        entry
        for partition in await backend.partitions()
        for entry in await backend.page(partition, START, 10_000)
    ]


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


@pytest.mark.parametrize("place", PLACES)
async def test_a_new_projection_is_backfilled_without_a_gap_or_a_double(
    servers: Servers, place: str, rng: random.Random
) -> None:
    async with sourcing_of(place, servers) as sourcing:
        pipeline = (
            sourcing.register_pipeline()
            .with_name("orders")
            .with_aggregate_type("order")
            .with_projection("total", None, Total, start="loaded")
            .build()
        )
        traffic = Traffic(pipeline, rng, ["1", "2", "3"])
        lake = Lake()
        async with sourcing.worker():
            await traffic.once()
            made = await pipeline.service.generations.reserve("total")
            assert (made.number, made.state) == (1, "loading")
            lake.entries = await entries_of(sourcing)
            await traffic.once()
            assert await pipeline.service.get_projection("total", "acme", "1") is None  # it waits
            await pipeline.service.generations.load("total", 1, await lake.states(made.cut, Total()))
            await agrees(pipeline, traffic, "total", 1)


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
