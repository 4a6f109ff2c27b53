"""Running a handler on a job: in the event loop, in a thread, or in a process."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable
from typing import Any, Protocol

from toril.errors import TorilError
from toril.handler.handler import Handler
from toril.handler.process import HandlerProcess, Told


class TimedOut(TorilError):
    """A handler took longer than its timeout."""


class HandlerStopped(TorilError):
    """A handler's thread has ended itself, as ``sys.exit()`` does."""


class Known(Protocol):
    """What is known of a job."""

    @property
    def id(self) -> str:
        """The job's id."""

    @property
    def name(self) -> str:
        """By which its handler is found."""

    @property
    def data(self) -> Any:
        """What it is about."""

    @property
    def attempts_made(self) -> int:
        """Runs that have failed so far."""

    @property
    def trace_context(self) -> str | None:
        """The trace that added it, as OpenTelemetry carries it."""


class Runnable(Known, Protocol):
    """What a job needs, for a handler to be run on it anywhere."""

    async def update_progress(self, progress: Any) -> None:
        """Tell how far it is."""

    async def log(self, line: str) -> Any:
        """Add a line to its log."""


class Runner:
    """Runs handlers, and keeps the processes that some of them need."""

    def __init__(self) -> None:
        self._idle: list[HandlerProcess] = []
        self._busy: set[HandlerProcess] = set()

    def run(self, handler: Handler, job: Runnable, timeout: float | None = None) -> Awaitable[Any]:
        """What the handler returns. Cancelling this stops it (a thread goes on until it ends by itself).

        ``timeout`` is the job's own, and goes before the handler's. It begins when it is awaited.
        """
        args: tuple[Any, ...] = ()
        if handler.takes_data and not handler.in_process:
            args = (handler.payload(job.data),)
        timeout = timeout or handler.timeout
        if timeout is None:
            return self._call(handler, job, args)
        return self._call_within(timeout, handler, job, args)

    async def _call_within(
        self, timeout: float, handler: Handler, job: Runnable, args: tuple[Any, ...]
    ) -> Any:
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self._call(handler, job, args)
        except TimeoutError:
            if limit.expired():
                raise TimedOut(f"timed out after {timeout:g} s") from None
            raise  # the handler's own

    def _call(self, handler: Handler, job: Runnable, args: tuple[Any, ...]) -> Awaitable[Any]:
        if handler.in_process:
            return self._in_process(handler, job)
        if handler.is_async:
            called: Awaitable[Any] = handler.call(job, *args)
            return called
        return _in_thread(handler, job, args)

    async def _in_process(self, handler: Handler, job: Runnable) -> Any:
        args = (handler.payload(job.data),) if handler.takes_data else ()

        async def told(message: Told) -> None:
            if message.what == "progress":
                await job.update_progress(message.value)
            else:
                await job.log(str(message.value))

        process = self._idle.pop() if self._idle else HandlerProcess()
        self._busy.add(process)
        try:
            known = (job.id, job.name, job.data, job.attempts_made)
            return await process.run(handler.call, known, args, told)
        finally:
            self._busy.discard(process)
            self._idle.append(process)

    def close(self) -> None:
        """End all processes."""
        for process in (*self._idle, *self._busy):
            process.kill()


class ThreadJob:
    """A job as a handler in a thread sees it: what is awaited elsewhere, is simply called here."""

    def __init__(self, job: Runnable, loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._job, name)
        if not inspect.iscoroutinefunction(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(found(*args, **kwargs), self._loop).result()

        return call


async def _in_thread(handler: Handler, job: Runnable, args: tuple[Any, ...]) -> Any:
    """A thread for each run: one that outlives its timeout must not keep others from starting."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, problem: BaseException | None) -> None:
        if not done.done():
            # Not as the future's exception: that cannot be a StopIteration.
            done.set_result((value, problem))

    def work() -> None:
        value, problem = None, None
        try:
            value = context.run(handler.call, ThreadJob(job, loop), *args)
        except Exception as raised:  # noqa: BLE001 - it is handed on
            problem = raised
        except BaseException as raised:  # noqa: BLE001 - as sys.exit() does: it ends a run, not the worker
            problem = HandlerStopped(f"the handler's thread was ended by {raised!r}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=work, name=f"toril-job-{job.id}", daemon=True).start()
    value, problem = await done
    if problem is not None:
        raise problem
    return value
