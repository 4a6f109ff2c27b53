"""What tests of generations have in common: traffic, a lake that knows all of it, and upkeep meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from tests.conftest import PRODUCTS, Servers, emptied
from tests.queue.audit import until
from toril.aggregate import Aggregate
from toril.events import AnyEvent, FoldProjection, NewEvent
from toril.log import Retention
from toril.log.entry import START, Entry, Positions
from toril.runtime import (
    EngineOptions,
    EventSourcing,
    Rebuilt,
    RegisteredPipeline,
    Retry,
)
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
