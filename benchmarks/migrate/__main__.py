"""``python -m benchmarks.migrate``: move many waiting jobs, and write ``benchmarks/results/migrate.json``."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from toril import Connection, connect
from toril.keyspace import QueueKeys
from toril.queue import AddJob, Queue
from toril.testing import Server, standalone

from .probe import p99, peak_memory, probed

console = Console(width=None if sys.stdout.isatty() else 200)

RESULTS = Path(__file__).parents[1] / "results" / "migrate.json"
NODE = Path(__file__).parents[2] / "tests" / "conformance" / "node"
PEER = "one by one with Queue.add, Node BullMQ 5.62.0"
MEMORY = 200 * 2**20
"""What the migrating process may have, however many jobs there are."""


@click.command()
@click.option("--jobs", default=1_000_000, show_default=True, help="Waiting jobs to move.")
@click.option("--peer-jobs", default=10_000, show_default=True, help="Jobs that the usual way moves.")
def main(jobs: int, peer_jobs: int) -> None:
    """Move waiting jobs to a tagged name: interrupted once, and taken up again."""
    with standalone() as server:
        rows = asyncio.run(_measure(server, jobs, peer_jobs))
    for row in rows:
        console.print(row)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


async def _measure(server: Server, jobs: int, peer_jobs: int) -> list[dict[str, Any]]:
    async with connect(server.url) as redis:
        console.print(f"adding {jobs:,} jobs")
        await _fill(redis, "mail", jobs)
        await _fill(redis, "post", peer_jobs)
        _, idle = await probed(redis, asyncio.sleep(3))
        console.print("copying, interrupted half-way")
        seconds, memory, copying = await _copy(server, redis, jobs)
        peer_rate, peer_readings = await _peer(server, redis)
        copied = await redis.command("LLEN", QueueKeys("{mail}").wait)
        if copied != jobs:
            raise click.ClickException(f"{copied:,} jobs have arrived, of {jobs:,}")
    if memory > MEMORY:
        raise click.ClickException(f"toril migrate copy has taken {memory:,} bytes, more than {MEMORY:,}")
    rate = jobs / seconds
    peers = {
        f"jobs moved a second, of {jobs:,} that wait": (rate, peer_rate, PEER, None),
        "p99 of a small request meanwhile, ms": (p99(copying), p99(peer_readings), PEER, None),
        "p99 of a small request meanwhile, ms (server idle)": (
            p99(copying),
            p99(idle),
            "nobody migrates",
            None,
        ),
        "most memory of the migrating process, MiB": (memory / 2**20, MEMORY / 2**20, "its bound", None),
    }
    return [
        {
            "measure": measure,
            "toril": round(mine, 3),
            "peer": round(other, 3),
            "peer_name": name,
            "ratio": round(mine / other, 3) if other else None,
            "target": target,
        }
        for measure, (mine, other, name, target) in peers.items()
    ]


async def _fill(redis: Connection, name: str, count: int) -> None:
    queue = Queue(name, redis)
    for start in range(0, count, 5000):
        part = range(start, min(start + 5000, count))
        await queue.add_bulk([AddJob("send", {"to": f"user-{number}", "text": "x" * 100}) for number in part])


async def _copy(server: Server, redis: Connection, jobs: int) -> tuple[float, int, list[float]]:
    """Seconds of copying in all, the most memory, and what the probe read."""
    seconds, memory, readings = 0.0, 0, list[float]()
    for half in (True, False):
        took, most, read = await _run(server, redis, jobs // 2 if half else None)
        seconds, memory, readings = seconds + took, max(memory, most), readings + read
    return seconds, memory, readings


async def _run(server: Server, redis: Connection, until: int | None) -> tuple[float, int, list[float]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toril.cli", "migrate", "copy", "mail", "--url", server.url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started, memory, waiting = time.perf_counter(), 0, QueueKeys("{mail}").wait

    async def watch() -> None:
        nonlocal memory
        while process.returncode is None:
            with suppress(OSError, StopIteration, RuntimeError):  # it has just ended
                memory = max(memory, await peak_memory(process.pid))
            if until is not None and await redis.command("LLEN", waiting) >= until:
                process.send_signal(signal.SIGINT)
                break
            await asyncio.sleep(0.1)
        await process.wait()

    _, readings = await probed(redis, watch())
    expected = 130 if until is not None else 0
    if process.returncode != expected:
        raise click.ClickException(f"toril migrate copy ended with {process.returncode}, not {expected}")
    return time.perf_counter() - started, memory, readings


async def _peer(server: Server, redis: Connection) -> tuple[float, list[float]]:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules").exists():
        raise click.ClickException("the peer needs Node.js, and `npm ci` in tests/conformance/node")

    async def run() -> float:
        process = await asyncio.create_subprocess_exec(
            *(node, str(Path(__file__).parent / "peer.mjs"), str(NODE)),
            *(server.address.host, str(server.address.port), "post", "{post}"),
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )
        out, _ = await process.communicate()
        return float(out)

    return await probed(redis, run())


if __name__ == "__main__":
    main()
