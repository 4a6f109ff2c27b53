"""Many tasks, few calls: what comes while a call is under way goes together in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

TOGETHER = 200
"""People in one call: some milliseconds of the server's time."""

UNDER_WAY = 2
"""Calls at a time: while the server works on one, the next is made ready."""


class Together(Generic[Asked, Answer]):
    """Sends what is asked for in batches; an answer that is an error is that one's alone.

    Nobody waits for a batch to fill.
    """

    def __init__(self, send: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer | Exception]]]) -> None:
        self._send = send
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._tasks: set[asyncio.Task[Any] | None] = set()

    async def ask(self, asked: Asked) -> Answer:
        """The answer to one of them."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        if len(self._tasks) < UNDER_WAY:
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
        return await answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
                await self._run_batch(batch)
        finally:
            # Here, and not when the task is done: whoever asks in between would wait for the next to ask.
            self._tasks.discard(asyncio.current_task())

    async def _run_batch(self, batch: Sequence[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._send([asked for asked, _ in batch])
        except Exception as problem:  # noqa: BLE001 - whoever waits for an answer gets it
            answers = [problem] * len(batch)
        for (_, waiting), answer in zip(batch, answers, strict=True):
            if waiting.done():
                continue
            if isinstance(answer, Exception):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)
