"""Processes of a test's own (see :mod:`tests.log.victim`), and ways to hurt them."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from pathlib import Path
from typing import Self

import msgspec

from tests.log.journal import Journal
from tests.log.victim import Settings

ROOT = Path(__file__).parents[2]


class Member:
    """One process, and its successors under the same name."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.said: deque[str] = deque(maxlen=200)
        self._process: Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self, seed: int) -> None:
        """Start it; returns when it works."""
        self.said.clear()
        self._ready.clear()
        told = msgspec.structs.replace(self.settings, seed=seed)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.log.victim", msgspec.json.encode(told).decode()),
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
        )
        self._listener = asyncio.create_task(self._listen(self._process))
        async with asyncio.timeout(60):
            await self._ready.wait()
        assert "ready" in self.said, "\n".join(self.said)

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self.said.append(line.decode().strip())
            if self.said[-1] == "ready":
                self._ready.set()
        self._ready.set()

    async def kill(self) -> None:
        """As ``kill -9`` does; returns when it is gone."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._gone()

    async def close(self) -> None:
        """Let it end in order."""
        assert self._process is not None
        assert self._process.returncode is None, f"{self.settings.name} has ended:\n" + "\n".join(self.said)
        self._process.send_signal(signal.SIGTERM)
        code = await self._gone()
        assert code == 0, f"{self.settings.name} ended with {code}:\n" + "\n".join(self.said)

    async def _gone(self) -> int:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._listener is not None
        code = await asyncio.wait_for(self._process.wait(), 60)
        self._process.stdin.close()
        await self._listener
        self._process = None
        return code


class Crew:
    """Some members; who dies gets a successor."""

    def __init__(self, settings: list[Settings], rng: random.Random) -> None:
        self.members = [Member(one) for one in settings]
        self.kills = 0
        self._rng = rng

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*(member.start(self._rng.randrange(2**32)) for member in self.members))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(member.kill() for member in self.members))

    async def kill_one(self, role: str | None = None) -> None:
        """Kill one by chance; its successor takes up its journal."""
        member = self._rng.choice([one for one in self.members if role in (None, one.settings.role)])
        await member.kill()
        self.kills += 1
        await member.start(self._rng.randrange(2**32))

    async def close(self, role: str | None = None) -> None:
        """Let all of them end in order."""
        await asyncio.gather(
            *(member.close() for member in self.members if role in (None, member.settings.role))
        )

    def journals(self, role: str = "writer") -> dict[str, Journal]:
        """What they have noted, by name."""
        found = {}
        for member in self.members:
            if member.settings.role == role:
                journal = Journal(Path(member.settings.journal))
                journal.close()
                found[member.settings.name] = journal
        return found
