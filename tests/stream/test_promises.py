"""The promises no-job-lost, order-kept and retention-safe, whoever is killed and whatever fails over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.conftest import SCALE
from tests.queue.crew import Crew, Victim
from tests.stream.audit import Audit, Plan
from tests.stream.parts import make_queue, total, until_empty, working
from tests.stream.victim import Settings
from tests.waiting import until
from toril import Connection, Durability, connect
from toril.connection import DurabilityNotReached, OutcomeUnknown, Unavailable
from toril.stream import AddJob, Backoff, BulkFailed, StreamJob, StreamOptions, StreamQueue
from toril.testing import cluster, standalone

OPTIONS = StreamOptions(
    claim_idle=4,
    block=0.5,
    backoff=Backoff(first=0.02),
    dead_head="skip",
    max_deliveries=1000,
    backlog=100_000,
)
NAME = "storm"


class StreamVictim(Victim):
    program: ClassVar[str] = "tests.stream.victim"


class StreamCrew(Crew):
    victim: ClassVar[type[Victim]] = StreamVictim


def settings(url: str, record: Path, **more: int) -> Settings:
    return Settings(url=url, queue=NAME, name="v", record=str(record), **more)


async def add_for_sure(queue: StreamQueue, plans: Sequence[Plan], durability: Durability) -> None:
    """Add jobs until they are accepted. They have unique names, so adding one again does nothing."""
    for _ in range(100):
        try:
            await queue.add_bulk([plan.job for plan in plans], durability=durability)
            return
        except (OutcomeUnknown, Unavailable, DurabilityNotReached, BulkFailed):
            await asyncio.sleep(0.05)
    raise AssertionError("never accepted")


async def storm(
    queue: StreamQueue,
    crew: Crew,
    rng: random.Random,
    strike: Callable[[], Coroutine[Any, Any, None]],
    durability: Durability,
) -> list[Plan]:
    """Jobs come, workers are killed, and half-way something strikes.

    The workers look after the queue all the time, so it is trimmed whenever there is something to trim.
    """
    plans = [Plan.draw(rng, number) for number in range(round(500 * SCALE))]
    kills = round(4 * SCALE)
    parts = 2 * kills + 1
    size = -(-len(plans) // parts)
    for part in range(parts):
        striking = asyncio.create_task(strike()) if part == kills else None
        for first in range(part * size, min((part + 1) * size, len(plans)), 20):
            await add_for_sure(queue, plans[first : min(first + 20, (part + 1) * size)], durability)
        if striking is not None:
            await striking
        elif part % 2:
            begun = (await total(queue)).done_total

            async def moved(begun: int = begun) -> bool:
                metrics = await total(queue)
                return metrics.done_total > begun or metrics.lag == metrics.pending == 0

            await until(moved, 60)
            await crew.kill_one()
    await until_empty(queue, 60 + 60 * SCALE)
    return plans


@pytest.mark.timeout(200 + 100 * SCALE)
async def test_no_job_lost_order_kept_retention_safe_when_workers_are_killed_and_a_cluster_fails_over(
    binary: Path | None, rng: random.Random, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            queue = await make_queue(redis, OPTIONS, NAME)

            async def fail_over() -> None:
                await asyncio.to_thread(nodes.fail_over, nodes.primary_of(queue.home.meta))

            async with StreamCrew(settings(nodes.url, record), 2, rng) as crew:
                plans = await storm(queue, crew, rng, fail_over, Durability("memory"))
                await crew.close()
            audit = await Audit.of(queue, plans, record)
    audit.check_nothing_lost()
    audit.check_order()
    assert len(audit.begun) > len(plans), "no run was lost, so nothing was tried"


@pytest.mark.timeout(200 + 100 * SCALE)
async def test_no_job_lost_order_kept_retention_safe_when_the_server_restarts_with_its_data(
    binary: Path | None, rng: random.Random, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    durable = {"appendonly": "yes", "appendfsync": "always"}
    with standalone(durable, binary=binary) as server:
        async with connect(server.url) as redis:
            queue = await make_queue(redis, OPTIONS, NAME)

            async def restart() -> None:
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)

            async with StreamCrew(settings(server.url, record), 2, rng) as crew:
                plans = await storm(queue, crew, rng, restart, Durability("fsync"))
                await crew.close()
            audit = await Audit.of(queue, plans, record)
    audit.check_nothing_lost()
    audit.check_order()


@pytest.mark.timeout(200 + 100 * SCALE)
async def test_no_job_lost_that_was_replicated_when_a_master_dies(
    binary: Path | None, rng: random.Random, tmp_path: Path
) -> None:
    """What the master alone knew is gone: a job may be done twice. What was said to be replicated is not."""
    record = tmp_path / "record"
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            queue = await make_queue(redis, OPTIONS, NAME)

            def kill_master() -> None:
                master = nodes.primary_of(queue.home.meta)
                nodes.kill(master)
                master.start()  # it comes back, as a replica of the one elected
                nodes.wait_until_whole()

            async with StreamCrew(settings(nodes.url, record), 2, rng) as crew:
                plans = await storm(
                    queue,
                    crew,
                    rng,
                    lambda: asyncio.to_thread(kill_master),
                    Durability("replicated", timeout=1.0),
                )
                await crew.close()
            audit = await Audit.of(queue, plans, record)
    audit.check_nothing_lost()


@pytest.mark.timeout(120)
async def test_no_job_lost_beside_one_that_kills_its_worker(
    redis: Connection, rng: random.Random, tmp_path: Path
) -> None:
    """A poison payload takes its process with it, again and again, until it is a dead letter."""
    record = tmp_path / "record"
    options = StreamOptions(claim_idle=3, block=0.3, max_deliveries=3, dead_head="block")
    queue = await make_queue(redis, options, NAME)
    plans = [Plan(number, "", poison=number == 3) for number in range(30)]
    await queue.add_bulk([plan.job for plan in plans])
    async with StreamCrew(settings(redis.url, record, concurrency=5), 1, rng) as crew:
        while (await total(queue)).backlog:
            if "gone" in crew.members[0].said:
                await crew.kill_one()
            await asyncio.sleep(0.05)
        deaths = crew.kills
    audit = await Audit.of(queue, plans, record)
    audit.check_nothing_lost()
    assert deaths >= 2
    assert audit.dead[3].deliveries == 3


async def test_retention_safe_whatever_is_pending_or_was_given_to_nobody(
    redis: Connection, rng: random.Random
) -> None:
    """Upkeep trims what others have acknowledged and left lying about, and nothing else."""
    queue = await make_queue(redis, StreamOptions(levels=1), NAME)
    stream, group = queue.home.level("0"), "workers"
    (store,) = (await queue.open()).stores
    needed: set[bytes] = set()
    for _ in range(round(15 * SCALE)):
        jobs = await queue.add_bulk([AddJob(data=n) for n in range(rng.randrange(1, 150))])
        needed |= {job.id.encode() for job in jobs}
        given = await redis.command(
            "XREADGROUP", "GROUP", group, "foreign", "COUNT", rng.randrange(1, 120), "STREAMS", stream, ">"
        )
        entries = [entry for entry, _ in given[0][1]]
        acked = [entry for entry in entries if rng.random() < 0.7]
        if acked:
            await redis.command("XACK", stream, group, *acked)
            needed -= set(acked)
        await store.upkeep()
        left = {entry for entry, _ in await redis.command("XRANGE", stream, "-", "+")}
        assert needed <= left, f"{len(needed - left)} entries are gone that somebody still needs"
    pending = {entry for entry, *_ in await redis.command("XPENDING", stream, group, "-", "+", 10_000)}
    await redis.command("XACK", stream, group, *pending)
    while given := await redis.command("XREADGROUP", "GROUP", group, "f", "STREAMS", stream, ">"):
        await redis.command("XACK", stream, group, *(entry for entry, _ in given[0][1]))
    await store.upkeep()
    assert await redis.command("XLEN", stream) < 200, "what nobody needs is trimmed, by whole nodes"


@pytest.mark.timeout(120 + 60 * SCALE)
async def test_no_job_lost_and_order_kept_when_the_slot_in_use_is_moved(
    binary: Path | None, rng: random.Random
) -> None:
    """A live reshard: keys go over ten by ten, while jobs are added and worked on. Each is done once."""
    order: dict[str, list[int]] = {}
    count = 0

    async def run(job: StreamJob) -> None:
        order.setdefault(job.key, []).append(job.data)
        await asyncio.sleep(rng.random() / 200)

    with cluster(masters=3, replicas=0, binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            queue = await make_queue(redis, OPTIONS, NAME)
            slot = queue.home.slot
            assert slot is not None

            async def produce(jobs: int) -> None:
                nonlocal count
                keys = [rng.choice(("", "a", "b")) for _ in range(jobs)]
                await queue.add_bulk([AddJob(data=count + n, key=key or None) for n, key in enumerate(keys)])
                count += jobs

            async with working(redis, run, NAME):
                await produce(100)
                for _ in range(round(3 * SCALE)):
                    others = [each for each in nodes.servers if each is not nodes.primary_of(slot)]
                    moving = asyncio.create_task(asyncio.to_thread(nodes.move_slot, slot, rng.choice(others)))
                    while not moving.done():
                        await produce(10)
                    await moving
                await until_empty(queue, 30)
    assert sorted(number for numbers in order.values() for number in numbers) == list(range(count))
    assert all(order[key] == sorted(order[key]) for key in order if key)
