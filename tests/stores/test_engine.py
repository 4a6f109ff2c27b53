"""The engine inside of the process: one directory, one process, and nothing that it should not touch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stores.places import EMBEDDED, fresh
from toril.events.errors import StoreError
from toril.stores.clickhouse import Database, engine


def test_a_second_process_is_told_who_has_the_directory(tmp_path: Path) -> None:
    """And gets it when the first was killed. Ctrl-Z and Ctrl-C do what they always do."""
    program = (
        "import asyncio, sys, pathlib\n"
        "from toril.stores.clickhouse import Database\n"
        "async def main():\n"
        "    async with await Database.open(directory=pathlib.Path(sys.argv[1])):\n"
        "        print('open', flush=True)\n"
        "        await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=f"process {first.pid} has it") as caught:
            engine._lock(tmp_path)
        assert not caught.value.retryable
        assert "ClickHouse URL" in str(caught.value)
        first.send_signal(signal.SIGKILL)
    # In a group of its own, with its parent in the same session: elsewhere a kernel may ignore Ctrl-Z.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as second:
        try:
            assert second.stdout is not None
            assert second.stdout.readline() == "open\n"
            second.send_signal(signal.SIGTSTP)
            while stopped(second.pid) != "T":
                time.sleep(0.01)
            second.send_signal(signal.SIGCONT)
            second.send_signal(signal.SIGINT)
            assert second.wait(60) == -signal.SIGINT
        finally:
            second.kill()


def stopped(process: int) -> str:
    """``T`` when it is."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_process_has_one_directory(tmp_path: Path) -> None:
    async with fresh(EMBEDDED) as database:
        with pytest.raises(StoreError, match="can have no second one") as caught:
            await Database.open(directory=tmp_path)
        assert not caught.value.retryable
        async with fresh(EMBEDDED) as other:
            assert other.is_embedded
            assert other.name != database.name


async def test_a_forked_child_neither_uses_nor_holds_it() -> None:
    async with fresh(EMBEDDED) as database:
        child = os.fork()
        if not child:
            try:
                work = database.run("read", lambda _: None)
                try:
                    work.send(None)
                except StoreError as problem:
                    os._exit(0 if "fork" in str(problem) and engine._held is None else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222
        assert await database.query("SELECT 1") == [(1,)]


def test_the_engine_leaves_signals_and_exit_alone(tmp_path: Path) -> None:
    """Opened in the main thread's loop: Ctrl-C, children with pipes, and an end without closing."""
    program = (
        "import asyncio, os, pathlib, signal, subprocess, sys\n"
        "from toril.stores.clickhouse import Database\n"
        "async def main():\n"
        "    database = await Database.open(directory=pathlib.Path(sys.argv[1]))\n"
        "    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), 'a signal is blocked'\n"
        "    ended = asyncio.Event()\n"
        "    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)\n"
        "    reading = asyncio.create_task(database.query('SELECT sleep(3)'))\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    await asyncio.wait_for(ended.wait(), 2.9)\n"
        "    await reading\n"
        "asyncio.run(main())\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
