"""One process of a set-up: serves, or works, or both, until it is ended. What kill tests kill.

``python -m tests.pipelines.part '{"redis": …, "clickhouse": …, "home": …, "port": …, "work": true}'``: where
there is no port it does not serve. It prints a line when it is up.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from toril.runtime import EngineOptions
from toril.server.setup import Settings, Setup

LEASE = 1.5
"""Seconds: others take over soon."""


async def main(said: dict[str, Any]) -> None:
    settings = Settings(
        redis=said.get("redis"),
        clickhouse=said.get("clickhouse"),
        home=Path(said["home"]),
        partitions=2,  # so that each gets on in each of its lives
        open_tenant="acme",
        quiet=timedelta(seconds=2),
        options=EngineOptions(lease=LEASE, grace=5.0),
    )
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(Setup.open(settings))
        waiting = []
        if said["work"]:
            worker = await stack.enter_async_context(setup.worker())
            waiting.append(asyncio.create_task(worker.wait()))
        if "port" in said:
            server = await stack.enter_async_context(setup.server(port=said["port"]))
            waiting.append(asyncio.create_task(server.wait()))
        print("up", flush=True)
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
