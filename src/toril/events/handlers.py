"""Event handlers: what is done in the world outside because of an event."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

from toril.aggregate import check_tenant
from toril.events.errors import ConfigurationError, ValidationError
from toril.events.event import AnyEvent, Event
from toril.events.projection import event_type_set, wants
from toril.events.tenancy import check_tenant_of

Data = TypeVar("Data")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContext:
    """What a handler knows besides the event."""

    tenant: str = field(repr=False)
    """The tenant for whom it runs; events of others are refused."""
    pipeline: str
    processor: str
    """The name under which the handler is registered."""
    attempt: int = 1
    """Which attempt this is, from 1."""
    is_replay: bool = False
    """Whether the event was handled before and is played again: effects outside may have to be left out."""

    def __post_init__(self) -> None:
        check_tenant(self.tenant)
        if type(self.attempt) is not int or self.attempt < 1:
            raise ValidationError("attempt", self.attempt, "a whole number from 1")

    def idempotency_key(self, event: AnyEvent) -> str:
        """The same for each attempt at this event: give it to whatever must not act twice."""
        return f"{event.id}:{self.processor}"


class EventHandler(ABC, Generic[Data]):
    """Reacts to events, with effects outside. It may run more than once for one event.

    ``handle`` is asynchronous, or a plain function, which then runs in a thread.
    """

    event_types: ClassVar[frozenset[str] | None] = None
    """The types of events it is called for; None for all."""
    depends_on: ClassVar[tuple[str, ...]] = ()
    """Handlers that must be done with an event before it comes here, by name."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.event_types = event_type_set(cls.event_types)
        names: object = cls.depends_on
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name for name in names):
            raise ConfigurationError(f"{cls.__name__}.depends_on {names!r} must be a tuple of names")
        cls.depends_on = tuple(names)

    @abstractmethod
    def handle(self, event: Event[Data], context: HandlerContext) -> Awaitable[None] | None:
        """Do what the event asks for. An exception has it tried again, unless it says otherwise."""


class BatchEventHandler(EventHandler[Data]):
    """Takes the events of an aggregate that wait, together and in order: for what is cheaper by the dozen.

    They are done when ``handle_many`` returns. Where it fails, they are handled one by one, so that only the
    one that fails waits, and those after it.
    """

    @abstractmethod
    def handle_many(self, events: Sequence[Event[Data]], context: HandlerContext) -> Awaitable[None] | None:
        """Do what the events ask for. They are of one aggregate, in order, and at least one."""

    async def handle(self, event: Event[Data], context: HandlerContext) -> None:
        """One event, by itself."""
        await call(self.handle_many, [event], context)


async def handle_event(handler: EventHandler[Any], event: AnyEvent, context: HandlerContext) -> bool:
    """Run a handler for an event, if it wants such events; whether it did.

    An event of another tenant than the context's is refused.
    """
    check_tenant_of(event, context.tenant)
    if not wants(handler.event_types, event):
        return False
    await call(handler.handle, event, context)
    return True


@lru_cache(1024)
def _is_asynchronous(function: Callable[..., Any]) -> bool:
    """Looked at once: that takes longer than many a handler."""
    return inspect.iscoroutinefunction(function)


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function: awaited where it is asynchronous, from a thread where it is not."""
    try:
        asynchronous = _is_asynchronous(getattr(function, "__func__", function))
    except TypeError:  # nothing that could be remembered
        asynchronous = inspect.iscoroutinefunction(function)
    if asynchronous:
        return await function(*arguments)
    made = await asyncio.to_thread(function, *arguments)
    return await made if inspect.isawaitable(made) else made
