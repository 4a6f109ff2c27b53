"""How a user writes a handler: one form for jobs, stream jobs and events.

A handler is a function of what is to be done, or of that and its data::

    async def send(job): ...
    async def send(job, email: Email): ...      # Email: dataclass, msgspec struct, TypedDict, pydantic model

It may be asynchronous (runs in the event loop), plain (runs in a thread), or made for a process of its own
(``in_process=True``), where it can be stopped at any time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec

from toril.errors import InvalidValue, TorilError


class UnfitPayload(TorilError):
    """Data that does not fit the type its handler declares. Trying again would not help."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A function, and how it is to be run."""

    call: Callable[..., Any]
    is_async: bool
    in_process: bool
    timeout: float | None
    """Seconds after which a run is stopped and has failed."""
    takes_data: bool
    schema: Any
    """The type of the data; None for data as it is."""

    @classmethod
    def of(
        cls, function: Callable[..., Any], *, in_process: bool = False, timeout: float | None = None
    ) -> Handler:
        """Look at a function, and refuse one that could not be called."""
        if not callable(function):
            raise InvalidValue("handler", function, "it must be a function")
        if timeout is not None and not timeout > 0:
            raise InvalidValue("timeout", timeout, "a number of seconds above 0")
        is_async = inspect.iscoroutinefunction(function)
        if in_process and is_async:
            raise InvalidValue("handler", function, "one that runs in a process must not be asynchronous")
        if in_process and "<locals>" in getattr(function, "__qualname__", ""):
            raise InvalidValue(
                "handler", function, "one that runs in a process must stand at the top of a module"
            )
        positional = [
            part
            for part in inspect.signature(function).parameters.values()
            if part.kind in (part.POSITIONAL_ONLY, part.POSITIONAL_OR_KEYWORD)
        ]
        if not 1 <= len(positional) <= 2:
            raise InvalidValue("handler", function, "it takes the job, or the job and its data")
        schema = None
        if len(positional) == 2:
            schema = get_type_hints(function).get(positional[1].name)
            schema = None if schema is Any else schema
        return cls(function, is_async, in_process, timeout, len(positional) == 2, schema)

    def payload(self, data: Any) -> Any:
        """The data as the handler wants it; an :class:`UnfitPayload` says what does not fit."""
        return fit(self.schema, data)


def fit(schema: Any, data: Any) -> Any:
    """The data as a type (None for as it is); an :class:`UnfitPayload` says what does not fit."""
    if schema is None:
        return data
    try:
        if hasattr(schema, "model_validate"):  # pydantic, which is not ours to import
            return schema.model_validate(data)
        return msgspec.convert(data, schema)
    except (msgspec.ValidationError, ValueError) as problem:
        name = getattr(schema, "__name__", str(schema))
        raise UnfitPayload(f"the data does not fit {name}: {_misfits(problem)}") from None


def _misfits(problem: Exception) -> str:
    """What does not fit, and where; of pydantic, which writes a page about it, as msgspec says it."""
    errors = getattr(problem, "errors", None)
    if not callable(errors):
        return str(problem)
    return "; ".join(f"{each['msg']} - at `{'.'.join(map(str, ('$', *each['loc'])))}`" for each in errors())
