"""``toril worker`` as an operator runs it: signals, grace, errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.queue.test_worker import until_counts
from toril import connect
from toril.queue import Queue
from toril.testing import Server

APP = """
import asyncio
from toril.queue import Worker

worker = Worker("{cli}", concurrency=2)
workers = [worker]
nothing = 3

@worker.handler("quick")
async def quick(job):
    return "done"

@worker.handler("slow")
async def slow(job):
    await asyncio.sleep(60)
"""


@contextmanager
def running(tmp_path: Path, url: str, *args: str, app: str = APP) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "shop.py").write_text(app)
    process = subprocess.Popen(
        [sys.executable, "-m", "toril.cli", "worker", "shop:workers", "--url", url, *args],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        assert "working on {cli}, 2 at once" in process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_a_signal_lets_jobs_end_and_hands_back_the_rest(tmp_path: Path, redis_server: Server) -> None:
    redis_server.ask("FLUSHALL")
    async with connect(redis_server.url) as redis:
        queue = Queue("{cli}", redis)
        with running(tmp_path, redis_server.url, "--grace", "0.3") as process:
            await queue.add("quick", {})
            await until_counts(queue, completed=1)
            await queue.add("slow", {})
            await until_counts(queue, active=1)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=20)
            assert process.returncode == 0
            assert "SIGTERM: finishing what is under way" in out
            assert "closed" in out
        await until_counts(queue, waiting=1, active=0)


async def test_a_second_signal_hands_back_at_once(tmp_path: Path, redis_server: Server) -> None:
    redis_server.ask("FLUSHALL")
    async with connect(redis_server.url) as redis:
        queue = Queue("{cli}", redis)
        with running(tmp_path, redis_server.url) as process:
            await queue.add("slow", {})
            await until_counts(queue, active=1)
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            assert "SIGINT" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)
            assert process.returncode == 0
        await until_counts(queue, waiting=1, active=0)


@pytest.mark.parametrize(
    ("app", "problem"),
    [
        ("shop", "it names a module and a Worker"),
        ("shop:nothing", "it names a module and a Worker"),
        ("shop:missing", "it names a module and a Worker"),
        ("no_such_shop:worker", "there is no module 'no_such_shop' here"),
    ],
)
def test_a_wrong_app_is_one_clear_error(tmp_path: Path, app: str, problem: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    done = subprocess.run(
        [sys.executable, "-m", "toril.cli", "worker", app],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert problem in done.stderr
