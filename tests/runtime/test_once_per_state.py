"""The promises once-per-state, order-kept and tenant-walls of processors, while workers and servers die."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from tests.conftest import PRODUCTS, SCALE, Servers, emptied
from tests.queue.audit import until
from tests.runtime.crew import (
    Crew,
    all_done,
    check_fences,
    check_lag,
    check_order,
    check_states,
    folder,
    looking_on,
    parked,
    read_journal,
)
from tests.runtime.processor_victim import POISON, Settings
from toril import Durability
from toril.aggregate import Aggregate
from toril.connection.errors import ConnectionFailed, DurabilityNotReached, OutcomeUnknown
from toril.events import NewEvent
from toril.runtime import RegisteredPipeline
from toril.testing import Cluster, Server, cluster, standalone

PARTITIONS = 6
TENANTS = ("acme", "beta", "gamma", "delta", "late")


class Writer:
    """Appends events of aggregates of many tenants, some of them twice, until each is accepted."""

    def __init__(
        self, pipeline: RegisteredPipeline, rng: random.Random, durability: str | Durability = "memory"
    ) -> None:
        self._pipeline = pipeline
        self._rng = rng
        self._durability: object = durability
        self._number = 0
        self.aggregates = [
            Aggregate(tenant, "account", f"{number}") for tenant in TENANTS for number in range(12)
        ]
        self.used: set[Aggregate] = set()
        self.events = 0
        self.repeats = 0

    async def write(self, appends: int, tenants: int = len(TENANTS)) -> None:
        """Tenants come late: at first only some are there."""
        chosen = [one for one in self.aggregates if TENANTS.index(one.tenant) < tenants]
        for _ in range(0, appends, 10):
            some = [self._rng.choice(chosen) for _ in range(10)]
            await asyncio.gather(*map(self._append, some))

    async def _append(self, aggregate: Aggregate) -> None:
        events = []
        for _ in range(self._rng.randrange(1, 4)):
            self._number += 1
            events.append(NewEvent(type="moved", data={"n": self._number, "rest": self._number % 7}))
        key = f"k{self._number}"
        await self._for_sure(aggregate, events, key)
        self.used.add(aggregate)
        self.events += len(events)
        if self._rng.random() < 0.2:  # it is sent again: nothing is appended twice
            await self._for_sure(aggregate, events, key)
            self.repeats += 1

    async def _for_sure(self, aggregate: Aggregate, events: list[NewEvent[dict[str, int]]], key: str) -> None:
        durability: object = self._durability
        for _ in range(200):
            try:
                await self._pipeline.service.store_events(
                    aggregate.tenant,
                    aggregate.id,
                    events,
                    idempotency_key=key,
                    durability=durability,  # type: ignore[arg-type]
                )
            except (OutcomeUnknown, ConnectionFailed, DurabilityNotReached):
                await asyncio.sleep(0.05)
            else:
                return
        raise AssertionError("an append was never accepted")


async def until_done(pipeline: RegisteredPipeline, seconds: float = 60.0) -> None:
    async def done() -> bool:
        return await all_done(pipeline)

    try:
        await until(done, "all processors to be done", seconds)
    except AssertionError as late:
        lag = [one for one in await pipeline.service.lag() if one.events]
        raise AssertionError(f"{late}: {lag}, parked {await parked(pipeline)}") from None


async def check(
    pipeline: RegisteredPipeline,
    writer: Writer,
    where: Path,
    *,
    commits_hold: bool = True,
    sleeps: int = 0,
) -> str:
    """All promises; what it took, in words."""
    versions = await check_states(pipeline, sorted(writer.used, key=str))
    assert sum(versions.values()) == writer.events
    lines = read_journal(where)
    again = check_order(lines, versions, commits_hold=commits_hold, sleeps=sleeps)
    takes = check_fences(lines) if commits_hold else 0
    for tenant in TENANTS:
        assert await pipeline.service.get_failed_events(tenant) == []
    redis = pipeline.sourcing.redis
    assert redis is not None
    await check_lag(redis, pipeline.sourcing)
    return f"{writer.events} events, {writer.repeats} sent twice, {again} begun again, {takes} leases"


def report(what: str, crew: Crew, started: float, capture: pytest.CaptureFixture[str]) -> None:
    with capture.disabled():
        print(f"\n  {what}; {crew.kills} workers killed, {time.monotonic() - started:.0f} s")


async def kill_at_random(crew: Crew, rng: random.Random, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(rng.uniform(0.1, 0.8))
        await crew.kill_one()


@pytest.mark.timeout(120 + 60 * SCALE)
async def test_once_per_state_and_order_kept_when_workers_are_killed_at_random(
    rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    with standalone() as server:
        async with folder() as where, looking_on(server.url, PARTITIONS) as (_, pipeline):
            settings = Settings(url=server.url, folder=str(where), name="v")
            async with Crew(settings, 2, rng) as crew:
                started = time.monotonic()
                writer = Writer(pipeline, rng)
                killing = asyncio.create_task(kill_at_random(crew, rng, 8 * SCALE))
                while not killing.done():
                    await writer.write(40, tenants=2 + round(time.monotonic() - started) // 2)
                    await asyncio.sleep(0.02)
                await killing
                await until_done(pipeline)
                await crew.close()
            said = await check(pipeline, writer, where)
    report(f"kill -9: {said}", crew, started, capsys)


@pytest.mark.timeout(180 + 90 * SCALE)
async def test_once_per_state_and_order_kept_on_a_cluster_that_fails_over_and_moves_slots(
    rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers are killed, a replica takes over in order, and slots in use are moved."""
    with cluster() as nodes:
        async with folder() as where, looking_on(nodes.url, PARTITIONS) as (sourcing, pipeline):
            assert sourcing.log is not None
            settings = Settings(url=nodes.url, folder=str(where), name="v", lease=1.5)
            slots = [
                sourcing.log.store(partition).keys.head.slot
                for partition in (await sourcing.log.layout()).partitions()
            ]
            async with Crew(settings, 2, rng) as crew:
                started = time.monotonic()
                writer = Writer(pipeline, rng)

                async def under_way() -> bool:
                    return writer.events >= 200

                async def hurt() -> None:
                    await until(under_way, "some traffic")
                    await asyncio.to_thread(nodes.fail_over, nodes.primary_of(slots[0]))
                    for _ in range(round(2 * SCALE)):
                        slot = rng.choice(slots)
                        others = [one for one in nodes.primaries() if one is not nodes.primary_of(slot)]
                        await crew.kill_one()
                        await asyncio.to_thread(nodes.move_slot, slot, rng.choice(others))

                hurting = asyncio.create_task(hurt())
                while not hurting.done():
                    await writer.write(30)
                    await asyncio.sleep(0.02)
                await hurting
                await until_done(pipeline)
                await crew.close()
            said = await check(pipeline, writer, where)
    report(f"a failover and slots moved: {said}", crew, started, capsys)


