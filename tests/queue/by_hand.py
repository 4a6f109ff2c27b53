"""Jobs taken and given up by hand, at a time that stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.conformance.dump import differences
from tests.conformance.store import Store
from toril.queue import Job, JobOptions, Queue
from toril.queue.outcomes import completed, failed
from toril.queue.store import TakeOptions

NAME = "{queue}"
BASE = f"bull:{NAME}"
MINUTE = 60_000


class Clock:
    """Time that stands until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@contextmanager
def unchanged(store: Store) -> Iterator[None]:
    """Nothing in the server may differ afterwards."""
    before = store.dump()
    yield
    assert not differences(before, store.dump())


async def take(queue: Queue, token: str = "t", **options: Any) -> Job:
    """The next job, as a worker has it."""
    (job,) = (await queue.store.step([], [token], TakeOptions(**options))).jobs
    return Job.of(queue.store, job)


async def complete(queue: Queue, value: Any = None, **options: Any) -> Job:
    """Take the next job and finish it."""
    job = await take(queue)
    await queue.store.step([completed(job, value)], [], TakeOptions(**options))
    return job


async def fail(queue: Queue, reason: str = "boom") -> Job:
    """Take the next job and let it fail."""
    job = await take(queue)
    await queue.store.step([failed(job, Exception(reason), "a trace")])
    return job


async def taken(queue: Queue) -> list[str]:
    """The ids of all that waits, in the order in which workers get them."""
    result = await queue.store.step([], [f"t{number}" for number in range(100)])
    return [job.id for job in result.jobs]


def events(store: Store) -> list[dict[str, str]]:
    return [dict(pairs) for _, pairs in store.dump()[f"{BASE}:events"].value]


async def add_named(queue: Queue, *ids: str, **options: Any) -> list[Job]:
    return [await queue.add("job", {"id": name}, JobOptions(job_id=name, **options)) for name in ids]
