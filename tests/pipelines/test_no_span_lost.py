"""no-job-lost, for spans: what was acknowledged is in the table and in the summary once, whoever dies."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SCALE
from tests.pipelines.test_ingestion import trace_of
from tests.stores.clickhouse_http import clickhouse_server
from toril.client import Client, ClientError
from toril.connection.embedded import stop
from toril.connection.server import free_port
from toril.pipelines.spans.span import Span
from toril.pipelines.spans.summary import recompute
from toril.testing import standalone

pytestmark = [pytest.mark.promise, pytest.mark.timeout(600 * max(SCALE, 1))]

KILLS = round(2 * SCALE) or 1
TRACES = round(50 * SCALE) or 10


class Part:
    """A process of the set-up, which is killed and started again."""

    def __init__(self, **said: Any) -> None:
        self._said = said
        self._process: asyncio.subprocess.Process | None = None
        self.deaths = 0

    async def start(self) -> None:
        for _ in range(20):
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.pipelines.part",
                json.dumps(self._said),
                stdout=asyncio.subprocess.PIPE,
            )
            assert self._process.stdout is not None
            if await self._process.stdout.readline():
                return
            # A server that it needs was dead as well: whoever looks after it starts it again.
            await self._process.wait()
            await asyncio.sleep(0.2)
        raise AssertionError("it does not come up")

    async def kill(self) -> None:
        assert self._process is not None
        assert self._process.returncode is None, "it died by itself"
        self._process.kill()
        await self._process.wait()
        self.deaths += 1


@asynccontextmanager
async def parts(*made: Part) -> AsyncIterator[None]:
    try:
        await asyncio.gather(*(part.start() for part in made))
        yield
    finally:
        for part in made:
            if part._process is not None and part._process.returncode is None:
                await part.kill()


class Sender:
    """Sends spans until all are acknowledged: in parts, mixed, some of them twice."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self._client = client
        traces = [trace_of(chance, chance.randrange(1, 40)) for _ in range(TRACES)]
        self.expected = {spans[0].trace_id: {span.span_id for span in spans} for spans in traces}
        spans = [span for some in traces for span in some]
        again = chance.sample(spans, len(spans) // 20)
        chance.shuffle(spans)
        self._batches = [spans[first : first + 15] for first in range(0, len(spans), 15)]
        self._batches += [again[first : first + 15] for first in range(0, len(again), 15)]
        self._pause = 0.0
        self.failures = 0
        self.sent = 0

    @property
    def left(self) -> int:
        return len(self._batches)

    async def run(self, seconds: float) -> None:
        """Spread over about so many seconds, and as much longer as it takes."""
        self._pause = seconds / len(self._batches) * 4
        await asyncio.gather(*(self._send() for _ in range(4)))

    async def _send(self) -> None:
        while self._batches:
            batch: list[Span] = self._batches.pop(0)
            try:
                done = await self._client.record(batch)
            except ClientError:
                self.failures += 1
                self._batches.append(batch)
            else:
                assert done.refused == 0, done.reasons
                self.sent += len(batch)
            await asyncio.sleep(self._pause)


async def check(client: Client, expected: dict[str, set[str]]) -> None:
    """Each trace has its spans once, and a summary that is what they make."""
    for trace_id, ids in expected.items():
        until = time.monotonic() + 120
        while True:
            try:
                view = await client.trace(trace_id)
            except ClientError:
                view = None
            if view is not None and view.version == len(ids) == len(view.spans):
                break
            if time.monotonic() > until:
                said = (await client._http.get("/metrics")).text
                lines = [line for line in said.splitlines() if line.startswith("toril_processor_")]
                seen = view and (view.version, len(view.spans))
                raise AssertionError("\n".join([f"{trace_id}: {seen} of {len(ids)}", *lines]))
            await asyncio.sleep(0.05)
        assert {seen.span.span_id for seen in view.spans} == ids
        assert view.summary == recompute(seen.row("acme") for seen in view.spans).as_dict()


async def test_no_span_lost_when_the_one_process_is_killed(tmp_path: Path, rng: random.Random) -> None:
    """All of it embedded, in one process, killed at random under load."""
    port = free_port()
    whole = Part(home=str(tmp_path), port=port, work=True)
    try:
        async with parts(whole), Client(f"http://127.0.0.1:{port}", attempts=1) as client:
            sender = Sender(client, rng)
            sending = asyncio.create_task(sender.run(KILLS * 2.0))
            for _ in range(KILLS):
                await asyncio.sleep(rng.uniform(0.2, 2.0))
                await whole.kill()
                await whole.start()
            await sending
            await check(client, sender.expected)
            assert whole.deaths == KILLS
            print(f"\n  {KILLS} kills: {sender.sent} spans, {sender.failures} requests failed", flush=True)
    finally:
        stop(tmp_path)


async def test_no_span_lost_when_collectors_workers_and_redis_are_killed(
    tmp_path: Path, rng: random.Random
) -> None:
    """Several processes on one Redis and one ClickHouse; Redis comes back with its data."""
    port, kills = free_port(), 2 * KILLS
    always = {"appendonly": "yes", "appendfsync": "always"}
    with standalone(always) as redis, clickhouse_server(tmp_path / "clickhouse") as tables:
        said = {"redis": redis.url, "clickhouse": tables.url, "home": str(tmp_path)}
        collector = Part(**said, port=port, work=False)
        workers = [Part(**said, work=True) for _ in range(2)]
        async with parts(collector, *workers), Client(f"http://127.0.0.1:{port}", attempts=1) as client:
            sender = Sender(client, rng)
            sending = asyncio.create_task(sender.run(kills * 1.5))
            for _ in range(kills):
                await asyncio.sleep(rng.uniform(0.1, 1.0))
                victim = rng.choice([collector, *workers, redis])
                if victim is redis:
                    redis.kill()
                    await asyncio.sleep(rng.uniform(0, 0.5))
                    await asyncio.to_thread(redis.start)
                else:
                    assert isinstance(victim, Part)
                    await victim.kill()
                    await victim.start()
            await sending
            await check(client, sender.expected)
            print(f"\n  {kills} kills: {sender.sent} spans, {sender.failures} requests failed", flush=True)
