"""How durable a write is: shown by servers whose disk is slow and whose replicas stand still.

``kill -9`` cannot show the difference: what a process has written survives it in the page cache.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from tests.connection.scripts import ADD, COUNT
from toril import Durability, InvalidValue, connect
from toril.connection import DurabilityNotReached, DurabilityRefused
from toril.keyspace import QueueKeys, make_queue_name
from toril.testing import cluster, standalone

KEYS = QueueKeys(make_queue_name("durability"))
SLOW_DISK = 0.4
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
EVERYSEC = {"appendonly": "yes", "appendfsync": "everysec"}


def slow_disk(log: Path, seconds: float = SLOW_DISK) -> tuple[str, ...]:
    """Runs a server so that each of its fdatasync calls takes long, and writes down when they end."""
    delay = f"inject=fdatasync:delay_exit={round(seconds * 1e6)}"
    return ("strace", "-f", "-ttt", "-e", "trace=fdatasync", "-e", delay, "-o", str(log))


def fsyncs(log: Path) -> list[float]:
    """When the delayed fdatasync calls began."""
    return [float(found) for found in re.findall(r"^\d+ +([\d.]+) fdatasync", log.read_text(), re.MULTILINE)]


async def test_no_job_lost_fsync_means_that_the_disk_has_it(binary: Path | None, tmp_path: Path) -> None:
    log = tmp_path / "fsync.log"
    with standalone(ALWAYS, binary=binary, wrapper=slow_disk(log)) as server:
        async with connect(server.url) as redis:
            await redis.command("PING")
            for number in range(3):
                before = len(fsyncs(log))
                started, wall = time.monotonic(), time.time()
                assert await redis.run(ADD, KEYS, "1", durability="fsync") == number + 1
                took = time.monotonic() - started
                assert took >= SLOW_DISK, "it returned before the disk had it"
                assert len(fsyncs(log)) > before
                assert fsyncs(log)[before] >= wall - 0.01


async def test_memory_does_not_wait_for_the_disk(binary: Path | None, tmp_path: Path) -> None:
    log = tmp_path / "fsync.log"
    with standalone(EVERYSEC, binary=binary, wrapper=slow_disk(log, 3)) as server:
        async with connect(server.url) as redis:
            started = time.monotonic()
            assert await redis.run(ADD, KEYS, "1") == 1
            assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"appendonly": "no"}, "appendonly is 'no' and must be 'yes'"),
        (EVERYSEC, "appendfsync is 'everysec' and must be 'always'"),
        ({**ALWAYS, "no-appendfsync-on-rewrite": "yes"}, "no-appendfsync-on-rewrite is 'yes'"),
    ],
)
async def test_fsync_is_refused_where_it_cannot_be_promised(
    settings: dict[str, str | int], reason: str, binary: Path | None
) -> None:
    with standalone(settings, binary=binary) as server:
        async with connect(server.url) as redis:
            with pytest.raises(DurabilityRefused, match=reason):
                await redis.run(ADD, KEYS, "1", durability="fsync")
            assert await redis.run(COUNT, KEYS) == 0, "it was written all the same"


async def test_fsync_is_refused_where_the_settings_are_not_shown(binary: Path | None) -> None:
    with standalone(ALWAYS, binary=binary) as server:
        server.ask("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-config")
        async with connect(f"redis://app:pw@{server.address}") as redis:
            with pytest.raises(DurabilityRefused, match="NOPERM"):
                await redis.run(ADD, KEYS, "1", durability="fsync")
            assert await redis.run(COUNT, KEYS) == 0


async def test_fsync_is_checked_again_after_a_restart(binary: Path | None) -> None:
    """The server behind an address may come back with other settings."""
    with standalone(ALWAYS, binary=binary) as server:
        async with connect(server.url) as redis:
            await redis.run(ADD, KEYS, "1", durability="fsync")
            server.kill()
            server._settings["appendfsync"] = "everysec"
            server.restart()
            with pytest.raises(DurabilityRefused, match="everysec"):
                await redis.run(ADD, KEYS, "2", durability="fsync")


async def test_no_job_lost_replicated_means_that_a_replica_has_it(binary: Path | None) -> None:
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            assert await redis.run(ADD, KEYS, "1", durability="replicated") == 1
            primary = nodes.primary_of(KEYS.wait)
            (replica,) = nodes.replicas_of(primary)
            replica.pause()
            try:
                impatient = Durability("replicated", timeout=0.3)
                started = time.monotonic()
                with pytest.raises(DurabilityNotReached, match="0 of 1 replicas confirmed it") as caught:
                    await redis.run(ADD, KEYS, "2", durability=impatient)
                assert 0.25 < time.monotonic() - started < 10
                # Reported, not hidden: the write is there, and the caller has its result.
                assert caught.value.result == 2
                assert await redis.run(COUNT, KEYS) == 2
                # Others do not wait for it on the same connection.
                slow = asyncio.create_task(
                    redis.run(ADD, KEYS, "3", durability=Durability("replicated", timeout=60.0))
                )
                assert await redis.run(COUNT, KEYS) in (2, 3)
                assert not slow.done()
            finally:
                replica.resume()
            assert await slow == 3
            two = Durability("replicated", replicas=2, timeout=0.2)
            with pytest.raises(DurabilityNotReached, match="1 of 2 replicas"):
                await redis.run(ADD, KEYS, "4", durability=two)


async def test_replicated_survives_the_death_of_the_primary(binary: Path | None) -> None:
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            for number in range(100):
                await redis.run(ADD, KEYS, str(number), durability="replicated")
            await asyncio.to_thread(nodes.kill, nodes.primary_of(KEYS.wait))
            assert await redis.run(COUNT, KEYS) == 100


def test_a_durability_is_checked() -> None:
    with pytest.raises(InvalidValue, match="one of memory, fsync, replicated"):
        Durability("disk")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="replicas"):
        Durability("replicated", replicas=0)
    with pytest.raises(InvalidValue, match="timeout"):
        Durability("replicated", timeout=0)
