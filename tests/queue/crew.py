"""Worker processes of a test's own (see :mod:`tests.queue.victim`), and ways to hurt them.

Their settings are a struct with at least the fields ``name`` and ``seed``.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec

ROOT = Path(__file__).parents[2]


class Victim:
    """A worker process, and ways to hurt it."""

    program: ClassVar[str] = "tests.queue.victim"

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.said: deque[str] = deque(maxlen=1000)
        self._news = asyncio.Condition()
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> Victim:
        """Start it; returns when it works."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self.program, msgspec.json.encode(self.settings).decode()),
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
        )
        self._reader = asyncio.create_task(self._read())
        await self.until("ready")
        return self

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            async with self._news:
                self.said.append(line.decode().strip())
                self._news.notify_all()
        async with self._news:
            self.said.append("gone")
            self._news.notify_all()

    async def until(self, line: str, timeout: float = 30.0) -> None:
        """Return when it has said a line that starts so."""

        def has_said() -> bool:
            return any(each.startswith(line) for each in self.said) or "gone" in self.said

        async with self._news, asyncio.timeout(timeout):
            await self._news.wait_for(has_said)
        assert any(each.startswith(line) for each in self.said), "\n".join(self.said)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def kill(self) -> None:
        """As ``kill -9`` does; returns when it is gone."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._gone()

    async def close(self) -> int:
        """SIGTERM; its exit code."""
        self.signal(signal.SIGTERM)
        return await self._gone()

    async def _gone(self) -> int:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._reader is not None
        code = await asyncio.wait_for(self._process.wait(), 60)
        self._process.stdin.close()
        await self._reader
        self._process = None
        return code


class Crew:
    """So many victims at all times: who dies is replaced."""

    victim: ClassVar[type[Victim]] = Victim

    def __init__(self, settings: Any, size: int, rng: random.Random) -> None:
        self._settings = settings
        self._size = size
        self._rng = rng
        self._hired = 0
        self.members: list[Victim] = []
        self.kills = 0

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*(self.hire() for _ in range(self._size)))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(member.kill() for member in self.members))

    async def hire(self) -> None:
        self._hired += 1
        seed, name = self._rng.randrange(2**32), f"{self._settings.name}-{self._hired}"
        member = self.victim(msgspec.structs.replace(self._settings, name=name, seed=seed))
        self.members.append(member)
        await member.start()

    async def kill_one(self) -> None:
        """Kill one by chance, and hire another one in its place."""
        member = self.members.pop(self._rng.randrange(len(self.members)))
        await member.kill()
        self.kills += 1
        await self.hire()

    async def close(self) -> None:
        """Let all end in order."""
        codes = await asyncio.gather(*(member.close() for member in self.members))
        assert not any(codes), codes
        self.members.clear()
