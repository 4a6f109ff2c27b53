"""A process that migrates, and is killed (SIGKILL) at its n-th call of Redis: before it, or after it.

Run as a program it is a parent that never does anything itself: for each line it reads, it forks a child for
that one run, so that a run costs no start of Python.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toril import Connection, connect
from toril.connection.client import _Call
from toril.keyspace import QueueKeys
from toril.migrate import Copier, CopyOptions, Move, Moves, cleanup, rollback


class Migrator:
    """The parent, seen from a test."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.migrate.migrator", stdin=PIPE, stdout=PIPE
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def run(self, **task: Any) -> bool:
        """One run; whether it came to its end. One that fails by itself is an error."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task).encode() + b"\n")
        status = int(await self._process.stdout.readline())
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return False
        assert os.waitstatus_to_exitcode(status) == 0, f"{task} failed by itself"
        return True


def _die_at(call_number: int, after: bool) -> None:
    """Be killed at the n-th call of this process, before it is sent or when it was answered."""
    carry_out, calls = Connection._carry_out, 0

    async def counted(self: Connection, call: _Call) -> Any:
        nonlocal calls
        calls += 1
        if calls == call_number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        mine = calls
        reply = await carry_out(self, call)
        if mine == call_number:
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    Connection._carry_out = counted  # type: ignore[method-assign]


async def _run(task: dict[str, Any]) -> None:
    async with connect(task["url"]) as source, connect(task.get("to_url") or task["url"]) as destination:
        moves = Moves(
            (Move(QueueKeys(old), QueueKeys(new)) for old, new in task["names"].items()),
            other_server="to_url" in task,
        )
        if task.get("die_at"):
            _die_at(task["die_at"], task["after"])
        match task["verb"]:
            case "copy":
                await Copier(source, destination, moves, CopyOptions(**task.get("options", {}))).copy()
            case "cleanup":
                manifest = Path(task["manifest"])
                await cleanup(source, destination, moves, manifest=manifest, allow_workers=True)
            case "rollback":
                await rollback(source, destination, moves)


def _serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(_run(json.loads(line)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
