"""Producers in any language: what they add to the inlet is taken in, or is a dead letter that says why.

The programs are those of the guide: what a reader copies from there is what runs here.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.conformance.oracle import NODE, find_node
from tests.waiting import until
from toril import Connection
from toril.stream import (
    STEP_ROUTE,
    StepJob,
    StreamJob,
    StreamOptions,
    StreamQueue,
    StreamWorker,
    partition_of,
)
from toril.testing import Cluster, Server

GUIDE = (Path(__file__).parents[2] / "docs" / "streams.md").read_text()


def program(language: str, mark: str) -> str:
    """A block of the guide: the first one of a language that contains something."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    return next(text for text in blocks if mark in text)


def ports(server: Server | Cluster) -> list[int]:
    """Where to reach it, or the primaries of a cluster."""
    return [each.address.port for each in (server.primaries() if isinstance(server, Cluster) else [server])]


async def taken(queue: StreamQueue, count: int) -> list[tuple[str, str, str, Any]]:
    """What a worker is given, until there are so many: name, key, tenant, data."""
    seen: list[tuple[str, str, str, Any]] = []
    worker = StreamWorker(queue.name, queue.redis, concurrency=5)

    @worker.handler()
    async def handle(job: StreamJob) -> None:
        seen.append((job.name, job.key, job.tenant, job.data))

    async with worker:
        await until(lambda: len(seen) >= count)
    return seen


async def test_redis_cli_adds_jobs(server: Server | Cluster, redis: Connection) -> None:
    """The lines of the guide, typed into redis-cli as it comes with Redis."""
    cli = shutil.which("redis-cli")
    assert cli, "redis-cli is missing: it comes with redis-server, which `make test` installs"
    queue = StreamQueue("emails", redis, schema=None)
    await queue.open()
    lines = [line for line in program("sh", "redis-cli XADD").splitlines() if line.startswith("redis-cli ")]
    for line in lines:
        words = shlex.split(line)[1:]
        args = [cli, "-c", "-p", str(ports(server)[0]), *words]
        done = await asyncio.to_thread(subprocess.run, args, capture_output=True, text=True, check=True)
        assert re.fullmatch(r"\d+-\d+\n", done.stdout), done.stdout + done.stderr
    seen = await taken(queue, len(lines) - 1)  # one of them says that it is the same as another
    assert ("welcome", "", "", {"to": "ana@example.org"}) in seen
    assert ("invoice", "order-7", "acme", {"order": 7}) in seen
    assert len(seen) == len(lines) - 1
    assert (await queue.metrics()).total.inlet == 0


