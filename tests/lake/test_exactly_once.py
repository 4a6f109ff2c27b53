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
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.conftest import SCALE, Servers, emptied
from tests.lake.filling import with_log
from tests.lake.rows import as_texts
from tests.lake.span_events import a_span, body_of
from tests.lake.victim import Settings
from tests.waiting import until
from toril import connect
from toril.aggregate import Aggregate
from toril.connection import ConnectionFailed, OutcomeUnknown
from toril.lake import source
from toril.lake.archive import GROUP, EventsStep
from toril.lake.lake import Lake, Record
from toril.lake.rollups import RollupsStep, rollups_of
from toril.lake.run import Run
from toril.lake.source.positions import Marks, between
from toril.lake.spans import SpansStep, spans_of
from toril.lake.steps import Step
from toril.lake.summaries import TRACE_SUMMARIES, SummariesStep, summaries_of
from toril.lake.tables import EVENTS, QUARANTINE, ROLLUPS, SPANS
from toril.log import Log
from toril.testing import Cluster, cluster

KILLS = 3 if SCALE <= 1 else 20
PAUSE = 0.02
"""Seconds between two appends."""

BLOCK = 40
"""Spans that are sent in disorder, before the next ones."""

FURTHEST_BEHIND = 200
UNREADABLE = b"\xff not JSON"

PATIENCE = 900.0
"""Seconds within which something happens, on the slowest machine."""

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

    def check(self) -> bool:
        """It works, and nothing went wrong for good; an error where not."""
        gone = self._process is None or self._process.returncode is not None
        assert not gone, "it has ended:\n" + "\n".join(self.said)
        assert not [line for line in self.said if line.startswith("wrong")], "\n".join(self.said)
        return True

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


