"""What ``make demo`` shows: jobs and traces that survive the death of their server and of their workers.

And then all of it once more: the events of the traces in a lake, and the summaries rebuilt from them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from toril import Connection, connect, make_queue_name
from toril.cli.lake.target import started
from toril.cli.main import cli
from toril.client import Client
from toril.connection.embedded import ensure_server, stop
from toril.connection.server import free_port
from toril.lake import jars
from toril.log import Log, Retention
from toril.pipelines.spans.summary import recompute
from toril.queue import AddJob, Job, Queue, Worker
from toril.server.keys import ApiKeys

JOBS = 5_000
TRACES = 200
QUEUE = make_queue_name("reports")
ARCHIVE = "lake/archive"
"""The name by which the log knows the lake. Naming it here does not start Spark."""
SHORT = 500
"""Locks and sweeps of half a second, so that one sees a dead worker's jobs come back (default: 30 s)."""

console = Console(highlight=False)


def make_worker(redis: Connection | str) -> Worker:
    """A worker whose jobs each take a moment."""
    worker = Worker(QUEUE, redis, concurrency=50, lock_duration=SHORT, stalled_interval=SHORT)

    @worker.handler("report")
    async def report(job: Job) -> int:
        await asyncio.sleep(0.005)
        return int(job.data["n"]) ** 2

    return worker


async def work(url: str) -> None:
    """The process that is going to be killed."""
    async with make_worker(url) as worker:
        await worker.run()


async def show(home: Path) -> None:
    """The demo itself."""
    url = f"embedded://{home}"
    async with connect(url) as redis:
        queue = Queue(QUEUE, redis)
        facts = redis.facts
        console.print(f"[bold]1.[/] The embedded server: {facts.product} {facts.version}, data in {home}")
        started = time.perf_counter()
        await queue.add_bulk([AddJob("report", {"n": n}) for n in range(JOBS)], durability="fsync")
        took = time.perf_counter() - started
        console.print(
            f"[bold]2.[/] {JOBS:,} jobs added in {took:.2f} s, each on disk before the call returned"
        )
        server = await asyncio.to_thread(ensure_server, home)
        os.kill(server.pid, signal.SIGKILL)
        waiting = (await queue.counts("waiting"))["waiting"]
        back = await asyncio.to_thread(ensure_server, home)
        console.print(
            f"[bold]3.[/] kill -9 {server.pid}: the server is gone. The next call starts it again "
            f"(now {back.pid}): {waiting:,} jobs are waiting"
        )
        victim = await asyncio.create_subprocess_exec(sys.executable, "-m", "toril.demo", url)
        while (await queue.counts("completed"))["completed"] < JOBS // 4:
            await asyncio.sleep(0.01)
        victim.kill()
        await victim.wait()
        counts = await queue.counts("completed", "active")
        console.print(
            f"[bold]4.[/] kill -9 {victim.pid}: a worker is gone, after {counts['completed']:,} jobs and in "
            f"the middle of {counts['active']}"
        )
        async with make_worker(redis):
            while (counts := await queue.counts())["completed"] < JOBS:
                await asyncio.sleep(0.02)
        console.print(f"[bold]5.[/] Another worker took over: {counts['completed']:,} of {JOBS:,} completed")
        left = {state: count for state, count in counts.items() if count and state != "completed"}
        if left:
            raise SystemExit(f"the demo lost track of jobs: {left}")
        last = await queue.job(str(JOBS))
        assert last is not None
        console.print(
            f"   job {last.id}: {last.data['n']:,}² = {last.return_value:,}, by Python or by Node alike"
        )


# ---------------------------------------------------------------------------- traces


class Collector:
    """``toril up`` in a process of its own, to be killed and started again."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it, and wait until it collects."""
        self._process = await toril(
            "up", f"--home={self._home}", f"--port={self._port}", stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        while b"collecting" not in (line := await self._process.stdout.readline()):
            if not line:
                raise SystemExit("the demo could not start `toril up`")

    async def end(self, how: signal.Signals) -> int:
        """End it; what it returned."""
        assert self._process is not None
        self._process.send_signal(how)
        _, code = await asyncio.gather(self._process.communicate(), self._process.wait())
        return code


async def toril(*arguments: str, **more: Any) -> asyncio.subprocess.Process:
    """A command, as one would type it."""
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "toril.cli", *arguments, **more)


async def shown(*arguments: str) -> None:
    """A command, and what it shows."""
    _type(arguments)
    process = await toril(*arguments)
    if await process.wait():
        raise SystemExit(f"the demo stopped: toril {arguments[0]} failed")


def shown_here(*arguments: str) -> None:
    """A command in this process, and what it shows."""
    _type(arguments)
    try:
        cli(arguments, standalone_mode=False)
    except SystemExit as end:
        if end.code:
            raise SystemExit(f"the demo stopped: toril {arguments[0]} failed") from None


def _type(arguments: Sequence[str]) -> None:
    said = (f'"{one}"' if " " in one else one for one in arguments)
    console.print(f"\n[bold]$ toril {' '.join(said)}[/]")


