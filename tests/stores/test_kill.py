"""Processes that are killed while they insert: all that was acknowledged is there, and once."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conftest import SCALE
from tests.stores.clickhouse_http import clickhouse_server
from tests.stores.victim import STORED, Insert, inserts
from toril.events.errors import StoreError
from toril.stores import Database

Acknowledged = dict[str, set[int]]


async def check(database: Database, acknowledged: Acknowledged) -> None:
    for kind, (statement, base) in STORED.items():
        stored = {int(number, base): times for number, times in await database.query(statement)}
        assert acknowledged[kind] <= set(stored), f"{kind} lost {acknowledged[kind] - set(stored)}"
        assert set(stored.values()) <= {1}, f"{kind} is there more than once"


def run_and_kill(directory: Path, first: int, enough: int) -> list[tuple[str, int]]:
    """What a process says was acknowledged before it was killed in the midst of more."""
    command = [sys.executable, "-m", "tests.stores.victim", str(directory), str(first)]
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        while len(said) < enough:
            line = victim.stdout.readline()
            assert line, "the victim ended by itself"
            said.append(line)
        victim.kill()
        said += victim.stdout.readlines()
    whole = [line.split() for line in said if line.endswith("\n")]
    return [(kind, int(number)) for kind, number in whole]


@pytest.mark.promise
@pytest.mark.timeout(120 + 60 * SCALE)
async def test_what_an_embedded_engine_acknowledged_survives_its_process(
    tmp_path: Path, rng: random.Random
) -> None:
    """Killed again and again in one directory, which each time is free at once."""
    acknowledged: Acknowledged = defaultdict(set)
    for _ in range(max(2, int(2 * SCALE))):
        first = 1 + sum(map(len, acknowledged.values())) * 10
        for kind, number in run_and_kill(tmp_path, first, rng.randrange(1, int(500 * max(1, SCALE)))):
            acknowledged[kind].add(number)
    with clickhouse_server(tmp_path) as server:
        async with await Database.open(server.url) as database:
            await check(database, acknowledged)


@pytest.mark.promise
@pytest.mark.timeout(120 + 60 * SCALE)
async def test_what_a_server_acknowledged_survives_it(tmp_path: Path, rng: random.Random) -> None:
    """Whoever got an error inserts again: then it is there, and once."""
    acknowledged: Acknowledged = defaultdict(set)
    numbers = itertools.count(1)
    failed = 0
    with clickhouse_server(tmp_path) as server:
        async with await Database.open(server.url) as database:
            going = True

            async def caller(kind: str, insert: Insert) -> None:
                nonlocal failed
                while going:
                    number = next(numbers)
                    while number not in acknowledged[kind]:
                        try:
                            await insert(number)
                        except StoreError as problem:
                            if not problem.retryable:
                                raise
                            failed += 1
                            await asyncio.sleep(0.05)
                        else:
                            acknowledged[kind].add(number)

            calls = [
                asyncio.create_task(caller(kind, insert))
                for kind, insert in inserts(database).items()
                for _ in range(4)
            ]
            for _ in range(max(2, int(2 * SCALE))):
                enough = sum(map(len, acknowledged.values())) + rng.randrange(50, 300)
                while sum(map(len, acknowledged.values())) < enough:
                    await asyncio.sleep(0.002)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            going = False
            await asyncio.gather(*calls)
            assert failed, "no insert was hit"
            await check(database, acknowledged)
