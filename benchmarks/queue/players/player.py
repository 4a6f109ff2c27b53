"""What every player does: read commands as JSON lines, do them, answer.

A process is either a producer (``add``, ``bulk``, ``drip``) or a worker (``work``, then ``listen``). All
times are of the clock that all processes of the machine share, so a job's way from one to the other can be
timed. ``node.mjs`` does the same in JavaScript.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

QUEUE = "{bench}"
FILLING = "x" * 70
"""With this, a job's data is about 100 bytes of JSON."""

Payload = dict[str, Any]


def payload(number: int) -> Payload:
    """What a job is about. ``sent``: when it was sent, in µs."""
    return {"n": number, "sent": time.monotonic_ns() // 1000, "text": FILLING}


class Player(ABC):
    """A peer; a subclass says how its library is used."""

    def __init__(self) -> None:
        self.seen: Callable[[Payload], object] = lambda data: None
        """A handler calls this with its job's data, and does nothing else."""
        self.ended: Callable[[], None] = lambda: None
        """To be called when a job is over: the server knows that it is done."""

    @abstractmethod
    async def open_queue(self, url: str) -> None:
        """Connect as a producer."""

    @abstractmethod
    async def add(self, data: Payload) -> None:
        """Add a job, and wait until it is in."""

    async def add_bulk(self, jobs: Sequence[Payload]) -> None:
        """Add many at once; for libraries that have no call for it, as many calls at the same time."""
        await asyncio.gather(*(self.add(data) for data in jobs))

    @abstractmethod
    async def start_worker(self, url: str, concurrency: int) -> None:
        """Start to work; returns when the worker runs, or has begun to start."""


class _Input(asyncio.StreamReaderProtocol):
    """The commands. When they end, so does the process, whatever it is at: whoever asked is gone."""

    def eof_received(self) -> bool:
        os._exit(0)


class Stage:
    """Where a player plays."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._url = ""

    async def serve(self) -> None:
        """Do what is asked."""
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: _Input(lines), sys.stdin)
        while line := await lines.readline():
            asked = json.loads(line)
            tell(await getattr(self, asked.pop("do"))(**asked))

    async def open(self, url: str, role: str) -> Any:
        """Take a role: producer or worker."""
        self._url = url
        if role == "producer":
            await self._player.open_queue(url)
        gc.collect()
        return {}

    async def add(self, count: int) -> Any:
        """Jobs one by one."""
        began = time.monotonic()
        for number in range(count):
            await self._player.add(payload(number))
        return {"seconds": time.monotonic() - began}

    async def bulk(self, count: int, batch: int) -> Any:
        """Jobs in batches; 0 for all at once."""
        jobs = [payload(number) for number in range(count)]
        batch = batch or count
        began = time.monotonic()
        for first in range(0, count, batch):
            await self._player.add_bulk(jobs[first : first + batch])
        return {"seconds": time.monotonic() - began}

    async def drip(self, count: int, gap: float) -> Any:
        """A job every ``gap`` seconds."""
        due = time.monotonic()
        for number in range(count):
            due += gap
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._player.add(payload(number))
        return {}

    async def work(self, concurrency: int, skip: int, count: int) -> Any:
        """Start a worker on a backlog. The clock runs from the end of the job ``skip`` to the last one."""
        over = asyncio.Event()
        done, at, cpu = 0, 0.0, 0.0

        def ended() -> None:
            nonlocal done, at, cpu
            done += 1
            if done == skip:
                tell({"began": True})
                at, cpu = time.monotonic(), time.process_time()
            elif done == skip + count:
                at, cpu = time.monotonic() - at, time.process_time() - cpu
                over.set()

        self._player.ended = ended
        await self._player.start_worker(self._url, concurrency)
        await over.wait()
        return {"seconds": at, "cpu": cpu}

    async def listen(self, count: int) -> Any:
        """The times that jobs take to the handler of the worker that was started, in ms."""
        over = asyncio.Event()
        times: list[float] = []

        def seen(data: Payload) -> None:
            times.append((time.monotonic_ns() // 1000 - data["sent"]) / 1000)
            if len(times) == count:
                over.set()

        self._player.seen, self._player.ended = seen, lambda: None
        tell({"began": True})
        await over.wait()
        return {"times": times}


def tell(answer: Any) -> None:
    """Answer, at once."""
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


def main(player: Callable[[], Player], stage: Callable[[Player], Stage] = Stage) -> None:
    """Run a player."""
    logging.disable(logging.WARNING)

    async def serve() -> None:
        await stage(player()).serve()

    asyncio.run(serve())
