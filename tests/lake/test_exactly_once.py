"""The promise exactly-once: every event of the log is in the tables once, whatever dies while it flows.

The job's processes are killed with SIGKILL, all of them, the driver alone, or the Python workers alone, at
any moment, and at one where files are written and not yet committed. A server fails over. The archive's floor
is watched all the time: it never passes what the table holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.conftest import SCALE
from tests.lake.span_events import a_span, body_of
from tests.lake.victim import Settings
from tests.waiting import until
from toril import connect
from toril.aggregate import Aggregate
from toril.connection import ConnectionFailed, OutcomeUnknown
from toril.lake.archive import GROUP
from toril.lake.lake import Lake
from toril.lake.rollups import rollups_of
from toril.lake.source.positions import Marks, between
from toril.lake.spans import spans_of
from toril.lake.summaries import TRACE_SUMMARIES, summaries_of
from toril.lake.tables import EVENTS, QUARANTINE, ROLLUPS, SPANS
from toril.log import Log
from toril.testing import Cluster, cluster

pytestmark = pytest.mark.slow

KILLS = 3 if SCALE <= 1 else 20
PAUSE = 0.05
"""Seconds between two appends."""

ROOT = Path(__file__).parents[2]


# ------------------------------------------------------------------ the tables, without Spark


def commits(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


def recorded(table: Path) -> Marks:
    """How far a table says it is, as its files have it."""
    for commit in reversed(commits(table)):
        for line in commit.read_text().splitlines():
            said = json.loads(line).get("commitInfo", {}).get("userMetadata")
            if said:
                found: dict[str, tuple[int, str]] = json.loads(said)["toril"]["positions"]
                return found
    return {}


def files(lake: Path) -> set[Path]:
    """All files of rows."""
    return {file for file in lake.glob("*/**/*.parquet") if "_delta_log" not in file.parts}


def uncommitted(lake: Path) -> set[Path]:
    """Files of rows that no commit knows."""
    known = set()
    for table in lake.iterdir():
        for commit in commits(table):
            for line in commit.read_text().splitlines():
                if (added := json.loads(line).get("add")) is not None:
                    known.add(table / added["path"])
    return files(lake) - known


# ------------------------------------------------------------------ the job


class Job:
    """The process of the job and all that it has started, and its successors."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.said: deque[str] = deque(maxlen=400)
        self.wrote = 0
        self._process: Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self) -> None:
        self._ready.clear()
        self.wrote = 0
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.lake.victim", msgspec.json.encode(self.settings).decode()),
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
        )
        self._listener = asyncio.create_task(self._listen(self._process))
        await self._ready.wait()
        self.check()

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self.said.append(line.decode().strip()[:500])
            self.wrote += self.said[-1].startswith("news Wrote")
            if self.said[-1] == "ready":
                self._ready.set()
        self._ready.set()

    @property
    def there(self) -> bool:
        return self._process is not None

    def check(self) -> None:
        """It works, and nothing went wrong for good."""
        gone = self._process is None or self._process.returncode is not None
        assert not gone, "it has ended:\n" + "\n".join(self.said)
        assert not [line for line in self.said if line.startswith("wrong")], "\n".join(self.said)

    def processes(self) -> dict[int, str]:
        """All that it has started, and what each is called."""
        assert self._process is not None
        parents: dict[int, tuple[int, str]] = {}
        for found in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (found / "stat").read_text().rpartition(")")[2].split()
                line = (found / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                parents[int(found.name)] = (int(words[1]), line)
        ours: dict[int, str] = {self._process.pid: "the driver"}
        while more := {
            pid: line for pid, (parent, line) in parents.items() if parent in ours and pid not in ours
        }:
            ours |= more
        return ours

    def kill(self, *, only: str = "") -> int:
        """As ``kill -9`` does: all of them, or those that are called so; says how many that were."""
        killed = 0
        for pid, name in self.processes().items():
            if only in name:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
        return killed

    async def gone(self) -> int:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._listener is not None
        code = await self._process.wait()
        self._process.stdin.close()
        self._listener.cancel()  # what it has started may hold the other end of its output
        self._process = None
        return code

    async def close(self) -> None:
        self.check()
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert await self.gone() == 0, "\n".join(self.said)


# ------------------------------------------------------------------ what goes on meanwhile


async def produce(log: Log, rng: random.Random) -> None:
    """Events without end: spans, and what cannot be read."""
    number = 0
    while True:
        bodies = []
        for _ in range(rng.randint(1, 5)):
            number += 1
            bodies.append(b"\xff not JSON" if number % 11 == 0 else body_of(a_span(number)))
        trace = a_span(number).trace_id
        # Sent again with its key, an append is there once.
        while True:
            with suppress(ConnectionFailed, OutcomeUnknown):
                await log.append(Aggregate("acme", "trace", trace), bodies, idempotency_key=f"k{number}")
                break
        await asyncio.sleep(PAUSE)


async def watch(log: Log, lake: Path) -> int:
    """The archive's floor never passes what the table says it has; says how often it was looked at."""
    looks = 0
    while True:
        floors: Marks = {}
        with suppress(ConnectionFailed, OutcomeUnknown):
            for one in await log.standings():
                if GROUP in one.readers:
                    position = one.readers[GROUP].position
                    floors[str(one.partition)] = (position.ordinal, position.id)
        has = recorded(lake / "events")  # afterwards: it may have more by now, and never less
        for name, (ordinal, _) in floors.items():
            assert ordinal <= has.get(name, (0, ""))[0], (name, floors, has)
        looks += 1
        await asyncio.sleep(0.02)


@asynccontextmanager
async def meanwhile(*what: Any) -> AsyncIterator[None]:
    """These go on, and an error of one of them is an error here."""
    tasks = [asyncio.create_task(one) for one in what]
    try:
        yield
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def fail_over(nodes: Cluster, log: Log) -> None:
    """A coordinated failover of a master that has a partition: nothing is lost."""
    partition = (await log.layout()).partitions()[0]
    await asyncio.to_thread(lambda: nodes.fail_over(nodes.primary_of(log.store(partition).keys.head)))


async def new_files_without_a_commit(lake: Path) -> None:
    seen = files(lake)
    while True:
        if new := files(lake) - seen:
            if uncommitted(lake) & new:
                return
            seen |= new
        await asyncio.sleep(0.005)


# ------------------------------------------------------------------ the promise


@pytest.mark.promise
@pytest.mark.timeout(900 + 60 * KILLS)
async def test_exactly_once_whatever_dies_while_events_flow(
    spark: SparkSession, rng: random.Random, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began, done, torn = time.monotonic(), dict[str, int](), 0
    path = tmp_path / "lake"
    with cluster() as nodes:
        async with connect(nodes.url) as redis, connect(nodes.url) as another:
            log = Log(redis, partitions=3)
            await log.layout()
            job = Job(Settings(url=nodes.url, lake=str(path)))
            async with meanwhile(watch(Log(another), path)):
                async with meanwhile(produce(log, rng)):
                    kinds = ["files", "workers", *(rng.choice(["all", "driver"]) for _ in range(KILLS))][
                        :KILLS
                    ]
                    rng.shuffle(kinds)
                    for place, kind in enumerate(kinds):
                        if not job.there:
                            await job.start()
                        await until(lambda: job.wrote >= 1, 300)
                        job.check()
                        if kind == "files":
                            known = uncommitted(path)
                            async with asyncio.timeout(120):
                                await new_files_without_a_commit(path)
                            job.kill()
                            await job.gone()
                            torn += bool(uncommitted(path) - known)
                        elif kind == "workers":
                            await until(lambda: bool(job.kill(only="pyspark.daemon")), 120)
                        else:
                            await asyncio.sleep(rng.uniform(0, 3))
                            job.kill(only="" if kind == "all" else "the driver")
                            await job.gone()
                        done[kind] = done.get(kind, 0) + 1
                        if place == 0:
                            await fail_over(nodes, log)
                    if not job.there:
                        await job.start()
                    await until(lambda: job.wrote >= 2, 300)
                tails = {str(one.partition): (one.ordinal, one.last_id) for one in await log.standings()}
                tables = [path / name for name in ("events", "spans", "trace_summaries", "rollups")]
                await until(lambda: not any(between(recorded(one), tails) for one in tables), 300)
                await job.close()
            there = await everything(log)
            floors = [one.readers[GROUP].position.ordinal for one in await log.standings()]
    assert sum(floors) == len(there)
    check_tables(Lake(spark, path), there)
    with capsys.disabled():
        print(
            f"\n  exactly once: {len(there)} events, killed {done}, {torn} with files that were not "
            f"committed, {time.monotonic() - began:.1f} s"
        )
    assert torn == done.get("files", 0)


async def everything(log: Log) -> list[tuple[int, int, bytes]]:
    found = []
    for one in (await log.layout()).partitions():
        at = "0-0"
        while page := await log.store(one).page(at, 5000):
            found += [(one.number, entry.ordinal, entry.body) for entry in page]
            at = page[-1].id
    return sorted(found)


def check_tables(lake: Lake, there: list[tuple[int, int, bytes]]) -> None:
    events = lake.read(EVENTS)
    has = sorted(
        (row[0], row[1], bytes(row[2])) for row in events.select("log_partition", "ordinal", "body").collect()
    )
    assert has == there
    spans = lake.read(SPANS)
    assert spans.count() + lake.read(QUARANTINE).count() == len(there)
    assert rows_of(spans) == rows_of(spans_of(events))
    assert rows_of(lake.read(ROLLUPS)) == rows_of(rollups_of(spans))
    assert rows_of(lake.read(TRACE_SUMMARIES)) == rows_of(summaries_of(spans))


def rows_of(frame: DataFrame, without: Iterable[str] = ("batch", "recorded_day")) -> list[str]:
    """Rows as text, in one order."""
    names = sorted(set(frame.columns) - set(without))
    return sorted(repr([_plain(value) for value in row]) for row in frame.select(*names).collect())


def _plain(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, dict) else value
