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

    Nobody waits for a batch to fill. Many who ask at once are divided among the calls, and these are written
    one after the other: calls in one write would be answered together, and while the server works nobody here
    would have anything to do.
    """

    def __init__(self, send: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer | Exception]]]) -> None:
        self._send = send
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._called = False
        """Whether the next call is about to be made."""

    async def ask(self, asked: Asked) -> Answer:
        """The answer to one of them."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        self._call_soon()
        return await answer

    def _call_soon(self) -> None:
        if self._waiting and not self._called and len(self._calls) < UNDER_WAY:
            self._called = True
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        size = len(self._waiting) if self._calls else -(-len(self._waiting) // UNDER_WAY)
        size = min(size, TOGETHER)
        batch, self._waiting = self._waiting[:size], self._waiting[size:]
        self._called = False
        self._calls.add(asyncio.create_task(self._run(batch)))
        self._call_soon()  # that is, after this one

    async def _run(self, batch: Sequence[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._send([asked for asked, _ in batch])
        except Exception as problem:  # noqa: BLE001 - whoever waits for an answer gets it
            answers = [problem] * len(batch)
        finally:
            # Here, and not when the task is done: whoever asks in between would wait for the next to ask.
            task = asyncio.current_task()
            assert task is not None
            self._calls.discard(task)
        for (_, waiting), answer in zip(batch, answers, strict=True):
            if waiting.done():
                continue
            if isinstance(answer, Exception):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)
        self._call_soon()