async def test_node_adds_jobs(server: Server | Cluster, redis: Connection, tmp_path: Path) -> None:
    """The program of the guide, with ioredis; each run's steps arrive in order, in the right partition."""
    queue = StreamQueue("steps", redis, schema=None, route=STEP_ROUTE, options=StreamOptions(partitions=4))
    await queue.open()
    path = tmp_path / "producer.mjs"
    path.write_text(program("js", "ioredis"))
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    env = {**os.environ, "REDIS_PORTS": json.dumps(ports(server)), "CLUSTER": str(int(redis.clustered))}
    done = await asyncio.to_thread(
        subprocess.run, [find_node(), str(path)], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    opened = await queue.open()
    for number, store in enumerate(opened.stores):
        for _, flat in await redis.command("XRANGE", store.keys.inlet, "-", "+"):
            data = json.loads(dict(zip(flat[::2], flat[1::2], strict=True))[b"data"])
            assert partition_of(data["run_id"], 4) == number
    seen = await taken(queue, 12)
    for run in ("run-1", "run-2", "run-3"):
        steps = [data["step_id"] for _, key, _, data in seen if key == run]
        assert steps == ["s1", "s2", "s3", "s4"]
    assert {name for name, *_ in seen} == {"llm"}
    assert {tenant for _, _, tenant, _ in seen} == {"acme"}


BAD: dict[str, dict[str, str | bytes]] = {
    "the field data is missing": {"name": "welcome"},
    "data is not JSON": {"data": "{to: ana}"},
    "there is no field to": {"data": "{}", "to": "ana"},
    "priority must be a whole number from 0 up": {"data": "{}", "priority": "high"},
    "delay must be a whole number of milliseconds from 0 up": {"data": "{}", "delay": "-1"},
    "key must be text of 1 to 256 bytes": {"data": "{}", "key": "k" * 257},
    "name must be UTF-8 without control characters": {"data": "{}", "name": "a\x00b"},
    "tenant must be UTF-8 without control characters": {"data": "{}", "tenant": b"\xff"},
}


async def test_what_is_no_job_is_a_dead_letter_that_says_why(redis: Connection) -> None:
    queue = StreamQueue("emails", redis, schema=None)
    await queue.open()
    for fields in BAD.values():
        flat = [word for pair in fields.items() for word in pair]
        await redis.command("XADD", queue.home.inlet, "*", *flat)
    good = await redis.command("XADD", queue.home.inlet, "*", "data", "{}")
    await taken(queue, 1)
    letters = await queue.dead()
    assert [letter.last_error for letter in letters] == list(BAD)
    assert {letter.reason for letter in letters} == {"unparsable"}
    assert all(letter.origin.startswith("inlet ") for letter in letters)
    assert good.decode() not in {letter.origin.removeprefix("inlet ") for letter in letters}


async def test_a_letter_of_the_inlet_goes_back_as_it_was(redis: Connection) -> None:
    queue = StreamQueue("emails", redis, schema=None)
    await queue.open()
    await redis.command("XADD", queue.home.inlet, "*", "data", '{"to": ', "name", "welcome")
    await redis.command("XADD", queue.home.inlet, "*", "data", "1")
    await taken(queue, 1)
    (letter,) = await queue.dead()
    assert await queue.redrive([letter.id]) == [letter.id]
    ((_, flat),) = await redis.command("XRANGE", queue.home.inlet, "-", "+")
    assert flat == [b"data", b'{"to": ', b"name", b"welcome"]


async def test_the_inlet_waits_while_the_backlog_is_full(redis: Connection) -> None:
    queue = StreamQueue("emails", redis, schema=None, options=StreamOptions(backlog=3))
    await queue.open()
    for number in range(10):
        await redis.command("XADD", queue.home.inlet, "*", "data", str(number), "delay", "3600000")
    worker = StreamWorker("emails", redis)
    worker.handler()(_nothing)
    async with worker:

        async def full() -> bool:
            return (await queue.metrics()).total.delayed == 3

        await until(full)
    its = (await queue.metrics()).total
    assert (its.backlog, its.inlet, its.dead) == (3, 7, 0)


async def _nothing(job: StreamJob) -> None: ...


async def test_foreign_jobs_are_checked_against_the_handlers_type(redis: Connection) -> None:
    """A step that is none: the script cannot know, the worker's handler does."""
    queue = StreamQueue("fd:step_queue", redis)
    await queue.open()
    await redis.command("XADD", queue.home.inlet, "*", "data", '{"run_id":"r","step_type":"llm"}')
    worker = StreamWorker("fd:step_queue", redis)

    @worker.handler()
    async def handle(job: StreamJob, step: StepJob) -> None:
        raise AssertionError(f"{step} came through as {job}")

    async with worker:

        async def dead() -> bool:
            return (await queue.metrics()).total.dead == 1

        await until(dead)
    (letter,) = await queue.dead()
    assert letter.reason == "unfit"
    assert "missing required field `step_id`" in letter.last_error


async def lag(redis: Connection, stream: Any, group: str = "workers") -> int | None:
    """What KEDA's redis-streams scaler asks for: XINFO GROUPS, the lag of the group."""
    for row in await redis.command("XINFO", "GROUPS", stream):
        its = dict(zip(row[::2], row[1::2], strict=True))
        if its[b"name"].decode() == group:
            found: int | None = its[b"lag"]
            return found
    raise AssertionError(f"{stream} has no group {group}")


async def test_kedas_lag_is_the_number_of_jobs_that_wait_for_a_worker(redis: Connection) -> None:
    """Through adding, taking, finishing, keys, tenants and the inlet: never unknown, never wrong."""
    queue = StreamQueue("emails", redis, schema=None)
    await queue.open()
    level, inlet = queue.home.level("0"), queue.home.inlet
    assert (await lag(redis, level), await lag(redis, inlet)) == (0, 0)
    for number in range(3):
        await queue.add({"n": number})
        await queue.add({"n": number}, key="one")  # of these, one is ready at a time
        await queue.add({"n": number}, tenant=f"t{number}")
        await redis.command("XADD", inlet, "*", "data", "{}")
    assert (await lag(redis, level), await lag(redis, inlet)) == (7, 3)
    gate, running = asyncio.Event(), 0
    worker = StreamWorker("emails", redis, concurrency=4)

    @worker.handler()
    async def handle(job: StreamJob) -> None:  # noqa: ARG001 - a handler takes it
        nonlocal running
        running += 1
        await gate.wait()

    async with worker:
        await until(lambda: running == 4)
        assert (await lag(redis, level), await lag(redis, inlet)) == (6, 0)
        gate.set()

        async def empty() -> bool:
            return (await queue.metrics()).total.backlog == 0

        await until(empty)
    assert (await lag(redis, level), await lag(redis, inlet)) == (0, 0)
    await queue.add({})
    await redis.command("XADD", inlet, "*", "data", "{}")
    assert (await lag(redis, level), await lag(redis, inlet)) == (1, 1)
