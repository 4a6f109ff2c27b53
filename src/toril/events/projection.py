"""A projection: a pure value made of the events of one aggregate.

``initial`` and ``apply`` say what the state is; ``merge``, where there is one, joins the states of two parts.
No I/O, no clock, no chance: live workers, the memory stores and a batch replay run the same projection, and
must get the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from toril.aggregate import Aggregate
from toril.events.errors import ConfigurationError, ProjectionError, StateUnreadable
from toril.events.event import LARGEST_VERSION, AnyEvent, check_event_type
from toril.events.tenancy import check_aggregate_of

State = TypeVar("State")

_encoder = msgspec.json.Encoder(order="deterministic")


class Projection(Protocol[State]):
    """What every projection has, declared or written in Python."""

    @property
    def name(self) -> str:
        """What it is called; with the version, what its states are stored under."""
        ...

    @property
    def version(self) -> int:
        """From 1. Raise it when the meaning or the form of the state changes: states are built anew."""
        ...

    @property
    def event_types(self) -> frozenset[str] | None:
        """The types of events it is made of; None for all."""
        ...

    @property
    def mergeable(self) -> bool:
        """Whether it has a :meth:`merge`."""
        ...

    def initial(self) -> State:
        """The state before the first event."""
        ...

    def apply(self, state: State, event: AnyEvent) -> State:
        """The state after one more event. The state given is left as it is."""
        ...

    def merge(self, one: State, other: State) -> State:
        """The state of all events of which the two are made. Each event may be in one of them only."""
        ...

    def encode(self, state: State) -> bytes:
        """The state as it is stored, with the projection's name and version. Equal states, equal bytes."""
        ...

    def decode(self, raw: bytes) -> State:
        """From what :meth:`encode` made; :class:`StateUnreadable` for anything else."""
        ...


class FoldProjection(ABC, Generic[State]):
    """A projection written in Python.

    ::

        class Balance(FoldProjection[int]):
            name = "balance"
            state_type = int
            event_types = frozenset({"deposited", "withdrawn"})

            def initial(self) -> int:
                return 0

            def apply(self, state: int, event: AnyEvent) -> int:
                return state + event.data["amount"]

    Override ``merge`` where the states of two parts can be joined.
    """

    name: str
    version: int = 1
    state_type: type[State]
    """What a state is read back as: anything that msgspec can decode."""
    event_types: frozenset[str] | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls) or "version" in vars(cls):
            check_declaration(cls, getattr(cls, "name", "unnamed"), cls.version)
        cls.event_types = event_type_set(cls.event_types)

    @property
    def mergeable(self) -> bool:
        """Whether ``merge`` is written."""
        return type(self).merge is not FoldProjection.merge

    @abstractmethod
    def initial(self) -> State:
        """The state before the first event."""

    @abstractmethod
    def apply(self, state: State, event: AnyEvent) -> State:
        """The state after one more event. Leave the state given as it is."""

    def merge(self, one: State, other: State) -> State:  # noqa: ARG002 - to be overridden
        """The state of all events of which the two are made."""
        raise ProjectionError(f"the projection {self.name} has no merge", retryable=False)

    def encode(self, state: State) -> bytes:
        """The state as it is stored, with the projection's name and version."""
        return wrap_state(self.name, self.version, state)

    def decode(self, raw: bytes) -> State:
        """From what :meth:`encode` made; :class:`StateUnreadable` for anything else."""
        made: State = unwrap_state(self.name, self.version, raw, self.state_type)
        return made


AnyProjection = Projection[Any]
"""A projection whatever its state is."""


@dataclass(frozen=True, slots=True)
class ProjectionState(Generic[State]):
    """A projection's state, and which of the aggregate's events are in it: those up to ``version``."""

    state: State
    version: int


class _StoredState(msgspec.Struct, forbid_unknown_fields=True):
    projection: str
    version: int
    state: msgspec.Raw


def wrap_state(name: str, version: int, state: Any) -> bytes:
    """A state as it is stored, with the name and version of its projection."""
    try:
        return _encoder.encode(_StoredState(name, version, msgspec.Raw(_encoder.encode(state))))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise ProjectionError(
            f"a state of {name} version {version} cannot be stored: {problem}", retryable=False
        ) from None


def unwrap_state(name: str, version: int, raw: bytes, state_type: Any) -> Any:
    """The state out of its stored form; an error where it is anything else."""
    try:
        stored = msgspec.json.decode(raw, type=_StoredState)
    except (TypeError, msgspec.MsgspecError) as problem:
        raise StateUnreadable(f"a stored state of {name} cannot be read: {problem}") from None
    if (stored.projection, stored.version) != (name, version):
        raise StateUnreadable(
            f"the stored state is of {stored.projection} version {stored.version}, "
            f"and cannot be read as {name} version {version}"
        )
    try:
        return msgspec.json.decode(stored.state, type=state_type)
    except msgspec.MsgspecError as problem:
        raise StateUnreadable(
            f"a stored state of {name} version {version} cannot be read: {problem}; "
            "where the form of the state was changed, raise the projection's version"
        ) from None


def wants(event_types: frozenset[str] | None, event: AnyEvent) -> bool:
    """Whether an event is of one of these types; None is all types."""
    return event_types is None or event.type in event_types


def fold(projection: Projection[State], events: Iterable[AnyEvent], state: State | None = None) -> State:
    """The state after these events, from the initial state or from another one.

    All events must be of one aggregate. Their order is the caller's: take an :class:`EventStream` for the
    order in which they were stored. Events of other types than the projection's are passed over.
    """
    made = projection.initial() if state is None else state
    types, apply = projection.event_types, projection.apply
    aggregate: Aggregate | None = None
    for index, event in enumerate(events):
        if aggregate is None:
            aggregate = event.aggregate
        check_aggregate_of(event, aggregate, index)
        if types is None or event.type in types:
            made = apply(made, event)
    return made


def check_declaration(cls: type, name: object, version: object) -> None:
    """Refuse a projection whose name or version cannot be part of a key."""
    if not isinstance(name, str) or not name or ":" in name or not name.isprintable() or len(name) > 128:
        raise ConfigurationError(
            f"{cls.__name__}.name {name!r} must be 1 to 128 printable characters without ':'"
        )
    if type(version) is not int or not 1 <= version <= LARGEST_VERSION:
        raise ConfigurationError(f"{cls.__name__}.version {version!r} must be a whole number from 1")


def event_type_set(types: str | Iterable[str] | None) -> frozenset[str] | None:
    """Event types as a set, each checked; None for all types."""
    if types is None:
        return None
    made = frozenset({types} if isinstance(types, str) else types)
    if not made:
        raise ConfigurationError("the event types must name at least one type, or be None for all")
    for name in made:
        check_event_type(name)
    return made
