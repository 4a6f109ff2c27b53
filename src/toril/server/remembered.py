"""An answer that many ask for, and that is worked out seldom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """Works an answer out once for all who ask meanwhile, and remembers it for a while."""

    def __init__(self, work_out: Callable[[], Awaitable[T]], fresh: float) -> None:
        self._work_out = work_out
        self._fresh = fresh
        self._task: asyncio.Task[T] | None = None
        self._until = 0.0

    async def get(self) -> T:
        """The answer, worked out at most ``fresh`` seconds ago."""
        if self._task is None or (self._task.done() and time.monotonic() >= self._until):
            self._task = asyncio.create_task(self._run())
        return await asyncio.shield(self._task)  # one who goes away does not take it from the others

    async def close(self) -> None:
        """Stop working on it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> T:
        answer = await self._work_out()
        self._until = time.monotonic() + self._fresh
        return answer
