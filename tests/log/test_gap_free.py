"""The promise gap-free: versions and ordinals are 1, 2, 3 … without a gap, and an append is there once.

Several processes append to few aggregates at once, with and without an expected version. Connections are cut,
processes are killed in the middle of a call, and their successors send again what was left without an
answer; servers die, fail over, and give a partition to another one.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from tests.conftest import SCALE
from tests.log.audit import check_gap_free
from tests.log.blows import Hurt, cut, storm
from tests.log.crew import Crew
from tests.log.journal import Journal
from tests.log.victim import Settings
from toril import connect
from toril.log import Log
from toril.testing import cluster, standalone


def writers(url: str, folder: Path, count: int = 3, **more: object) -> list[Settings]:
    return [
        Settings(url=url, name=f"w{number}", journal=str(folder / f"w{number}"), **more)  # type: ignore[arg-type]
        for number in range(count)
    ]


def report(
    what: str, events: int, crew: Crew, dealt: int, started: float, capture: pytest.CaptureFixture[str]
) -> None:
    """Say what it took."""
    journals: list[Journal] = list(crew.journals().values())
    with capture.disabled():
        print(
            f"\n  {what}: {events} events, {sum(len(one.answers) for one in journals)} appends, "
            f"{sum(len(one.conflicts) for one in journals)} conflicts, "
            f"{sum(one.repeats for one in journals)} repeats, {dealt} blows, {crew.kills} processes killed, "
            f"{time.monotonic() - started:.1f} s"
        )


@pytest.mark.timeout(120 + 20 * SCALE)
async def test_gap_free_when_a_server_and_its_writers_die(
    binary: Path | None, rng: random.Random, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One server, which writes everything to its disk before it answers."""
    started = time.monotonic()
    with standalone({"appendonly": "yes", "appendfsync": "always"}, binary=binary) as server:
        async with connect(server.url) as redis:
            log = Log(redis, partitions=2)
            await log.layout()

            def die() -> None:
                server.kill()
                server.start()

            async with Crew(writers(server.url, tmp_path, durability="fsync"), rng) as crew:
                dealt = await storm(
                    rng,
                    [crew.kill_one, crew.kill_one, lambda: cut(server), lambda: asyncio.to_thread(die)],
                )
                await crew.close()
            journals = crew.journals().values()
            assert not [ask for journal in journals for ask in journal.unanswered()]
            events = await check_gap_free(log, journals)
    report("servers and writers killed", events, crew, dealt, started, capsys)
    assert events > 100


@pytest.mark.timeout(120 + 30 * SCALE)
async def test_gap_free_when_a_cluster_changes_under_its_writers(
    binary: Path | None, rng: random.Random, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Coordinated failovers, and slots of partitions that go to another server."""
    started = time.monotonic()
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            log = Log(redis, partitions=3)
            keys = [log.store(partition).keys.head for partition in (await log.layout()).partitions()]
            hurt = Hurt(nodes, keys, rng)
            async with Crew(writers(nodes.url, tmp_path), rng) as crew:
                dealt = await storm(rng, [crew.kill_one, hurt.cut, hurt.fail_over, hurt.move])
                await crew.close()
            journals = crew.journals().values()
            assert not [ask for journal in journals for ask in journal.unanswered()]
            events = await check_gap_free(log, journals)
    report(f"{hurt.failovers} failovers and {hurt.moves} moving slots", events, crew, dealt, started, capsys)
    assert events > 100
    assert hurt.failovers
    assert hurt.moves


@pytest.mark.timeout(120 + 60 * SCALE)
async def test_gap_free_what_was_replicated_survives_a_master(
    binary: Path | None, rng: random.Random, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The master is killed. What it alone knew is gone; what it said was replicated is not."""
    started = time.monotonic()
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            log = Log(redis, partitions=2)
            keys = [log.store(partition).keys.head for partition in (await log.layout()).partitions()]
            hurt = Hurt(nodes, keys, rng)
            async with Crew(writers(nodes.url, tmp_path, durability="replicated"), rng) as crew:
                dealt = await storm(rng, [crew.kill_one, hurt.die])
                await crew.close()
            journals = crew.journals().values()
            assert not [ask for journal in journals for ask in journal.unanswered()]
            events = await check_gap_free(log, journals)
    report(f"{hurt.deaths} masters killed", events, crew, dealt, started, capsys)
    assert events > 100
    assert hurt.deaths
