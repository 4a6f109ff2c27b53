"""Desks: tasks that live long, at each of which one job after the other is worked on.

A task for each job would cost more than a short job itself. A desk that gets stuck (its handler awaits
something) has called others to go on with what waits. A handler that leaves context variables behind takes
its desk with it: the next job gets a new one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context

LONGEST_TURN = 0.01
"""Seconds that a desk may go on from job to job, before it lets the rest of the program have a turn."""

FEW = 2
"""Desks that are called when there is work: enough for handlers that await nothing."""


class Desks:
    """So many desks, for work that is waiting somewhere.

    ``next_job`` begins with the next piece of it in the task of a desk, or has none.
    """

    def __init__(self, count: int, next_job: Callable[[asyncio.Task[None]], Awaitable[None] | None]) -> None:
        self._count = count
        self._next_job = next_job
        self._clean: Context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._free: deque[asyncio.Future[None]] = deque()
        self._called = 0
        """Desks that have been called, and did not have their turn yet."""
        self._few = FEW

    def call(self, waiting: int) -> None:
        """There is work for so many desks."""
        while self._called < min(waiting, self._few):
            if self._free:
                desk = self._free.popleft()
                if desk.done():
                    continue
                desk.set_result(None)
            elif len(self._tasks) < self._count:
                self._set_up()
            else:
                return
            self._called += 1

    def _set_up(self) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._sit(), context=self._clean.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sit(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            self._called -= 1
            job = self._next_job(task)
            # Whoever has had a turn and finds work left was called by a desk that got stuck: call more.
            self._few = FEW if job is None else min(2 * self._few, self._count)
            until = time.monotonic() + LONGEST_TURN
            while job is not None:
                await job
                if copy_context() != self._clean:
                    self._tasks.discard(task)
                    self._set_up()
                    self._called += 1
                    return
                if time.monotonic() > until:
                    await asyncio.sleep(0)
                    until = time.monotonic() + LONGEST_TURN
                job = self._next_job(task)
            call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._free.append(call)
            await call

    async def close(self) -> None:
        """Clear all desks."""
        for task in self._tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
