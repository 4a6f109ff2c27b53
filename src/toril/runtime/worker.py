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
        self._backend = backend
        self._options = options or EngineOptions()
        self.engines = [Engine(backend, work, self.name, self._options) for work in works]
        self._running: dict[Engine, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        """It has other engines than before."""

    async def __aenter__(self) -> Self:
        for engine in self.engines:
            self._start(engine)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        return list(self._running.values())

    def _start(self, engine: Engine) -> None:
        task = asyncio.create_task(engine.run())
        task.add_done_callback(told)  # also where nobody waits for it
        self._running[engine] = task
        self._changed.set()

    def add(self, work: Work) -> None:
        """Run one more processor."""
        engine = Engine(self._backend, work, self.name, self._options)
        self.engines.append(engine)
        self._start(engine)

    async def drop(self, processor: str) -> None:
        """Run a processor no more; where it is not run, nothing is done."""
        for engine in [one for one in self.engines if one.work.processor == processor]:
            self.engines.remove(engine)
            task = self._running.pop(engine)
            self._changed.set()
            try:
                await engine.stop()
            finally:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

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
        while True:
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            try:
                done, _ = await asyncio.wait({changed, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            for task in done - {changed}:
                if task in self._tasks:
                    task.result()
                    return
