"""What others notice meanwhile: how long a small request takes, and how much memory a process has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from toril import Connection
from toril.keyspace import QueueKeys

EVERY = 0.005
"""Seconds between two requests."""

T = TypeVar("T")


async def probed(redis: Connection, work: Awaitable[T]) -> tuple[T, list[float]]:
    """Do something, and ask the server for a small thing all the time; how long each answer took, in ms."""
    readings: list[float] = []
    key = QueueKeys("{probe}").id

    async def ask() -> None:
        while True:
            started = time.perf_counter()
            await redis.command("GET", key)
            readings.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(EVERY)

    asking = asyncio.create_task(ask())
    try:
        return await work, readings
    finally:
        asking.cancel()


def p99(readings: list[float]) -> float:
    """What 99 of 100 readings are below."""
    return sorted(readings)[int(len(readings) * 0.99)] if readings else 0.0


async def peak_memory(pid: int) -> int:
    """The most memory that a process has had so far, in bytes."""
    status = await asyncio.to_thread(Path(f"/proc/{pid}/status").read_text)
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