async def show_traces(home: Path) -> None:
    """Spans of made-up applications, sent by the OpenTelemetry SDK, and what becomes of them."""
    collector = Collector(home)
    await collector.start()
    console.print(
        f"\n[bold]6.[/] [bold]toril up[/]: a collector at {collector.url}, pipelines, Valkey and ClickHouse, "
        f"all started by one process ({collector.pid})"
    )
    async with connect(f"embedded://{home}") as redis, Log(redis) as log:
        await log.choose_retention(Retention.archived_by(ARCHIVE))  # the lake's, which comes later
        keys = ApiKeys(redis)
        mine, theirs = (await keys.add("acme"))[0], (await keys.add("globex"))[0]
    manifest = home / "acknowledged.jsonl"
    sending = await toril(
        *("simulate", f"--url={collector.url}", f"--tenants=acme={mine},globex={theirs}", "--seed=7"),
        *(f"--traces={TRACES}", "--largest=300", "--late=2s", "--rate=500", f"--manifest={manifest}"),
    )
    while not manifest.exists() or manifest.stat().st_size < 40_000:
        await asyncio.sleep(0.05)
    killed = collector.pid
    await collector.end(signal.SIGKILL)
    await collector.start()
    if await sending.wait():
        raise SystemExit("the demo could not send all spans")
    console.print(f"[bold]7.[/] kill -9 {killed} in the middle of it: started again, it went on")
    acknowledged = [json.loads(line) for line in manifest.read_text().splitlines()]
    by_tenant: dict[str, dict[str, set[str]]] = {"acme": {}, "globex": {}}
    for one in acknowledged:
        by_tenant[one["tenant"]].setdefault(one["trace_id"], set()).add(one["span_id"])
    for tenant, key in (("acme", mine), ("globex", theirs)):
        async with Client(collector.url, key) as client:
            for trace_id, spans in by_tenant[tenant].items():
                await _is_whole(client, tenant, trace_id, spans)
    traces = sum(map(len, by_tenant.values()))
    console.print(
        f"[bold]8.[/] Of {len(acknowledged):,} spans that were acknowledged, all are in ClickHouse, each "
        f"once, and the summaries of {traces} traces are what their spans make"
    )
    os.environ |= {"TORIL_SERVER_URL": collector.url, "TORIL_API_KEY": mine}
    await shown("traces", "ls", "--order", "slowest", "--limit", "5")
    await shown("traces", "ls", "--order", "dearest", "--limit", "5")
    await shown("traces", "show", await _worth_showing(collector.url, mine))
    if await collector.end(signal.SIGTERM):
        raise SystemExit("the demo could not end `toril up` in order")


# ---------------------------------------------------------------------------- all of it once more

ROLLUPS = (
    "SELECT tenant, model, spans, errors, input_tokens + output_tokens AS tokens, cost / 1e9 AS usd "
    "FROM rollups WHERE grain = 'day' AND model != '' ORDER BY cost DESC, model LIMIT 8"
)


def show_lake(home: Path) -> None:
    """The events of the traces in tables, all of history computed anew, and no difference to live.

    As one would type it, but that Java is started once for all of it.
    """
    os.environ |= {"TORIL_JARS": str(jars.folder()), "TORIL_HOME": str(home)}
    console.print(
        "\n[bold]9.[/] The same events in a lake: each once, in Delta tables "
        "[dim](Java takes some seconds to start)[/]"
    )
    with started(name="toril demo"):
        shown_here("lake", "run", "--once")
        asyncio.run(shown("lake", "sql", ROLLUPS))
        console.print(
            "\n[bold]10.[/] All of history once more, by the class that ran live: is it what readers see?"
        )
        shown_here("lake", "replay", "trace_summary")
        shown_here("lake", "diff", "trace_summary")


async def _is_whole(client: Client, tenant: str, trace_id: str, spans: set[str]) -> None:
    """Wait until a trace is what was sent of it: each span once, and all of them in its summary."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        view = await client.trace(trace_id)
        if view is not None and view.version == len(view.spans) >= len(spans):
            found = [seen.span.span_id for seen in view.spans]
            once = set(found) >= spans and len(found) == len(set(found))
            if once and recompute(seen.row(tenant) for seen in view.spans).as_dict() == view.summary:
                return
        await asyncio.sleep(0.05)
    raise SystemExit(f"the demo lost spans of trace {trace_id}")


async def _worth_showing(url: str, key: str) -> str:
    """A trace with errors that fits on a page."""
    async with Client(url, key) as client:
        failing = await client.traces(order="failing", limit=200)
    fitting = [trace for trace in failing if 8 <= trace.summary["spans"] <= 20]
    return (fitting or failing)[0].trace_id


def main() -> None:
    """Run the demo in a data directory of its own, and leave nothing behind."""
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory(prefix="toril-demo-") as folder:
        try:
            asyncio.run(show(Path(folder) / "jobs"))
            asyncio.run(show_traces(Path(folder) / "traces"))
            show_lake(Path(folder) / "traces")
            console.print(
                "\n[green]Nothing was lost.[/] Next: [bold]toril --help[/], and the guides in docs/"
            )
        finally:
            for home in ("jobs", "traces"):
                stop(Path(folder) / home)


if __name__ == "__main__":
    main()