async def produce(log: Log, rng: random.Random, lake: Path) -> None:
    """Events without end: spans of traces in disorder, some of them late, and what cannot be read.

    They wait for an archive that is far behind: a slow machine has no more to do than a fast one.
    """
    late: list[int] = []
    for first in count(0, BLOCK):
        numbers = [*range(first, first + BLOCK), *late]
        rng.shuffle(numbers)
        late = [numbers.pop() for _ in range(BLOCK // 8)]
        for number in numbers:
            span = a_span(number)
            await append(log, span.trace_id, body_of(span), f"span {number}")
            if number % 11 == 0:
                await append(log, span.trace_id, UNREADABLE, f"noise {number}")
            await asyncio.sleep(PAUSE)
        while await behind(log, lake) > FURTHEST_BEHIND:
            await asyncio.sleep(1)


async def append(log: Log, trace: str, body: bytes, key: str) -> None:
    """Until it is there; sent again with its key, it is there once."""
    while True:
        with suppress(ConnectionFailed, OutcomeUnknown):
            await log.append(Aggregate("acme", "span", trace), [body], idempotency_key=key)
            return


async def behind(log: Log, lake: Path) -> int:
    """Events that are not in the table yet."""
    with suppress(ConnectionFailed, OutcomeUnknown):
        return between(recorded(lake / "events"), await tails(log))
    return 0


async def tails(log: Log) -> Marks:
    return {str(one.partition): (one.ordinal, one.last_id) for one in await log.standings()}


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
        await asyncio.sleep(0.05)


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
        await asyncio.sleep(0.01)


async def kill_between_files_and_commit(job: Job, lake: Path) -> None:
    """Kill it where files are written and not committed; once more, where it was quicker than that."""
    async with asyncio.timeout(PATIENCE):
        while True:
            known = uncommitted(lake)
            await new_files_without_a_commit(lake)
            job.kill()
            await job.gone()
            if uncommitted(lake) - known:
                return
            await job.start()
            await until(lambda: job.check() and job.wrote >= 1, PATIENCE)


# ------------------------------------------------------------------ the promise


@pytest.mark.promise
@pytest.mark.timeout(PATIENCE * (1 + KILLS))
async def test_exactly_once_whatever_dies_while_events_flow(
    spark: SparkSession, rng: random.Random, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began, done = time.monotonic(), dict[str, int]()
    path = tmp_path / "lake"
    with cluster() as nodes:
        async with connect(nodes.url) as redis, connect(nodes.url) as another:
            log = Log(redis, partitions=3)
            await log.layout()
            job = Job(Settings(url=nodes.url, lake=str(path)))
            async with meanwhile(watch(Log(another), path)):
                async with meanwhile(produce(log, rng, path)):
                    whose = rng.sample(["all", "driver"], 2)
                    kinds = (["files", "workers", *whose] * KILLS)[:KILLS]
                    rng.shuffle(kinds)
                    for place, kind in enumerate(kinds):
                        if not job.there:
                            await job.start()
                        await until(lambda: job.check() and job.wrote >= 1, PATIENCE)
                        if kind == "files":
                            await kill_between_files_and_commit(job, path)
                        elif kind == "workers":
                            await until(lambda: bool(job.kill(only="pyspark.daemon")), PATIENCE)
                        else:
                            await asyncio.sleep(rng.uniform(0, 3))
                            job.kill(only="" if kind == "all" else "the driver")
                            await job.gone()
                        done[kind] = done.get(kind, 0) + 1
                        if place == 0:
                            await fail_over(nodes, log)
                    if not job.there:
                        await job.start()
                    await until(lambda: job.check() and job.wrote >= 2, PATIENCE)
                ends = await tails(log)
                tables = [path / name for name in ("events", "spans", "trace_summaries", "rollups")]
                await until(
                    lambda: job.check() and not any(between(recorded(one), ends) for one in tables), PATIENCE
                )
                await job.close()
            there = await everything(log)
            floors = [one.readers[GROUP].position.ordinal for one in await log.standings()]
    assert sum(floors) == len(there)
    check_tables(Lake(spark, path), there)
    with capsys.disabled():
        print(f"\n  exactly once: {len(there)} events, killed {done}, {time.monotonic() - began:.1f} s")


def together(step: Step, meeting: Barrier) -> Step:
    """A step whose first batch is written when another one is about to write the same."""
    writes = step.write

    def write(lake: Lake, rows: DataFrame, record: Record) -> None:
        setattr(step, "write", writes)  # noqa: B010 - it is a method
        meeting.wait(PATIENCE)
        writes(lake, rows, record)

    setattr(step, "write", write)  # noqa: B010
    return step


@pytest.mark.promise
@pytest.mark.timeout(PATIENCE)
def test_exactly_once_by_two_runs_at_the_same_time(lake: Lake, servers: Servers, rng: random.Random) -> None:
    """Of each batch that both write, one is there; at the first of each table they are known to meet."""
    url = emptied(servers.get("valkey-standalone")).url
    numbers = list(range(round(60 * SCALE)))
    rng.shuffle(numbers)

    async def fill(log: Log) -> None:
        for number in numbers:
            span = a_span(number)
            await append(log, span.trace_id, body_of(span) if number % 11 else UNREADABLE, f"span {number}")

    with_log(url, fill, partitions=3)
    ends, meetings = source.tails(url, "log"), [Barrier(2) for _ in range(4)]
    with ExitStack() as stack:
        runs = []
        for most in (30, 40):
            steps = [EventsStep(url, until=ends, most=most), SpansStep(), SummariesStep(), RollupsStep()]
            runs.append(Run(lake, list(map(together, steps, meetings)), once=True))
            stack.enter_context(runs[-1])
        assert all(run.wait(PATIENCE) for run in runs)
    assert [run.problems for run in runs] == [[], []]
    there = with_log(url, everything)
    assert len(there) == len(numbers)
    check_tables(lake, there)
    assert with_log(url, lambda log: behind(log, Path(lake.path))) == 0


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
    refused = sum(body == UNREADABLE for _, _, body in there)
    readable = len(there) - refused
    assert refused
    assert readable
    assert lake.read(QUARANTINE).where("reason = 'body: it must be JSON in UTF-8'").count() == refused
    assert lake.read(QUARANTINE).count() == refused
    spans, summaries, rollups = (lake.read(table) for table in (SPANS, TRACE_SUMMARIES, ROLLUPS))
    assert spans.count() == readable
    assert as_texts(spans) == as_texts(spans_of(events))
    assert as_texts(summaries) == as_texts(summaries_of(spans))
    assert as_texts(rollups) == as_texts(rollups_of(spans))
    by_grain = {row[0]: row[1] for row in rollups.groupBy("grain").agg({"spans": "sum"}).collect()}
    assert by_grain == dict.fromkeys(("minute", "hour", "day"), readable)
    (row,) = summaries.agg({"spans": "sum"}).collect()
    assert row[0] == readable
