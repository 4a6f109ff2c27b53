"""Jobs in every state, without a worker."""

from __future__ import annotations

from typing import Any

from toril.queue import AddJob, Job, JobOptions, KeepJobs, Parent, Queue
from toril.queue.job import JobData
from toril.queue.outcomes import Completed, Failed
from toril.queue.store import TakeOptions

KEEP = KeepJobs(count=-1)
HOUR = 3_600_000


async def take(queue: Queue, count: int = 1, **how: Any) -> list[JobData]:
    """Jobs as a worker takes them."""
    tokens = [f"worker:{number}" for number in range(count)]
    jobs = (await queue.store.step([], tokens, TakeOptions(**how))).jobs
    assert len(jobs) == count
    return jobs


async def fail(queue: Queue, *jobs: JobData, reason: str = "out of stock") -> None:
    traces = b'["Error: out of stock\\n    at order.js:7"]'
    await queue.store.step([Failed(job.id, job.token, reason, KEEP, 3, traces) for job in jobs])


async def complete(queue: Queue, *jobs: JobData, points: int | None = None) -> None:
    outcomes = [Completed(job.id, job.token, b'{"sent":true}', KEEP) for job in jobs]
    await queue.store.step(outcomes, take=TakeOptions(metrics_points=points))


async def fill(queue: Queue, count: int, **options: Any) -> list[str]:
    added = await queue.add_bulk(AddJob("order", {"n": n}, JobOptions(**options)) for n in range(count))
    return [job.id for job in added]


async def schedule(queue: Queue, scheduler: str, due: int) -> str:
    """A scheduler with its next job, as its keys are."""
    redis, keys = queue.store.redis, queue.keys
    await redis.command("ZADD", keys.repeat, due, scheduler)
    await redis.command("HSET", keys.scheduler(scheduler), "name", "sweep", "every", HOUR, "ic", 1)
    job = await queue.add("sweep", {}, JobOptions(job_id=f"repeat:{scheduler}:{due}"))
    await redis.command("HSET", keys.job(job.id), "rjk", scheduler)
    return job.id


async def put_everywhere(queue: Queue) -> None:
    """Jobs in every state: 2 failed, 1 completed, 1 active, 1 waiting for children, 2 waiting …"""
    await fill(queue, 4, attempts=3)
    first, second, third, fourth = await take(queue, 4, worker="ann")
    await fail(queue, first, second)
    await complete(queue, third)
    await Job.of(queue.store, fourth).update_progress(40)
    await queue.add("parent", {"is": "parent"}, JobOptions(job_id="p"))
    (parent,) = await take(queue)
    link = Parent("p", queue.keys.base.removesuffix(":"))
    await queue.add("child", {"is": "child"}, JobOptions(job_id="c", parent=link))
    await queue.store.wait_for_children("p", parent.token)
    await queue.add("order", {"is": "last"})
    await queue.add("urgent", {}, JobOptions(priority=7))
    await queue.add("later", {}, JobOptions(delay=HOUR))


COUNTS = {
    "active": 1,
    "waiting": 2,
    "prioritized": 1,
    "delayed": 1,
    "waiting-children": 1,
    "failed": 2,
    "completed": 1,
}
