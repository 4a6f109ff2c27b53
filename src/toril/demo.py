"""What ``make demo`` shows: jobs and events that survive the death of their server and of their workers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from toril import Connection, connect, make_queue_name
from toril.connection.embedded import ensure_server, stop
from toril.events import Count, DeclaredProjection, NewEvent, Sum
from toril.queue import AddJob, Job, Queue, Worker
from toril.runtime import EngineOptions, EventSourcing, RegisteredPipeline

JOBS = 5_000
EVENTS = 5_000
ORDERS = 200
QUEUE = make_queue_name("reports")
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
    await show_events(url)
    console.print("[green]Nothing was lost.[/] Next: [bold]toril --help[/], and the guides in docs/")


# ---------------------------------------------------------------------------- events


class Order(DeclaredProjection):
    """What an order came to."""

    amount = Sum("data.amount")
    events = Count()


def make_orders(url: str) -> RegisteredPipeline:
    """A pipeline that adds up orders."""
    sourcing = EventSourcing(url, partitions=8, options=EngineOptions(lease=1.0))
    builder = sourcing.register_pipeline().with_name("orders").with_aggregate_type("order")
    return builder.with_projection("order", None, Order).build()


async def process(url: str) -> None:
    """The process that is going to be killed."""
    async with make_orders(url).sourcing.worker() as worker:
        await worker.wait()


async def behind(orders: RegisteredPipeline) -> int:
    """Events that are not in the states yet."""
    return sum(lag.events for lag in await orders.service.lag())


async def show_events(url: str) -> None:
    """Events, states made of them, and a proof that each event is in its state once."""
    orders = make_orders(url)
    async with orders.sourcing:
        victim = await asyncio.create_subprocess_exec(sys.executable, "-m", "toril.demo", "events", url)
        stored = [
            orders.service.store_events("acme", str(n % ORDERS), [NewEvent(type="paid", data={"amount": n})])
            for n in range(EVENTS)
        ]
        await asyncio.gather(*stored)
        while await behind(orders) > EVENTS // 2:
            await asyncio.sleep(0.01)
        victim.kill()
        await victim.wait()
        console.print(
            f"[bold]6.[/] {EVENTS:,} events stored for {ORDERS} orders. kill -9 {victim.pid}: what adds them "
            f"up is gone, {await behind(orders):,} events behind"
        )
        async with orders.sourcing.worker():
            while await behind(orders):
                await asyncio.sleep(0.02)
        same = 0
        for number in range(ORDERS):
            live = await orders.service.get_projection("order", "acme", str(number))
            same += live == await orders.service.rebuild_projection("order", "acme", str(number))
        console.print(
            f"[bold]7.[/] Another worker took over: {same} of {ORDERS} states are what their events make, "
            "each counted once"
        )
        if same != ORDERS:
            raise SystemExit("the demo found a state that is not what its events make")


def main() -> None:
    """Run the demo in a data directory of its own, and leave nothing behind."""
    if len(sys.argv) > 1:
        asyncio.run(process(sys.argv[2]) if sys.argv[1] == "events" else work(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory(prefix="toril-demo-") as folder:
        try:
            asyncio.run(show(Path(folder)))
        finally:
            stop(Path(folder))


if __name__ == "__main__":
    main()
