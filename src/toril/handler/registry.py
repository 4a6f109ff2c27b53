"""The handlers of a worker, and those who want to hear what happens in it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

from toril.errors import InvalidValue
from toril.handler.handler import Handler

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Handlers:
    """What workers of every kind have in common: ``@worker.handler(…)`` and ``@worker.on(…)``."""

    EVENTS: ClassVar[tuple[str, ...]]
    """What can be listened to."""

    def __init__(self, queue: str, log: logging.Logger) -> None:
        self._queue_name = queue
        self._log = log
        self._handlers: dict[str, Handler] = {}
        self._listeners: dict[str, list[Callable[..., Any]]] = {}

    def handler(
        self, name: str = "*", *, in_process: bool = False, timeout: float | None = None
    ) -> Decorator:
        """Say which function works on jobs of a name; ``*`` for all names without one of their own.

        ``timeout``: seconds after which a run is stopped and has failed. ``in_process``: run it in a process
        of its own, where also an endless loop can be stopped.
        """
        if name in self._handlers:
            raise InvalidValue("handler", name, "there is one for that name already")

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self._handlers[name] = Handler.of(function, in_process=in_process, timeout=timeout)
            return function

        return add

    def handler_for(self, name: str) -> Handler | None:
        """The handler of jobs of a name."""
        return self._handlers.get(name) or self._handlers.get("*")

    def on(self, event: str) -> Decorator:
        """Call a function when something happens; see the worker's own description for what can."""
        if event not in self.EVENTS:
            raise InvalidValue("event", event, f"one of {', '.join(self.EVENTS)}")

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self._listeners.setdefault(event, []).append(function)
            return function

        return add

    def emit(self, event: str, *args: Any) -> None:
        """Tell those who listen."""
        for listener in self._listeners.get(event, ()):
            try:
                listener(*args)
            except Exception:  # noqa: BLE001 - a listener's failure is not the worker's
                self._log.exception("a listener for %r of queue %s has failed", event, self._queue_name)

    def report(self, problem: BaseException) -> None:
        """Log a problem of the worker's, and tell those who listen."""
        self._log.warning("queue %s: %s", self._queue_name, problem)
        self.emit("error", problem)
