"""A worker: runs the processors of pipelines, as one of any number of processes."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from toril.runtime.backend import Backend
from toril.runtime.desk import told
from toril.runtime.engine import Engine, EngineOptions
from toril.runtime.work import Work


class ProcessorWorker:
    """Runs processors while it is entered: ``async with ProcessorWorker(backend, works): …``.

    Partitions are shared with all other workers that run the same processors. When it is left, what runs may
    end within the grace time, and the partitions are given back.
    """

    def __init__(self, backend: Backend, works: Sequence[Work], options: EngineOptions | None = None) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.engines = [Engine(backend, work, self.name, options or EngineOptions()) for work in works]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(engine.run()) for engine in self.engines]
        for task in self._tasks:
            task.add_done_callback(told)  # also where nobody waits for it
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End in order."""
        await asyncio.gather(*(engine.stop() for engine in self.engines))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_running(self) -> bool:
        """Whether all its processors run."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    async def wait(self) -> None:
        """Until one of its processors cannot go on; raises why."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
