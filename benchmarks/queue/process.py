"""A player's process, and the words with it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from .peers import ROOT, Peer

LONGEST_WAIT = 120.0
"""Seconds for one answer; a player that takes longer is stuck, and ends the benchmark."""
LONGEST_LINE = 1 << 24


class PlayerFailed(RuntimeError):
    """A player is gone, or does not answer; with the last it said."""


class PlayerProcess:
    """One player. Made by :func:`play`."""

    def __init__(self, peer: Peer, process: Process, said: IO[bytes]) -> None:
        self._peer = peer
        self._process = process
        self._said = said

    async def ask(self, what: str, **args: Any) -> Any:
        """Tell it to do something, and wait for the answer."""
        await self.tell(what, **args)
        return await self.answer()

    async def tell(self, what: str, **args: Any) -> None:
        """Tell it to do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **args}).encode() + b"\n")
        await self._process.stdin.drain()

    async def answer(self) -> Any:
        """What it says next."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), LONGEST_WAIT)
        except TimeoutError:
            raise PlayerFailed(f"{self._peer.name} does not answer. {self._last_words()}") from None
        if not line:
            raise PlayerFailed(f"{self._peer.name} is gone. {self._last_words()}")
        return json.loads(line)

    def resident(self) -> int:
        """Bytes of memory that it has now."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    def _last_words(self) -> str:
        self._said.seek(0)
        return "It said:\n" + self._said.read().decode(errors="replace")[-2000:]


@asynccontextmanager
async def play(peer: Peer, role: str, url: str) -> AsyncIterator[PlayerProcess]:
    """A player in a role, connected; it is killed afterwards."""
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            *peer.command,
            cwd=ROOT,
            env=peer.environment,
            stdin=PIPE,
            stdout=PIPE,
            stderr=said,
            limit=LONGEST_LINE,
        )
        try:
            player = PlayerProcess(peer, process, said)
            await player.ask("open", url=url, role=role)
            yield player
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
