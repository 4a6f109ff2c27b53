"""A process of the set-up, and the words with it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

LONGEST_WAIT = 300.0
"""Seconds for one answer; a process that takes longer is stuck, and ends the benchmark."""
TICKS = os.sysconf("SC_CLK_TCK")


class PartFailed(RuntimeError):
    """A process is gone, or does not answer; with the last it said."""


class Part:
    """One process. Made by :func:`start`."""

    def __init__(self, role: str, process: Process, said: IO[bytes]) -> None:
        self.role = role
        self.up: Any = None
        """What it said when it was up."""
        self.pid = process.pid
        self._process = process
        self._said = said

    async def ask(self, what: str, **args: Any) -> Any:
        """Tell it to do something, and wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **args}).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        """What it says next."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), LONGEST_WAIT)
        except TimeoutError:
            raise PartFailed(f"the {self.role} does not answer. {self._last_words()}") from None
        if not line:
            raise PartFailed(f"the {self.role} is gone. {self._last_words()}")
        return json.loads(line)

    def _last_words(self) -> str:
        self._said.seek(0)
        return "It said:\n" + self._said.read().decode(errors="replace")[-4000:]


@asynccontextmanager
async def start(role: str, **said: Any) -> AsyncIterator[Part]:
    """A process in a role, up; it is killed afterwards."""
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.ingest.part", role, json.dumps(said)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
        )
        try:
            part = Part(role, process, errors)
            part.up = await part.answer()
            yield part
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def cpu(pid: int) -> float:
    """Seconds of processor time that a process has used, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident(pid: int) -> int:
    """Bytes of memory that a process has now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def busy() -> tuple[float, float]:
    """Seconds of processor time that the whole machine has used, and had."""
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS, sum(fields) / TICKS
