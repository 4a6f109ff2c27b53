"""A process of its own for handlers that compute: it can be killed at any time."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

from toril.errors import TorilError
from toril.handler.errors import BudgetExceeded, PolicyDenied, TransientError, UnrecoverableError

_context = multiprocessing.get_context("spawn")

_STATED = (BudgetExceeded, PolicyDenied, UnrecoverableError, TransientError)
"""Failures whose kind the worker must know, the narrow ones first."""


class HandlerFailed(TorilError):
    """A handler in a process has raised. ``trace`` is its own."""

    def __init__(self, reason: str, trace: str) -> None:
        super().__init__(reason)
        self.trace = trace


class HandlerDied(TorilError):
    """The process of a handler is gone: killed, out of memory, or it crashed."""


class RemoteJob:
    """What a handler in a process sees of its job."""

    def __init__(
        self, job_id: str, name: str, data: Any, attempts_made: int, tell: Callable[[Any], None]
    ) -> None:
        self.id = job_id
        self.name = name
        self.data = data
        self.attempts_made = attempts_made
        self._tell = tell

    def update_progress(self, progress: Any) -> None:
        """Tell how far it is."""
        self._tell(("progress", progress))

    def log(self, line: str) -> None:
        """Add a line to its log."""
        self._tell(("log", line))


class Told(NamedTuple):
    """What the process says while it works: ``progress`` or ``log``, and the value."""

    what: str
    value: Any


class HandlerProcess:
    """One process that runs one job at a time, and stays for the next one."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Pipe | None = None

    async def run(
        self,
        function: Callable[..., Any],
        job: tuple[str, str, Any, int],
        args: tuple[Any, ...],
        told: Callable[[Told], Any],
    ) -> Any:
        """Run a handler; what it returns. When this is stopped before, the process is killed."""
        if self._process is None or not self._process.is_alive():
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send((function.__module__, function.__qualname__, job, args))
            what, value = await self._receive()
            while what not in ("done", "failed"):
                await told(Told(what, value))
                what, value = await self._receive()
        except BaseException:
            self.kill()  # what it would still say is not the result of its next job
            raise
        if what == "done":
            return value
        raise _failure(*value)

    async def _receive(self) -> Any:
        """The next message. Waits on the pipe's descriptor, so it can be cancelled."""
        assert self._pipe is not None
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._pipe.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._pipe.fileno())
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(1)
            code = self._process.exitcode
            self.kill()
            raise HandlerDied(f"the handler's process is gone (exit code {code})") from None

    def _start(self) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_serve, args=(theirs,), daemon=True, name="toril-handler")
        self._process.start()
        theirs.close()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def _failure(reason: str, trace: str, kind: int | None, retry_after: float | None) -> TorilError:
    """What a handler in a process has raised, as this process raises it."""
    if kind is None:
        return HandlerFailed(reason, trace)
    stated = _STATED[kind]
    return TransientError(reason, retry_after) if stated is TransientError else stated(reason)


def _leave_with_parent() -> None:
    """End this process when its worker's is gone, however that ended: nobody would stop it otherwise."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _serve(pipe: Pipe) -> None:
    """The other side: run what is asked for, until the pipe is closed."""
    threading.Thread(target=_leave_with_parent, name="toril-parent", daemon=True).start()
    while True:
        try:
            module, name, job, args = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            function: Any = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            job_id, job_name, data, attempts_made = job
            remote = RemoteJob(job_id, job_name, data, attempts_made, pipe.send)
            answer: Any = ("done", function(remote, *args))
        except Exception as problem:  # noqa: BLE001 - whatever a handler raises is its job's failure
            kind = next((at for at, stated in enumerate(_STATED) if isinstance(problem, stated)), None)
            after = getattr(problem, "retry_after", None)
            answer = ("failed", (str(problem), traceback.format_exc(), kind, after))
        try:
            pipe.send(answer)
        except Exception as problem:  # noqa: BLE001 - a result that cannot be sent
            reason = f"the result cannot be handed over: {problem}"
            pipe.send(("failed", (reason, "", _STATED.index(UnrecoverableError), None)))
