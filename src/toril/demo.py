"""What ``make demo`` shows: the embedded server at work, killed, and back with all data."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

from rich.console import Console

from toril import connect, make_queue_name
from toril.connection.embedded import ensure_server
from toril.keyspace import QueueKeys

console = Console(highlight=False)


async def main() -> None:
    """Run the demo in a data directory of its own, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="toril-demo-") as folder:
        home = Path(folder)
        keys = QueueKeys(make_queue_name("collector"))
        async with connect(f"embedded://{home}") as redis:
            facts = redis.facts
            console.print(f"[bold]1.[/] Embedded server: {facts.product} {facts.version}, data in {home}")
            for number in range(1, 1001):
                await redis.command("LPUSH", keys.wait, f"job-{number}", durability="fsync")
            console.print(f"[bold]2.[/] 1,000 writes to {keys.wait}, each on disk before the next")
            server = await asyncio.to_thread(ensure_server, home)
            os.kill(server.pid, signal.SIGKILL)
            console.print(f"[bold]3.[/] kill -9 {server.pid}: the server is gone")
            left = await redis.command("LLEN", keys.wait)
            back = await asyncio.to_thread(ensure_server, home)
            console.print(
                f"[bold]4.[/] The same call goes on: server {back.pid} has {left:,} of 1,000 entries"
            )
            if left != 1000:
                raise SystemExit("the demo lost data")
        console.print("[green]Nothing was lost.[/] Next: [bold]toril --help[/], and the guides in docs/")


if __name__ == "__main__":
    asyncio.run(main())
