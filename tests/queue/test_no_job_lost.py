"""The promise no-job-lost: whatever dies, every job ends in a state, and none is stuck or ends twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import SCALE
from tests.queue.audit import Audit, describe, until
from tests.queue.crew import Crew
from tests.queue.victim import Settings
from toril import Connection, Durability, connect, make_queue_name
from toril.connection import DurabilityNotReached, OutcomeUnknown, Unavailable
from toril.queue import AddJob, Backoff, BulkFailed, Job, JobOptions, Queue, Worker
from toril.testing import Cluster, Server, cluster

NAME = make_queue_name("lost")
JOBS, KILLS = round(20_000 * SCALE), round(60 * SCALE)
"""How many jobs come, at least, and how many workers are killed meanwhile: for about a minute."""


@dataclass(frozen=True)
class Plan:
    """A job to be added, and how it must end."""

    id: str
    job: AddJob
    fails: int
    """How many attempts fail."""
    ends: str

    @classmethod
    def draw(cls, rng: random.Random, number: int) -> Plan:
        attempts = rng.choice((1, 1, 1, 2, 3))
        fails = rng.choice((0, attempts - 1, attempts)) if rng.random() < 0.3 else 0
        options = JobOptions(
            job_id=f"j{number}",
            attempts=attempts,
            backoff=rng.choice((None, Backoff("fixed", 50), Backoff("exponential", 20))),
            delay=rng.randrange(1, 2000) if rng.random() < 0.1 else None,
            priority=rng.randrange(1, 5) if rng.random() < 0.2 else None,
            lifo=rng.random() < 0.1 or None,
        )
        job = AddJob("work", {"fails": fails, "n": number}, options)
        return cls(f"j{number}", job, fails, "failed" if fails >= attempts else "completed")


async def add_for_sure(queue: Queue, plans: Sequence[Plan], durability: Durability) -> int:
    """Add jobs until they are accepted; how often that had to be tried again.

    They have ids of their own, so adding one that is there already does nothing.
    """
    tries = 0
    while True:
        try:
            await queue.add_bulk([plan.job for plan in plans], durability=durability)
            return tries
        except (OutcomeUnknown, Unavailable, DurabilityNotReached, BulkFailed):
            tries += 1
            assert tries < 100


async def finished(queue: Queue) -> int:
    return sum((await queue.counts("completed", "failed")).values())


async def until_finished(queue: Queue, plans: Sequence[Plan], timeout: float, but: int = 0) -> None:
    """Wait until all jobs have ended, or all but so many; when time is up, say which are where."""

    async def enough() -> bool:
        return await finished(queue) >= len(plans) - but

    try:
        await until(enough, f"{len(plans) - but} jobs to end", timeout)
    except AssertionError as late:
        ended = set(await queue.ids("completed", "failed"))
        left = [plan.id for plan in plans if plan.id not in ended]
        raise AssertionError(f"{late}; {len(left)} have not:\n{await describe(queue, left)}") from None


def check_runs(plans: Sequence[Plan], audit: Audit) -> None:
    """At least once: a job begins again only where a run was lost, and each loss is counted."""
    for plan in plans:
        began, made, stalled = audit.counts[plan.id]
        attempts = plan.fails + (plan.ends == "completed")
        assert made == attempts, f"{plan.id} has {made} attempts, of {attempts}"
        assert began == made + stalled, f"{plan.id} began {began} times, ended {made}, stalled {stalled}"


def report(what: str, audit: Audit, crew: Crew, started: float, capture: pytest.CaptureFixture[str]) -> None:
    """Say what it took."""
    stalls = sum(stalled for _, _, stalled in audit.counts.values())
    again = sum(max(0, audit.runs[job] - made) for job, (_, made, _) in audit.counts.items())
    with capture.disabled():
        print(
            f"\n  {what}: {len(audit.hashes)} jobs in {time.monotonic() - started:.0f} s, "
            f"{crew.kills} workers killed, {sum(audit.runs.values())} runs, {stalls} stalls, "
            f"{again} runs more than ended a job's attempt"
        )


@pytest.mark.timeout(240 + 150 * SCALE)
async def test_no_job_lost_when_workers_are_killed_at_random(
    rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers die and jobs come all the time, and half-way the cluster fails over."""
    plans: list[Plan] = []
    with cluster() as nodes:
        settings = Settings(
            url=nodes.url, queue=NAME, name="v", concurrency=25, lock_ms=1500, sweep_ms=750, longest_ms=250
        )
        async with connect(nodes.url) as redis, Crew(settings, 3, rng) as crew:
            queue = Queue(NAME, redis, max_events=round(1_000_000 * SCALE))
            started = time.monotonic()

            async def produce() -> None:
                """Enough for all of them to be busy, and no more than they can do."""
                while crew.kills < KILLS or len(plans) < JOBS:
                    some = [Plan.draw(rng, len(plans) + number) for number in range(200)]
                    plans.extend(some)
                    # In a coordinated failover every call is known to have been executed, or not.
                    await queue.add_bulk([plan.job for plan in some])
                    await until_finished(queue, plans, 60, but=400)

            async def kill_at_random() -> None:
                for _ in range(KILLS):
                    await asyncio.sleep(rng.uniform(0, 1))
                    await crew.kill_one()

            async def half_way() -> bool:
                return crew.kills >= KILLS / 2

            async def fail_over() -> None:
                await until(half_way, "half of the deaths", 60 + 60 * SCALE)
                await asyncio.to_thread(nodes.fail_over, nodes.primary_of(queue.keys.meta))

            async with asyncio.TaskGroup() as group:
                for part in (produce, kill_at_random, fail_over):
                    group.create_task(part())
            await until_finished(queue, plans, 120 * SCALE)
            await crew.close()
            audit = await Audit.of(queue)
    report("kill -9 and a failover", audit, crew, started, capsys)
    audit.check({plan.id: plan.ends for plan in plans})
    check_runs(plans, audit)
    for plan in plans:
        began, made, _ = audit.counts[plan.id]
        assert made <= audit.runs[plan.id] <= began, f"{plan.id} ran {audit.runs[plan.id]} times of {began}"
    assert sum(stalled for _, _, stalled in audit.counts.values()) > crew.kills


