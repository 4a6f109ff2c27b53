"""Commands: what somebody wants to happen, and the decision which events come of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from toril.aggregate import Aggregate
from toril.connection import Durability
from toril.connection.durability import Level
from toril.events.declared import snake_case
from toril.events.errors import ConfigurationError, SecurityError, ValidationError, VersionConflict
from toril.events.event import AnyNewEvent, NewEvent
from toril.events.handlers import call
from toril.events.projection import AnyProjection
from toril.events.snapshots import state_at
from toril.events.stores import Appended, EventStore, NewAppend, SnapshotStore
from toril.handler import fit

Payload = TypeVar("Payload")

Attribute = str | int | float | bool
"""The value of an attribute of a trace's span."""


@dataclass(frozen=True, slots=True)
class Command(Generic[Payload]):
    """What somebody wants to happen to an aggregate."""

    aggregate: Aggregate
    data: Payload
    """What there is to say about it, as the type that the handler's schema asks for."""
    state: Any = None
    """The state of the aggregate, of the handler's ``decides_on``; None without one."""
    version: int = 0
    """The version of the last event in that state."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """``traceparent``, ``causation_id``, ``correlation_id``, and whatever else."""

    @property
    def tenant(self) -> str:
        """Who wants it."""
        return self.aggregate.tenant


class CommandHandler(ABC, Generic[Payload]):
    """Decides which events come of a command.

    ::

        class RecordSpanCommand(CommandHandler[Span]):
            @classmethod
            def get_aggregate_id(cls, payload: Span) -> str:
                return payload.trace_id

            async def handle(self, command: Command[Span]) -> list[NewEvent]:
                return [NewEvent(type="lw.obs.span_ingestion.recorded", data=command.data)]

    ``handle`` is asynchronous, or a plain function, which then runs in a thread. It may run more than once
    for one command, so it should have no effects outside: those belong into event handlers.
    """

    schema: ClassVar[Any] = None
    """The type of payloads: by default that in brackets, ``CommandHandler[Span]``; None for any data."""
    dispatcher_name: ClassVar[str] = ""
    """What the command is called: by default the class's name, ``record_span`` for ``RecordSpanCommand``."""
    delay: ClassVar[timedelta | int | None] = None
    """How long a sent command waits before it runs: a timedelta, or whole milliseconds."""
    concurrency: ClassVar[int | None] = None
    """How many sent commands run at once."""
    decides_on: ClassVar[AnyProjection | None] = None
    """The projection whose state the handler wants to see before it decides, as ``command.state``."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "schema" not in vars(cls):
            cls.schema = _schema_of(cls) or cls.schema
        if "dispatcher_name" not in vars(cls):
            cls.dispatcher_name = dispatcher_name_of(cls)
        if not cls.dispatcher_name.isidentifier() or cls.dispatcher_name.startswith("_"):
            raise ConfigurationError(
                f"{cls.__name__}.dispatcher_name {cls.dispatcher_name!r} must be a name like 'record_span'"
            )
        delay = cls.delay
        whole = isinstance(delay, int) and not isinstance(delay, bool) and delay >= 0
        if delay is not None and not whole and not (isinstance(delay, timedelta) and delay >= timedelta()):
            raise ConfigurationError(
                f"{cls.__name__}.delay {delay!r} must be a timedelta, or whole ms from 0"
            )
        if cls.concurrency is not None and (type(cls.concurrency) is not int or cls.concurrency < 1):
            raise ConfigurationError(f"{cls.__name__}.concurrency {cls.concurrency!r} must be 1 or more")

    @classmethod
    @abstractmethod
    def get_aggregate_id(cls, payload: Payload) -> str:
        """Which aggregate the command is for."""

    @classmethod
    def get_tenant(cls, payload: Payload) -> str | None:
        """The tenant that a payload names, if it names one: it must be the one for whom the command runs.

        By default what it has under ``tenant`` or ``tenant_id``.
        """
        for name in ("tenant", "tenant_id", "tenantId"):
            named = payload.get(name) if isinstance(payload, Mapping) else getattr(payload, name, None)
            if named is not None:
                return str(named)
        return None

    @classmethod
    def prepare(cls, tenant: str, payload: Payload) -> Payload:  # noqa: ARG003 - to be overridden
        """The payload as it may be kept: looked at first, before it is decided on and before it is sent.

        What must not be stored anywhere is taken out here. It runs where the command is sent and again where
        it is executed, so a second time it must change nothing. An exception refuses the command.
        """
        return payload

    @classmethod
    def make_job_id(cls, payload: Payload) -> str | None:  # noqa: ARG003 - to be overridden
        """Sent commands with one id stand for one another: the last one counts. None for an id of its own."""
        return None

    @classmethod
    def make_idempotency_key(cls, tenant: str, payload: Payload) -> str | None:  # noqa: ARG003
        """What tells that two commands are one and the same, whoever sends them: only the first is stored.

        None: two commands are two, unless the caller says otherwise.
        """
        return None

    @classmethod
    def span_attributes(cls, payload: Payload) -> Mapping[str, Attribute]:  # noqa: ARG003 - to be overridden
        """What a trace should say about the command."""
        return {}

    @abstractmethod
    def handle(self, command: Command[Payload]) -> Sequence[AnyNewEvent] | Awaitable[Sequence[AnyNewEvent]]:
        """The events that come of the command; none where nothing happens. An exception refuses it."""

    @classmethod
    def command(
        cls, tenant: str, aggregate_type: str, payload: Any, *, metadata: Mapping[str, Any] | None = None
    ) -> Command[Payload]:
        """A command of a payload, checked: its form, its aggregate, its tenant."""
        data: Payload = fit(cls.schema, payload)
        named = cls.get_tenant(data)
        if named is not None and named != tenant:
            raise SecurityError("the command's payload")
        data = cls.prepare(tenant, data)
        aggregate = Aggregate(tenant, aggregate_type, cls.get_aggregate_id(data))
        return Command(aggregate, data, metadata={} if metadata is None else dict(metadata))


async def execute(
    handler: CommandHandler[Payload],
    store: EventStore,
    command: Command[Payload],
    *,
    idempotency_key: str | None = None,
    durability: Durability | Level | None = None,
    attempts: int = 5,
    snapshots: SnapshotStore | None = None,
) -> Appended | None:
    """Decide on a command and store the events, with its metadata; None where nothing happens.

    With ``decides_on``, the events are stored only while the aggregate is as the handler saw it. Else it is
    read again and decided again, ``attempts`` times in all before :class:`VersionConflict` is raised. A
    command whose ``idempotency_key`` is known is not decided again: the first answer is given.
    """
    if type(attempts) is not int or attempts < 1:
        raise ValidationError("attempts", attempts, "a whole number from 1")
    for left in range(attempts, 0, -1):
        if idempotency_key is not None:
            before = await store.find_append(command.aggregate, idempotency_key)
            if before is not None:
                return before
        seen = command
        expected: int | None = None
        if handler.decides_on is not None:
            at = await state_at(store, handler.decides_on, command.aggregate, snapshots=snapshots)
            seen = Command(command.aggregate, command.data, at.state, at.version, command.metadata)
            expected = at.version
        events = [_with_metadata(event, command) for event in await call(handler.handle, seen)]
        if not events:
            return None
        try:
            return await store.append(
                command.aggregate,
                events,
                expected_version=expected,
                idempotency_key=idempotency_key,
                durability=durability,
            )
        except VersionConflict:
            if left == 1:
                raise
    raise AssertionError("unreachable")


async def execute_many(
    handler: CommandHandler[Payload],
    store: EventStore,
    commands: Sequence[tuple[Command[Payload], str | None]],
    *,
    durability: Durability | Level | None = None,
) -> list[Appended | Exception | None]:
    """Decide on many commands, each with its idempotency key, and store their events in one go.

    Each is by itself: for each, what :func:`execute` would have returned or raised. For handlers that decide
    on no state; a command whose key is known may be decided again, but nothing of it is stored.
    """
    if handler.decides_on is not None:
        name = type(handler).__name__
        raise ConfigurationError(f"{name} decides on a state: execute its commands one by one")
    outcomes: list[Appended | Exception | None] = [None] * len(commands)
    places: list[int] = []
    appends: list[NewAppend] = []
    for place, (command, key) in enumerate(commands):
        try:
            events = [_with_metadata(event, command) for event in await call(handler.handle, command)]
        except Exception as problem:  # noqa: BLE001 - it is the outcome of this command
            outcomes[place] = problem
            continue
        if events:
            places.append(place)
            appends.append(NewAppend(command.aggregate, events, None, key))
    for place, outcome in zip(places, await store.append_many(appends, durability=durability), strict=True):
        outcomes[place] = outcome
    return outcomes


def _with_metadata(event: AnyNewEvent, command: Command[Any]) -> AnyNewEvent:
    """The event with the command's metadata; its own goes before."""
    if not command.metadata or not isinstance(event, NewEvent):
        return event
    return msgspec.structs.replace(event, metadata={**command.metadata, **event.metadata})


def dispatcher_name_of(cls: type) -> str:
    """``record_span`` for ``RecordSpanCommand``, ``RecordSpanCommandHandler`` and ``RecordSpan``."""
    name = cls.__name__
    for ending in ("CommandHandler", "Command", "Handler"):
        if name.endswith(ending) and name != ending:
            name = name.removesuffix(ending)
            break
    return snake_case(name)


def _schema_of(cls: type) -> Any:
    """What stands in the brackets of ``CommandHandler[…]``."""
    for base in getattr(cls, "__orig_bases__", ()):
        for argument in get_args(base):
            if argument is not Any and not isinstance(argument, TypeVar):
                return argument
    return None
