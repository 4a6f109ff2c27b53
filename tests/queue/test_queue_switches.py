"""What is said to a queue as a whole: that it pauses, and how much of it may run."""

from __future__ import annotations

import pytest

from tests.conformance.store import Store
from tests.queue.by_hand import BASE, MINUTE, add_named, events, take, taken, unchanged
from toril.queue import AddJob, Queue, QueueError
from toril.queue.store import TakeOptions

# ---------------------------------------------------------------------- pausing


async def test_a_paused_queue_gives_nothing_and_keeps_its_order(queue: Queue, store: Store) -> None:
    await add_named(queue, "a", "b")
    await queue.pause()
    assert await queue.is_paused()
    await add_named(queue, "c")
    assert await taken(queue) == []
    assert await queue.counts("waiting") == {"waiting": 0, "paused": 3}
    assert f"{BASE}:marker" not in store.dump()
    await queue.resume()
    assert not await queue.is_paused()
    assert store.dump()[f"{BASE}:marker"].value == {"0": 0.0}
    assert await taken(queue) == ["a", "b", "c"]
    assert [event["event"] for event in events(store) if event["event"] in ("paused", "resumed")] == [
        "paused",
        "resumed",
    ]


async def test_no_job_lost_that_another_version_left_in_wait(queue: Queue, store: Store) -> None:
    """A client of BullMQ 6 pauses a queue where it stands; BullMQ 5's resume would overwrite its jobs."""
    await add_named(queue, "a", "b")
    store.ask("HSET", f"{BASE}:meta", "paused", 1)
    await add_named(queue, "c", "d")
    assert await queue.counts("waiting") == {"waiting": 2, "paused": 2}
    await queue.resume()
    assert sorted(await taken(queue)) == ["a", "b", "c", "d"]


async def test_no_job_lost_that_another_version_left_in_paused(queue: Queue, store: Store) -> None:
    """A client of BullMQ 6 resumes and leaves them there; BullMQ 5's next pause would overwrite them."""
    await add_named(queue, "a", "b")
    await queue.pause()
    store.ask("HDEL", f"{BASE}:meta", "paused")
    await add_named(queue, "c", "d")
    await queue.pause()
    assert await queue.counts("waiting") == {"waiting": 0, "paused": 4}
    await queue.resume()
    assert sorted(await taken(queue)) == ["a", "b", "c", "d"]


async def test_resuming_wakes_workers_for_jobs_that_another_version_left_in_wait(
    queue: Queue, store: Store
) -> None:
    """Though ``paused`` is empty. BullMQ 5 would wake nobody, and an idle worker look in its own time."""
    await add_named(queue, "a")
    store.ask("HSET", f"{BASE}:meta", "paused", 1)
    store.ask("DEL", f"{BASE}:marker")
    await queue.resume()
    assert store.dump()[f"{BASE}:marker"].value == {"0": 0.0}


@pytest.mark.parametrize(
    "version", ["bullmq:6.0.0", "bullmq:6.2.0-rc.1", "bullmq:10.1.0", "bullmq-pro:7.0.0"]
)
async def test_a_queue_of_bullmq_6_is_not_paused(version: str, queue: Queue, store: Store) -> None:
    await add_named(queue, "a")
    store.ask("HSET", f"{BASE}:meta", "version", version)
    for verb in (queue.pause, queue.resume):
        with unchanged(store), pytest.raises(QueueError, match=version):
            await verb()


@pytest.mark.parametrize(
    "version", ["bullmq:5.62.0", "bullmq:4.18.2", "bullmq-pro:5.1.0", "mine", "bullmq:", ""]
)
async def test_other_queues_are_paused(version: str, queue: Queue, store: Store) -> None:
    store.ask("HSET", f"{BASE}:meta", "version", version)
    await queue.pause()
    assert await queue.is_paused()


async def test_a_queue_of_bullmq_6_stays_one_when_a_job_is_added(queue: Queue, store: Store) -> None:
    """BullMQ 5 writes its own version over it; from then on nobody would know."""
    store.ask("HSET", f"{BASE}:meta", "version", "bullmq:6.2.0")
    await queue.add("job")
    with pytest.raises(QueueError):
        await queue.pause()


async def test_a_queue_of_bullmq_6_is_not_paused_by_obliterating(queue: Queue, store: Store) -> None:
    """Obliterating pauses first, and jobs would be left where BullMQ 6 does not look."""
    await add_named(queue, "a", "b")
    await take(queue)
    store.ask("HSET", f"{BASE}:meta", "version", "bullmq:6.2.0")
    with unchanged(store), pytest.raises(QueueError):
        await queue.obliterate()


# ---------------------------------------------------------------------- limits


async def test_concurrency_over_all_workers(queue: Queue) -> None:
    assert await queue.global_concurrency() is None
    assert not await queue.is_maxed()
    assert await queue.set_global_concurrency(2) == 1
    assert await queue.set_global_concurrency(1) == 0
    assert await queue.global_concurrency() == 1
    await add_named(queue, "a", "b")
    assert await taken(queue) == ["a"]
    assert await queue.is_maxed()
    assert await queue.remove_global_concurrency() == 1
    assert await queue.remove_global_concurrency() == 0
    assert await taken(queue) == ["b"]


async def test_a_rate_over_all_workers(queue: Queue) -> None:
    assert await queue.global_rate_limit() is None
    assert await queue.set_global_rate_limit(2, MINUTE) == 2
    assert await queue.global_rate_limit() == (2, MINUTE)
    await add_named(queue, "a", "b", "c")
    assert await taken(queue) == ["a", "b"]
    assert 0 < await queue.rate_limit_ttl() <= MINUTE
    assert 0 < await queue.rate_limit_ttl(1) <= MINUTE
    assert await queue.rate_limit_ttl(3) == 0
    assert await queue.remove_rate_limit()
    assert not await queue.remove_rate_limit()
    assert await taken(queue) == ["c"]
    assert await queue.remove_global_rate_limit() == 2
    assert await queue.global_rate_limit() is None


async def test_a_rate_limit_by_hand(queue: Queue) -> None:
    assert await queue.rate_limit_ttl() < 0
    await add_named(queue, "a")
    await queue.rate_limit(MINUTE)
    assert 0 < await queue.rate_limit_ttl() <= MINUTE
    limited = await queue.store.step([], ["t"], TakeOptions(limiter_max=10, limiter_duration=1000))
    assert not limited.jobs
    assert 0 < limited.limited_for <= MINUTE
    assert await taken(queue) == ["a"], "a worker without a limiter is not concerned (a.12)"


async def test_events_are_trimmed(queue: Queue, store: Store) -> None:
    await queue.add_bulk([AddJob("job")] * 300)
    assert await queue.trim_events(0) == 600
    assert events(store) == []
