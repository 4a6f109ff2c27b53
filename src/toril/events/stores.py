"""What stores must be able to do.

``toril.stores.memory`` has one of each; ``toril.events.contracts`` has tests that any of them must pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from toril.aggregate import Aggregate
from toril.connection import Durability
from toril.connection.durability import Level
from toril.events.checkpoints import Checkpoint, CheckpointKey, Claim
from toril.events.errors import SecurityError, ValidationError
from toril.events.event import LARGEST_VERSION, AnyEvent, AnyNewEvent, Event, NewEvent
from toril.events.projection import Projection, ProjectionState
from toril.events.stream import EventStream

State = TypeVar("State")

LONGEST_IDEMPOTENCY_KEY = 256
"""Bytes of an idempotency key in UTF-8, at most."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of an append."""

    first_version: int
    last_version: int
    recorded_at: int
    """When the events were stored (ns)."""
    repeated: bool = False
    """Whether they had been stored before, under the same idempotency key; this is the answer given then."""


@dataclass(frozen=True, slots=True)
class NewAppend:
    """One of many appends: see :meth:`EventStore.append`."""

    aggregate: Aggregate
    events: Sequence[AnyNewEvent]
    expected_version: int | None = None
    idempotency_key: str | None = None


class EventStore(Protocol):
    """Keeps the events of aggregates, in order."""

    async def append(
        self,
        aggregate: Aggregate,
        events: Sequence[AnyNewEvent],
        *,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
        durability: Durability | Level | None = None,
    ) -> Appended:
        """Store events after those that the aggregate has: all of them, or none.

        ``idempotency_key``: for a key that the aggregate knows, nothing is stored, and the answer is that of
        the first time, whatever the events and the expected version. ``expected_version``: the version that
        the aggregate must be at, 0 for a new one; else :class:`VersionConflict`. ``durability``: how safe
        the events must be before this returns; None: as safe as the store is set to make them.
        """
        ...

    async def append_many(
        self, appends: Sequence[NewAppend], *, durability: Durability | Level | None = None
    ) -> list[Appended | Exception]:
        """Many appends, each by itself, in order where they are of one aggregate.

        For each, what became of it: the answer, or what :meth:`append` would have raised.
        """
        ...

    async def find_append(self, aggregate: Aggregate, idempotency_key: str) -> Appended | None:
        """What became of an append with this key (``repeated`` is true); None where there was none."""
        ...

    async def read(
        self, aggregate: Aggregate, from_version: int = 1, limit: int | None = None
    ) -> EventStream:
        """The events of an aggregate from a version on, ``limit`` at most. One without events has none."""
        ...


class AppendOptions(TypedDict, total=False):
    """What an append can be told besides its events."""

    expected_version: int | None
    idempotency_key: str | None
    durability: Durability | Level | None