@pytest.mark.timeout(180 + 90 * SCALE)
async def test_once_per_state_and_order_kept_when_a_master_dies(
    rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was appended is replicated; commits of processors are not, and what is lost is done again."""
    with cluster() as nodes:
        async with folder() as where, looking_on(nodes.url, PARTITIONS) as (sourcing, pipeline):
            assert sourcing.log is not None
            settings = Settings(url=nodes.url, folder=str(where), name="v", lease=1.5)
            partition = (await sourcing.log.layout()).partitions()[0]
            head = sourcing.log.store(partition).keys.head
            async with Crew(settings, 2, rng) as crew:
                started = time.monotonic()
                writer = Writer(pipeline, rng, Durability("replicated", timeout=1.0))

                def strike() -> None:
                    master = nodes.primary_of(head)
                    nodes.kill(master)
                    master.start()
                    nodes.wait_until_whole()

                for _ in range(round(1 * SCALE) or 1):
                    await writer.write(200)
                    striking = asyncio.create_task(asyncio.to_thread(strike))
                    while not striking.done():
                        await writer.write(10)
                    await striking
                await crew.kill_one()
                await writer.write(100)
                await until_done(pipeline)
                await crew.close()
            said = await check(pipeline, writer, where, commits_hold=False)
    report(f"a master killed: {said}", crew, started, capsys)


@pytest.mark.timeout(120 + 60 * SCALE)
async def test_once_per_state_when_a_paused_worker_wakes_up_late(
    servers: Servers, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGSTOP for longer than the lease: what it commits then is refused, and nobody owns anything twice."""
    server: Server | Cluster = emptied(servers.get(f"{PRODUCTS[0]}-standalone"))
    async with folder() as where, looking_on(server.url, PARTITIONS) as (_, pipeline):
        settings = Settings(url=server.url, folder=str(where), name="v", lease=0.8, longest_ms=30)
        async with Crew(settings, 2, rng) as crew:
            started = time.monotonic()
            writer = Writer(pipeline, rng)
            for _ in range(round(2 * SCALE)):
                await writer.write(100)
                sleeper = rng.choice(crew.members)
                sleeper.signal(19)  # SIGSTOP
                try:
                    end = time.monotonic() + 2.0
                    while time.monotonic() < end:
                        await writer.write(10)
                        await asyncio.sleep(0.05)
                finally:
                    sleeper.signal(18)  # SIGCONT
                await writer.write(50)
            await until_done(pipeline)
            await crew.close()
        # What the sleeper had begun was begun by another one as well, and committed by one of them.
        said = await check(pipeline, writer, where, sleeps=round(2 * SCALE))
    report(f"paused: {said}", crew, started, capsys)


@pytest.mark.timeout(120)
async def test_order_kept_around_an_event_that_kills_its_worker(
    servers: Servers, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is found, by deaths that are certain, and parked; all others of its partition go on."""
    server = emptied(servers.get(f"{PRODUCTS[0]}-standalone"))
    async with folder() as where, looking_on(server.url, 1) as (_, pipeline):
        service = pipeline.service
        writer = Writer(pipeline, rng)
        await writer.write(60)
        await service.store_events("acme", "bad", [NewEvent(type="moved", data={"n": 1, "rest": 1})])
        await service.store_events("acme", "bad", [NewEvent(type=POISON, data={"n": 1, "rest": 1})])
        await service.store_events("acme", "bad", [NewEvent(type="moved", data={"n": 1, "rest": 1})])
        await writer.write(60)
        settings = Settings(url=server.url, folder=str(where), name="v", lease=0.5)
        started, deaths = time.monotonic(), 0
        async with Crew(settings, 1, rng) as crew:
            while not (failed := await service.get_failed_events("acme")):
                if crew.members[0].is_gone:
                    deaths += 1
                    await crew.kill_one()
                await asyncio.sleep(0.02)

            async def at_the_tail() -> bool:
                return not any(lag.events for lag in await service.lag())

            await until(at_the_tail, "the others to be done", 30)
            assert not crew.members[0].is_gone
            await crew.close()
        (one,) = failed
        assert (one.processor, one.aggregate.id, one.version) == ("journal", "bad", 2)
        assert "died" in one.error
        assert 3 <= deaths <= 8
        assert await parked(pipeline) == [("journal", Aggregate("acme", "account", "bad").key)]
        versions = await check_states(
            pipeline, [*sorted(writer.used, key=str), Aggregate("acme", "account", "bad")]
        )
        versions[one.aggregate.key] = 1
        check_order(read_journal(where), versions)
    report(f"poison: found after {deaths} deaths", crew, started, capsys)
