"""Whose turn it is: priorities, tenants, keys, times, and the inlet."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tests.stream.parts import FAST, NAME, Gate, make_queue, total, until_dead, until_empty, working
from tests.waiting import until
from toril import Connection, InvalidValue
from toril.stream import AddJob, StreamJob, StreamOptions, StreamQueue
from toril.stream.job import NewJob


async def take_all(queue: StreamQueue, batch: int) -> list[Any]:
    """The data of all jobs, in the order they are given out in batches."""
    (store,) = (await queue.open()).stores
    order: list[Any] = []
    while True:
        step = await store.step("c", batch, 10_000, [])
        order += [msgspec.json.decode(job.data) for job in step.jobs]
        if len(step.jobs) < batch:
            return order


async def test_strict_priorities_go_by_level(redis: Connection) -> None:
    queue = await make_queue(redis)
    await queue.add_bulk([AddJob(data=n, priority=n % 5, key=f"k{n}" if n % 2 else None) for n in range(50)])
    order = await take_all(queue, 7)
    assert [min(n % 5, 2) for n in order] == [0] * 10 + [1] * 10 + [2] * 30


@pytest.mark.parametrize("batch", [1, 7, 50])
async def test_weights_hold_and_the_last_level_starts_in_time(redis: Connection, batch: int) -> None:
    """Of 1,000 jobs, 6 : 3 : 1 within 10 %; and among any ten jobs taken, one is of the last level."""
    options = StreamOptions(weights=(6, 3, 1), levels=3, backlog=10_000)
    queue = await make_queue(redis, options)
    for level in range(3):
        await queue.add_bulk([AddJob(data=level, priority=level) for _ in range(1000)])
    order = (await take_all(queue, batch))[:1000]
    shares = Counter(order)
    for level, part in enumerate((600, 300, 100)):
        assert part * 0.9 <= shares[level] <= part * 1.1, shares
    first = order.index(2)
    assert first < max(10, batch), "the bound: as many jobs as the weights sum up to, or one batch"
    positions = [place for place, level in enumerate(order) if level == 2]
    assert max(after - before for before, after in pairwise(positions)) <= 10 + batch


async def test_turns_that_a_level_cannot_use_are_given_to_others(redis: Connection) -> None:
    queue = await make_queue(redis, StreamOptions(weights=(6, 3, 1), levels=3))
    await queue.add_bulk([AddJob(data=n, priority=2) for n in range(30)])
    assert await take_all(queue, 10) == list(range(30))


async def test_tenants_take_turns_and_so_do_keys(redis: Connection) -> None:
    queue = await make_queue(redis)
    await queue.add_bulk([AddJob(data=["a", n], tenant="a") for n in range(20)])
    await queue.add_bulk([AddJob(data=["b", n], tenant="b") for n in range(3)])
    await queue.add_bulk([AddJob(data=["c", n], tenant="c", key="x") for n in range(3)])
    order = await take_all(queue, 1)
    assert [tenant for tenant, _ in order[:6]] == ["a", "b", "c", "a", "b", "a"], "one of c's key at a time"
    assert [n for tenant, n in order if tenant == "a"] == list(range(20))


async def test_order_kept_within_keys_at_any_concurrency(redis: Connection) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, claim_idle=60))
    running: Counter[str] = Counter()
    order: dict[str, list[int]] = {}

    async def run(job: StreamJob) -> None:
        running[job.key] += 1
        assert running[job.key] == 1, "two of one key at once"
        order.setdefault(job.key, []).append(job.data)
        await asyncio.sleep(0.001)
        running[job.key] -= 1
        if job.data % 7 == 0 and not job.attempts_made:
            order[job.key].pop()
            raise ValueError("once")

    await queue.add_bulk([AddJob(data=n, key=f"k{n % 5}", tenant=f"t{n % 2}") for n in range(200)])
    async with working(redis, run, concurrency=30), working(redis, run, concurrency=30):
        await until_empty(queue)
    assert order == {f"k{k}": list(range(k, 200, 5)) for k in range(5)}
    assert not await queue.dead()


async def test_delayed_jobs_come_when_they_are_due_and_in_bounded_steps(redis: Connection) -> None:
    queue = await make_queue(redis)
    gate = Gate()
    gate.opened.set()
    await queue.add_bulk([AddJob(data=n, delay=0.3) for n in range(250)])
    await queue.add("later", delay=60)
    assert (await total(queue)).delayed == 251
    assert (await total(queue)).lag == 0
    async with working(redis, gate.run):
        await gate.until_came(250)
        await queue.add("soon", delay=0.05)  # sooner than the worker means to look again
        await gate.until_came(251)
    assert gate.came[-1] == "soon"
    assert (await total(queue)).delayed == 1


async def test_a_schedule_adds_its_job_once_for_each_time(redis: Connection) -> None:
    queue = await make_queue(redis)
    gate = Gate()
    gate.opened.set()
    for wrong in ("x", "* * *", "61 * * * *"):
        with pytest.raises(InvalidValue, match="cron"):
            await queue.schedule("s", wrong, 1)
    with pytest.raises(InvalidValue, match="timezone"):
        await queue.schedule("s", "* * * * *", 1, timezone="Mars")
    made = await queue.schedule("tick", "* * * * * *", "tick", key="k")
    assert [each.id for each in await queue.schedules()] == ["tick"]
    assert made.due is not None
    async with working(redis, gate.run), working(redis, gate.run), working(redis, gate.run):
        await gate.until_came(2)
        assert await queue.unschedule("tick")
        assert not await queue.unschedule("tick")
        await until_empty(queue)
    (store,) = (await queue.open()).stores
    seconds = await store.now() / 1000 - made.due.timestamp()
    assert 2 <= len(gate.came) <= seconds + 2
    assert (await total(queue)).added_total == len(gate.came)
    # Two that see the same time, add it once.
    await queue.schedule("tock", "0 0 * * *", "tock")
    ((_, due, _),) = await store.schedules()
    job = NewJob("job", b'"tock"', b"", "", "", level=0, delay=0, unique="", unique_for=1)
    answers = await asyncio.gather(*(store.fire("tock", due, due + 1, job) for _ in range(5)))
    assert sorted(map(bool, answers)) == [False] * 4 + [True]


# ---------------------------------------------------------------------------- the inlet


async def test_the_inlet_takes_jobs_with_the_checks_that_all_jobs_get(redis: Connection) -> None:
    queue = StreamQueue(NAME, redis, options=FAST)
    await queue.open()
    gate = Gate()
    gate.opened.set()
    step = {
        "run_id": "r",
        "step_id": "s",
        "step_type": "tool",
        "input": {},
        "tenant_id": "t",
        "agent_id": "a",
    }
    bad: dict[str, dict[str, str | bytes]] = {
        "the field data is missing": {"name": "x"},
        "data is not JSON": {"data": "{"},
        "there is no field what": {"data": "1", "what": "x"},
        "priority must be": {"data": "1", "priority": "high"},
        "delay must be": {"data": "1", "delay": "-1"},
        "name must be text": {"data": "1", "name": ""},
        "key must be UTF-8": {"data": "1", "key": b"\xc3("},
        "tenant must be UTF-8": {"data": "1", "tenant": "a\nb"},
        "data has 1048577 bytes": {"data": '"' + "x" * 1048575 + '"'},
    }
    for n in range(3):
        raw = msgspec.json.encode({**step, "step_id": str(n)})
        await redis.command("XADD", queue.home.inlet, "*", "data", raw)
    await redis.command("XADD", queue.home.inlet, "*", "data", '"plain"', "unique", "once", "priority", "7")
    await redis.command("XADD", queue.home.inlet, "*", "data", '"plain"', "unique", "once")
    for fields in bad.values():
        flat = [word for pair in fields.items() for word in pair]
        await redis.command("XADD", queue.home.inlet, "*", *flat)
    seen: list[tuple[str, str, str]] = []

    async def run(job: StreamJob) -> None:
        seen.append((job.name, job.key, job.tenant))
        await gate.run(job)

    async with working(redis, run):
        await until_empty(queue)
        await until_dead(queue, len(bad))
        # An idle worker hears of it at once.
        before = len(gate.came)
        await redis.command("XADD", queue.home.inlet, "*", "data", "1", "delay", "50")
        await gate.until_came(before + 1)
    assert [each["step_id"] for each in gate.came if isinstance(each, dict)] == ["0", "1", "2"]
    assert gate.came.count("plain") == 1
    assert ("tool", "r", "t") in seen
    letters = await queue.dead()
    assert {letter.reason for letter in letters} == {"unparsable"}
    for reason, letter in zip(bad, letters, strict=True):
        assert letter.last_error.startswith(reason), (reason, letter.last_error)
        assert letter.origin.startswith("inlet ")
    assert await queue.redrive([letters[0].id]) == [letters[0].id]
    assert (await total(queue)).inlet == 1, "back where it came from"


async def test_the_inlet_waits_while_the_backlog_is_full(redis: Connection) -> None:
    queue = await make_queue(redis, msgspec.structs.replace(FAST, backlog=2))
    await queue.pause()
    for n in range(5):
        await redis.command("XADD", queue.home.inlet, "*", "data", str(n))
    gate = Gate()
    async with working(redis, gate.run, concurrency=1):
        await queue.resume()
        await gate.until_came(1)

        async def full() -> bool:
            return (await total(queue)).backlog == 2

        await until(full)
        assert (await total(queue)).inlet == 3
        gate.opened.set()
        await until_empty(queue)
    assert gate.came == [0, 1, 2, 3, 4]


async def test_lag_is_what_standard_tools_say(redis: Connection) -> None:
    """KEDA's lagCount reads XINFO GROUPS: that is the number of jobs that are ready, keys or no keys."""
    queue = await make_queue(redis, StreamOptions(levels=1))
    jobs = await queue.add_bulk([AddJob(data=n) for n in range(5)])
    await queue.add_bulk([AddJob(data=n, key=f"k{n % 2}") for n in range(6)])
    (store,) = (await queue.open()).stores

    async def lag() -> int:
        (row,) = await redis.command("XINFO", "GROUPS", queue.home.level("0"))
        fields = dict(zip(row[::2], row[1::2], strict=True))
        assert (await total(queue)).lag == fields[b"lag"]
        found: int = fields[b"lag"]
        return found

    assert await lag() == 7
    step = await store.step("c", 3, 10, [])
    assert await lag() == 4
    await store.step("c", 0, 10, [(job, []) for job in step.jobs])
    assert await lag() == 4
    await jobs[4].cancel()
    step = await store.step("c", 10, 10, [])
    assert len(step.jobs) == 3
    assert await lag() == 0


async def test_order_kept_of_jobs_that_are_due_at_the_same_time(redis: Connection) -> None:
    """Of more than a thousand in a row, some ids have one digit more than those before them."""
    queue = await make_queue(redis, msgspec.structs.replace(FAST, backlog=10_000))
    await queue.add_bulk([AddJob(data=n, key="k", delay=3600) for n in range(1100)])
    (store,) = (await queue.open()).stores
    ids = await redis.command("ZRANGE", store.keys.delayed, 0, -1)
    await redis.command("ZADD", store.keys.delayed, *(part for one in ids for part in (1, one)))
    gate = Gate()
    gate.opened.set()
    async with working(redis, gate.run):
        await until_empty(queue)
    assert gate.came == list(range(1100))
