"""Events, readers and cold stores of a log, and commands that follow it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from tests.cli.shell import Shell
from toril.aggregate import Aggregate
from toril.log import Append, Log

QUIET = timedelta(milliseconds=200)


def order(number: int, tenant: str = "acme") -> Aggregate:
    return Aggregate(tenant, "order", str(number))


async def fill(log: Log, count: int, tenant: str = "acme") -> None:
    """One event for each of so many orders."""
    made = [Append(order(n, tenant), [json.dumps({"type": "placed", "n": n}).encode()]) for n in range(count)]
    assert not [one for one in await log.append_many(made) if isinstance(one, BaseException)]


async def read_all(log: Log, name: str) -> None:
    async with log.reader(name) as reader:
        async for batch in reader.until_now():
            await batch.done()


async def register(log: Log, name: str) -> None:
    async with log.reader(name):
        pass


def started(shell: Shell, *args: str) -> subprocess.Popen[str]:
    """A command that runs until a signal."""
    command = [sys.executable, "-m", "toril.cli", "log", *args, "--url", shell.url]
    env = {**os.environ, "COLUMNS": "120"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def cold_module(path: Path, name: str) -> dict[str, str]:
    """A module of a user's with a cold store in it, and the environment in which it is found."""
    text = (
        f"from toril.stores.sqlite import SqliteColdStore\ncold = SqliteColdStore({str(path / 'cold')!r})\n"
    )
    (path / f"{name}.py").write_text(text)
    return {"PYTHONPATH": str(path)}
