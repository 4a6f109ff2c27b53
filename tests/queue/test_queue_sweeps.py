"""Many jobs of a queue at once: cleaned, drained, obliterated, tried again, promoted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.store import Store
from tests.queue.by_hand import BASE, NAME, Clock, add_named, complete, events, fail, take, taken
from toril import connect
from toril.queue import AddJob, Deduplication, JobScheduled, Queue, QueueError
from toril.testing import Server


async def test_clean_removes_what_is_old_enough(queue: Queue, clock: Clock, store: Store) -> None:
    await add_named(queue, "a", "b", "c")
    for _ in range(3):
        await complete(queue)
        clock.now += 1000
    assert await queue.clean(5000) == []
    assert await queue.clean(2000) == ["a", "b"]
    assert await queue.ids("completed") == ["c"]
    assert await queue.job("a") is None
    assert [event["count"] for event in events(store) if event["event"] == "cleaned"] == ["0", "2"]


@pytest.mark.parametrize("state", ["waiting", "paused", "delayed", "prioritized", "failed", "active"])
async def test_clean_takes_the_oldest_first_up_to_a_limit(state: Any, queue: Queue) -> None:
    options = {"delayed": {"delay": 1000}, "prioritized": {"priority": 1}}.get(state, {})
    await add_named(queue, "a", "b", "c", "d", **options)
    if state == "paused":
        await queue.pause()
    for token in "1234":
        if state == "failed":
            await fail(queue)
        if state == "active":
            await take(queue, token)
    if state == "active":
        assert await queue.clean(0, state=state) == [], "they are being worked on"
        for job in await queue.jobs("active"):
            await queue.store.redis.command("DEL", queue.keys.lock(job.id))
    assert sorted(await queue.clean(0, limit=3, state=state)) == ["a", "b", "c"]
    assert await queue.ids(state) == ["d"]
    assert await queue.clean(0, limit=3, state=state) == ["d"]


async def test_clean_takes_no_more_than_the_limit(redis_server: Server) -> None:
    """Beyond 10,000 it goes in steps; the last one is shorter (in Node it is not)."""
    redis_server.ask("FLUSHALL")
    async with connect(redis_server.url) as redis:
        queue = Queue(NAME, redis)
        await queue.add_bulk([AddJob("job")] * 10_100)
        assert len(await queue.clean(0, limit=10_050, state="waiting")) == 10_050


async def test_drain_removes_what_waits(queue: Queue) -> None:
    await add_named(queue, "taken")
    await take(queue)
    for delayed in (False, True):
        await add_named(queue, "a", "b")
        await add_named(queue, "p", priority=1)
        await add_named(queue, "d", delay=1000)
        if delayed:
            await queue.pause()
        await queue.drain(delayed=delayed)
        left = ["taken"] if delayed else ["taken", "d"]
        assert sorted(await queue.ids()) == sorted(left)
        assert await queue.job("a") is None


@pytest.mark.parametrize("count", [1, 2, 1000])
async def test_drain_works_in_steps(count: int, queue: Queue, store: Store) -> None:
    """However small they are: also where jobs that stay stand in front."""
    kept = ["repeat:s1:5000", "repeat:s2:6000", "repeat:s3:7000"]
    for place, next_run in enumerate(kept, start=1):
        store.ask("ZADD", f"{BASE}:repeat", 4000 + 1000 * place, f"s{place}")
        store.ask("HSET", f"{BASE}:{next_run}", "name", "tick", "rjk", f"s{place}", "timestamp", 1)
    await add_named(queue, "a", "b")
    store.ask("LPUSH", f"{BASE}:wait", *kept[:2])
    await add_named(queue, "c", "d")
    await add_named(queue, "p1", "p2", priority=1)
    await add_named(queue, "d1", delay=1000)
    store.ask("ZADD", f"{BASE}:delayed", 7000 * 4096, kept[2])
    before, more = 10, True
    while more:
        more = await queue.store.drain(count, delayed=True)
        after = len(await queue.ids())
        assert before - after == min(count, before - 3)
        before = after
    assert await queue.ids("waiting", oldest_first=True) == kept[:2]
    assert await queue.ids() == [kept[2], *reversed(kept[:2])]


async def test_no_job_lost_a_schedulers_next_job_survives_drain_and_clean(queue: Queue, store: Store) -> None:
    store.ask("ZADD", f"{BASE}:repeat", 5000, "s1")
    for add in ("LPUSH", "RPUSH"):
        await add_named(queue, "a")
        store.ask("HSET", f"{BASE}:repeat:s1:5000", "name", "tick", "rjk", "s1", "timestamp", 1)
        store.ask(add, f"{BASE}:wait", "repeat:s1:5000")
        await add_named(queue, "b")
        if add == "LPUSH":
            await queue.drain(delayed=True)
        else:
            await queue.clean(0, state="waiting")
        assert await queue.ids("waiting") == ["repeat:s1:5000"]
        with pytest.raises(JobScheduled):
            await queue.remove("repeat:s1:5000")
        assert await taken(queue) == ["repeat:s1:5000"]
        store.ask("DEL", f"{BASE}:active")


@pytest.mark.parametrize("count", [1, 2, 1000])
async def test_obliterate_leaves_nothing(count: int, queue: Queue, store: Store, clock: Clock) -> None:
    await add_named(queue, "a", "b", "c", "d")
    await complete(queue, metrics_points=2)
    await fail(queue)
    job = await take(queue)
    await job.log("line")
    await add_named(queue, "e", delay=1000)
    await add_named(queue, "f", priority=1, deduplication=Deduplication("d"))
    clock.now += 1
    with pytest.raises(QueueError, match="Cannot obliterate queue with active jobs"):
        await queue.obliterate(count=count)
    assert len(await queue.ids()) == 6
    await queue.obliterate(force=True, count=count)
    assert not store.dump()
    assert (await queue.add("job")).id == "1"


async def test_failed_jobs_run_again(queue: Queue, clock: Clock) -> None:
    await add_named(queue, "a", "b", "c", "d")
    for _ in range(3):
        await fail(queue)
        clock.now += 1000
    await complete(queue)
    await queue.retry_jobs(until=clock.now - 2000, count=1)
    assert await queue.ids("failed", oldest_first=True) == ["c"]
    assert await queue.ids("waiting", oldest_first=True) == ["a", "b"]
    await queue.retry_jobs()
    await queue.retry_jobs("completed")
    assert await taken(queue) == ["a", "b", "c", "d"]
    job = await queue.job("a")
    assert job is not None
    assert (job.finished_on, job.failed_reason, job.attempts_made) == (None, None, 1)


async def test_delayed_jobs_run_now(queue: Queue) -> None:
    await add_named(queue, "a", "b", "c", delay=1000)
    await queue.promote_jobs(count=1)
    assert await taken(queue) == ["a", "b", "c"]
