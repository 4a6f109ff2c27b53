"""What a test finds in a queue when all is over: every job, looked at from every side."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from toril.queue import Queue

LISTS = ("wait", "paused", "active")
SETS = ("prioritized", "delayed", "waiting-children", "completed", "failed")
ENDED = ("completed", "failed")


async def until(condition: Callable[[], Awaitable[Any]], what: str, timeout: float = 20.0) -> Any:
    """Wait for a state; what the condition found."""
    end = time.monotonic() + timeout
    while not (found := await condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout:g} s in vain for {what}")
        await asyncio.sleep(0.01)
    return found


async def until_state(queue: Queue, job: str, state: str, timeout: float = 20.0) -> None:
    async def there() -> bool:
        return await queue.state(job) == state

    try:
        await until(there, f"job {job} to be {state}", timeout)
    except AssertionError as late:
        raise AssertionError(f"{late}; {await describe(queue, [job])}") from None


async def describe(queue: Queue, jobs: Iterable[str]) -> str:
    """Which jobs are where, for whoever reads a failure."""
    lines = []
    for job in sorted(jobs)[:20]:
        found = await queue.job(job)
        lock = await queue.store.redis.command("GET", queue.keys.lock(job))
        seen = "no hash" if found is None else f"ats {found.attempts_started}, atm {found.attempts_made}, "
        if found is not None:
            seen += f"stc {found.stalled_count}, by {found.processed_by}, reason {found.failed_reason!r}"
        lines.append(f"{job}: {await queue.state(job)}, {seen}, lock {lock!r}")
    return "\n".join(lines) or "none"


async def events(queue: Queue) -> list[dict[str, str]]:
    """All events of the queue, the oldest first."""
    found: list[dict[str, str]] = []
    start = "-"
    while True:
        page = await queue.store.redis.command("XRANGE", queue.keys.events, start, "+", "COUNT", 5000)
        for _, flat in page:
            texts = [part.decode() for part in flat]
            found.append(dict(zip(texts[::2], texts[1::2], strict=True)))
        if len(page) < 5000:
            return found
        start = f"({page[-1][0].decode()}"


@dataclass
class Audit:
    """All jobs of a queue, looked at from every side."""

    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The states that each id is listed in."""
    hashes: set[str] = field(default_factory=set)
    locks: set[str] = field(default_factory=set)
    counts: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Of each job: attempts started, attempts made, stalls."""
    runs: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often an event said that a job was completed, or has failed."""

    @classmethod
    async def of(cls, queue: Queue) -> Audit:
        redis, keys, made = queue.store.redis, queue.keys, cls()
        for state in (*LISTS, *SETS):
            command = "LRANGE" if state in LISTS else "ZRANGE"
            for job in await redis.command(command, keys[state], 0, -1):
                made.places[job.decode()].append(state)
        own = {*LISTS, *SETS, "meta", "id", "pc", "events", "marker", "stalled", "stalled-check", "limiter"}
        async for key in redis.scan(f"{keys.base}*"):
            suffix = key.decode().removeprefix(keys.base)
            if suffix.endswith(":lock"):
                made.locks.add(suffix.removesuffix(":lock"))
            elif suffix not in own and ":" not in suffix:
                made.hashes.add(suffix)

        async def count(job: str) -> None:
            found = await redis.command("HMGET", keys.job(job), "ats", "atm", "stc")
            started, ended, stalled = (int(number or 0) for number in found)
            made.counts[job] = (started, ended, stalled)

        ids = sorted(made.hashes)
        for first in range(0, len(ids), 500):
            await asyncio.gather(*map(count, ids[first : first + 500]))
        for run in await redis.command("HKEYS", keys["victim:runs"]):
            made.runs[run.decode().split(" ")[0]] += 1
        for event in await events(queue):
            if event["event"] in ENDED:
                made.ended[event["event"], event["jobId"]] += 1
        return made

    def check(self, expected: dict[str, str]) -> None:
        """Every job ended, in the state it should have, once; nothing is left over."""
        wrong = {job: self.places.get(job, []) for job in expected if self.places.get(job) != [expected[job]]}
        assert not wrong, f"{len(wrong)} jobs are not where they should be: {dict(list(wrong.items())[:20])}"
        assert self.places.keys() == expected.keys(), "there are ids that nobody has added"
        assert self.hashes == expected.keys(), "there are hashes without a state, or states without a hash"
        assert not self.locks, f"locks of jobs that nobody has: {self.locks}"
        once = Counter({(state, job): 1 for job, state in expected.items()})
        assert self.ended == once, f"jobs ended more than once: {(self.ended - once).most_common(20)}"