@pytest.mark.timeout(120 + 120 * SCALE)
async def test_no_job_lost_that_was_replicated_when_a_master_dies(
    binary: Path | None, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    """The master is killed. What it alone knew is gone; what it said was replicated is not."""
    plans: list[Plan] = []
    tries = 0
    longest = 0.0
    with cluster(binary=binary) as nodes:
        settings = Settings(
            url=nodes.url, queue=NAME, name="v", concurrency=20, lock_ms=1500, sweep_ms=750, longest_ms=100
        )
        async with connect(nodes.url) as redis, Crew(settings, 2, rng) as crew:
            queue = Queue(NAME, redis, max_events=1_000_000)
            started = time.monotonic()

            async def produce(jobs: int) -> None:
                nonlocal tries, longest
                for _ in range(0, jobs, 10):
                    part = [Plan.draw(rng, len(plans) + number) for number in range(10)]
                    plans.extend(part)
                    before = time.monotonic()
                    tries += await add_for_sure(queue, part, Durability("replicated", timeout=1.0))
                    longest = max(longest, time.monotonic() - before)

            def strike() -> None:
                master = nodes.primary_of(queue.keys.meta)
                nodes.kill(master)
                master.start()  # it comes back, as a replica of the one elected
                nodes.wait_until_whole()

            await produce(round(1500 * SCALE))
            striking = asyncio.create_task(asyncio.to_thread(strike))
            while not striking.done():  # jobs come while it dies, and while another one is elected
                await produce(10)
            await striking
            await crew.kill_one()
            await produce(round(500 * SCALE))
            await until_finished(queue, plans, 60 + 60 * SCALE)
            await crew.close()
            audit = await Audit.of(queue)
    report(f"a master killed, {tries} adds made again", audit, crew, started, capsys)
    assert longest > 1, "no job was being added while the master was dead"
    audit.check({plan.id: plan.ends for plan in plans})
    check_runs(plans, audit)


async def test_no_job_lost_when_the_slot_in_use_is_moved(binary: Path | None, rng: random.Random) -> None:
    """A live reshard: keys go over ten by ten, while jobs are added and worked on."""
    plans: list[Plan] = []
    runs = Counter[str]()
    with cluster(masters=3, replicas=0, binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            queue = Queue(NAME, redis, max_events=1_000_000)
            worker = Worker(NAME, redis, concurrency=10)
            slot = queue.keys.slot
            assert slot is not None

            @worker.handler()
            async def work(job: Job) -> None:
                runs[job.id] += 1
                await asyncio.sleep(rng.random() / 100)

            async def produce(jobs: int) -> None:
                for _ in range(0, jobs, 10):
                    part = [AddJob("work", {}, JobOptions(priority=rng.randrange(2))) for _ in range(10)]
                    added = [job.id for job in await queue.add_bulk(part)]
                    plans.extend(Plan(job, AddJob("work"), 0, "completed") for job in added)

            async with worker:
                await produce(300)
                for _ in range(round(4 * SCALE)):
                    target = rng.choice(
                        [each for each in nodes.servers if each is not nodes.primary_of(slot)]
                    )
                    moving = asyncio.create_task(asyncio.to_thread(nodes.move_slot, slot, target))
                    while not moving.done():
                        await produce(10)
                    await moving
                    await until_finished(queue, plans, 30, but=50)
                await until_finished(queue, plans, 30)
            audit = await Audit.of(queue)
    audit.check({plan.id: plan.ends for plan in plans})
    assert set(audit.counts.values()) == {(1, 1, 0)}
    assert set(runs.values()) == {1}


async def test_no_job_lost_when_connections_break_in_a_loop(
    server: Server | Cluster, redis: Connection, rng: random.Random
) -> None:
    """No run is repeated, and none turned into a failure, because the reply to a step was lost."""
    queue = Queue(NAME, redis, max_events=1_000_000)
    plans = [
        Plan(f"j{n}", AddJob("work", n, JobOptions(job_id=f"j{n}")), 0, "completed")
        for n in range(round(2000 * SCALE))
    ]
    primary = server.primary_of(queue.keys.meta) if isinstance(server, Cluster) else server
    runs = Counter[str]()
    breaks = 0
    worker = Worker(NAME, redis, concurrency=20)

    @worker.handler()
    async def work(job: Job) -> None:
        runs[job.id] += 1
        await asyncio.sleep(rng.random() / 100)

    async def break_connections() -> None:
        nonlocal breaks
        while (ended := await finished(queue)) < len(plans):
            await asyncio.to_thread(primary.ask, "CLIENT", "KILL", "TYPE", "normal")
            breaks += 1
            await until_finished(queue, plans, 30, but=max(0, len(plans) - ended - rng.randrange(10, 50)))

    await queue.add_bulk([plan.job for plan in plans])
    async with worker:
        await break_connections()
    audit = await Audit.of(queue)
    audit.check({plan.id: plan.ends for plan in plans})
    assert breaks > len(plans) / 100
    again = {job: times for job, times in runs.items() if times > 1}
    assert not again, f"{len(again)} jobs ran again: {again}"
    assert set(audit.counts.values()) == {(1, 1, 0)}