class AppendsEach:
    """Many appends for a store that only knows single ones."""

    async def append_many(
        self, appends: Sequence[NewAppend], *, durability: Durability | Level | None = None
    ) -> list[Appended | Exception]:
        """As :meth:`EventStore.append_many`."""
        store: EventStore = self  # type: ignore[assignment]  # what extends this is one
        calls = [
            store.append(
                one.aggregate,
                one.events,
                expected_version=one.expected_version,
                idempotency_key=one.idempotency_key,
                durability=durability,
            )
            for one in appends
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        return [raise_unless_exception(one) for one in found]


def raise_unless_exception(outcome: Appended | BaseException) -> Appended | Exception:
    """What became of an append; what ends a task or a program is no such thing."""
    if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
        raise outcome
    return outcome


class WrappedEventStore(AppendsEach):
    """An event store before another one, which does what it is not made to do otherwise."""

    def __init__(self, store: EventStore) -> None:
        self._store = store

    async def append(
        self, aggregate: Aggregate, events: Sequence[AnyNewEvent], **how: Unpack[AppendOptions]
    ) -> Appended:
        """As :meth:`EventStore.append`."""
        return await self._store.append(aggregate, events, **how)

    async def find_append(self, aggregate: Aggregate, idempotency_key: str) -> Appended | None:
        """As :meth:`EventStore.find_append`."""
        return await self._store.find_append(aggregate, idempotency_key)

    async def read(
        self, aggregate: Aggregate, from_version: int = 1, limit: int | None = None
    ) -> EventStream:
        """As :meth:`EventStore.read`."""
        return await self._store.read(aggregate, from_version, limit)


class ProjectionStore(Protocol):
    """Keeps the states of projections, each with the version of the last event in it.

    A projection of another version has states of its own, so both can be there side by side.
    """

    async def load(
        self, projection: Projection[State], aggregate: Aggregate
    ) -> ProjectionState[State] | None:
        """The state of an aggregate; None where none is stored.

        A state that cannot be decoded is a :class:`StateUnreadable`, never None and never the initial state.
        """
        ...

    async def save(
        self,
        projection: Projection[State],
        aggregate: Aggregate,
        state: State,
        *,
        version: int,
        expected_version: int,
    ) -> None:
        """Store a state in which the events up to ``version`` are.

        Where the stored one is not at ``expected_version`` (0 where there is none), nothing is stored, and
        :class:`VersionConflict` is raised. A version below it is refused: states do not go back.
        """
        ...


class ProcessorCheckpointStore(Protocol):
    """Keeps how far a processor is with an aggregate. Each call is atomic.

    The rules are those of :mod:`toril.events.checkpoints`, which every store applies.
    """

    async def load(self, key: CheckpointKey) -> Checkpoint | None:
        """The checkpoint; None where the processor has not seen the aggregate."""
        ...

    async def begin(self, key: CheckpointKey, event: AnyEvent) -> Claim:
        """Whether the event can be processed now; if so, the checkpoint is ``pending`` from here on."""
        ...

    async def complete(self, key: CheckpointKey, event: AnyEvent) -> Checkpoint:
        """The event is ``processed``."""
        ...

    async def fail(self, key: CheckpointKey, event: AnyEvent, error: str, *, attempts: int) -> Checkpoint:
        """All attempts at the event are used up: it is ``failed``, and later events of the aggregate wait."""
        ...

    async def clear(self, key: CheckpointKey, version: int) -> Checkpoint:
        """The failed event with this version can be processed again: the checkpoint is ``pending``."""
        ...

    async def skip(self, key: CheckpointKey, version: int) -> Checkpoint:
        """The failed event with this version is left out: it counts as ``processed``."""
        ...

    async def get_failed(
        self, tenant: str, *, pipeline: str | None = None, processor: str | None = None, limit: int = 100
    ) -> Sequence[Checkpoint]:
        """A tenant's failed checkpoints, the oldest failure first."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a projection when an aggregate was at a version, as bytes."""

    aggregate: Aggregate
    projection: str
    projection_version: int
    version: int
    """The version of the last event in it."""
    state: bytes = field(repr=False)
    taken_at: int
    """When it was taken (ns)."""

    def __post_init__(self) -> None:
        check_version("version", self.version)


class SnapshotStore(Protocol):
    """Keeps snapshots."""

    async def save(self, snapshot: Snapshot) -> None:
        """Keep a snapshot. One of the same projection, its version, and event replaces the earlier one."""
        ...

    async def latest(
        self,
        aggregate: Aggregate,
        projection: str,
        projection_version: int,
        *,
        up_to: int | None = None,
    ) -> Snapshot | None:
        """The latest snapshot of a projection in this version of it, at version ``up_to`` or before."""
        ...


class EventPublisher(Protocol):
    """Tells others of stored events. What it cannot tell is stored all the same."""

    async def publish(self, tenant: str, events: Sequence[AnyEvent]) -> None:
        """Tell of events of one tenant. With one of another tenant among them, none is told."""
        ...


# ---------------------------------------------------------------------------- checks that all stores share


def check_version(name: str, value: object, lowest: int = 1) -> None:
    """Refuse what is not a version from ``lowest`` on."""
    if type(value) is not int or not lowest <= value <= LARGEST_VERSION:
        raise ValidationError(name, value, f"a whole number from {lowest} to {LARGEST_VERSION}")


def check_idempotency_key(key: object) -> str:
    """The key itself, or a :class:`ValidationError` that states the rule."""
    if isinstance(key, str) and key.isprintable() and 0 < len(key.encode()) <= LONGEST_IDEMPOTENCY_KEY:
        return key
    rule = f"1 to {LONGEST_IDEMPOTENCY_KEY} bytes of printable text"
    raise ValidationError("idempotency key", key, rule)


def check_append(
    aggregate: Aggregate,
    events: Sequence[Any],
    expected_version: int | None,
    idempotency_key: str | None,
) -> None:
    """What every store refuses before it appends."""
    if not isinstance(events, Sequence) or not events:
        raise ValidationError("events", events, "a sequence of at least one NewEvent")
    seen: set[str] = set()
    for index, event in enumerate(events):
        if isinstance(event, Event) and event.tenant != aggregate.tenant:
            raise SecurityError(f"event {index}", index)
        if not isinstance(event, NewEvent):
            raise ValidationError(f"event {index}", event, "it must be a NewEvent, which is not stored yet")
        if event.id in seen:
            raise ValidationError(f"event {index}", event.id, "an event before it has the same id")
        seen.add(event.id)
    if expected_version is not None:
        check_version("expected version", expected_version, 0)
    if idempotency_key is not None:
        check_idempotency_key(idempotency_key)


def check_read(from_version: int, limit: int | None) -> None:
    """What every store refuses before it reads."""
    check_version("from version", from_version)
    if limit is not None:
        check_version("limit", limit)
