"""All stores in memory: for tests, and for programs whose events may end with them.

They keep bytes, as every other store does, so that what comes out is what would come out of those. Nothing is
awaited inside of a call, so each call is atomic within its event loop; they are not made for several threads.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from toril.aggregate import Aggregate, check_tenant
from toril.connection import Durability, DurabilityRefused
from toril.connection.durability import Level
from toril.events import checkpoints
from toril.events.checkpoints import Checkpoint, CheckpointKey, CheckpointStatus, Claim
from toril.events.errors import ValidationError, VersionConflict
from toril.events.event import AnyEvent, AnyNewEvent, NewEvent
from toril.events.identity import Clock, now
from toril.events.projection import Projection, ProjectionState
from toril.events.stores import (
    Appended,
    AppendsEach,
    Snapshot,
    check_append,
    check_idempotency_key,
    check_read,
    check_version,
)
from toril.events.stream import EventStream
from toril.events.tenancy import check_one_tenant

State = TypeVar("State")


@dataclass(slots=True)
class _Kept:
    """What one aggregate has: events as they were given, when each was stored, and answers by key."""

    events: list[tuple[bytes, int]] = field(default_factory=list)
    answers: dict[str, Appended] = field(default_factory=dict)


class MemoryEventStore(AppendsEach):
    """An :class:`~toril.events.EventStore` in memory."""

    def __init__(self, clock: Clock = now) -> None:
        self._clock = clock
        self._kept: dict[Aggregate, _Kept] = {}

    async def append(
        self,
        aggregate: Aggregate,
        events: Sequence[AnyNewEvent],
        *,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
        durability: Durability | Level | None = None,
    ) -> Appended:
        """As :meth:`EventStore.append`. Memory can be no more durable than ``memory``."""
        check_append(aggregate, events, expected_version, idempotency_key)
        wanted = Durability.of(durability or "memory")
        if wanted.level != "memory":
            raise DurabilityRefused(f"events in memory cannot be as durable as {wanted.level}")
        kept = self._kept.get(aggregate, _Kept())
        if idempotency_key is not None and idempotency_key in kept.answers:
            return replace(kept.answers[idempotency_key], repeated=True)
        version = len(kept.events)
        if expected_version is not None and expected_version != version:
            raise VersionConflict(expected_version, version)
        recorded_at = self._clock()
        stored = [(event.to_bytes(), recorded_at) for event in events]
        kept.events.extend(stored)
        appended = Appended(version + 1, version + len(stored), recorded_at)
        if idempotency_key is not None:
            kept.answers[idempotency_key] = appended
        self._kept[aggregate] = kept
        return appended

    async def find_append(self, aggregate: Aggregate, idempotency_key: str) -> Appended | None:
        """As :meth:`EventStore.find_append`."""
        check_idempotency_key(idempotency_key)
        kept = self._kept.get(aggregate)
        found = None if kept is None else kept.answers.get(idempotency_key)
        return None if found is None else replace(found, repeated=True)

    async def read(
        self, aggregate: Aggregate, from_version: int = 1, limit: int | None = None
    ) -> EventStream:
        """As :meth:`EventStore.read`."""
        check_read(from_version, limit)
        kept = self._kept.get(aggregate)
        first = from_version - 1
        chosen = [] if kept is None else kept.events[first : None if limit is None else first + limit]
        events = tuple(
            NewEvent.from_bytes(raw).recorded(aggregate, version=version, recorded_at=recorded_at)
            for version, (raw, recorded_at) in enumerate(chosen, from_version)
        )
        return EventStream(aggregate, events, first)


class MemoryProjectionStore:
    """A :class:`~toril.events.ProjectionStore` in memory."""

    def __init__(self) -> None:
        self._states: dict[tuple[Aggregate, str, int], tuple[bytes, int]] = {}

    async def load(
        self, projection: Projection[State], aggregate: Aggregate
    ) -> ProjectionState[State] | None:
        """As :meth:`ProjectionStore.load`."""
        found = self._states.get((aggregate, projection.name, projection.version))
        return None if found is None else ProjectionState(projection.decode(found[0]), found[1])

    async def save(
        self,
        projection: Projection[State],
        aggregate: Aggregate,
        state: State,
        *,
        version: int,
        expected_version: int,
    ) -> None:
        """As :meth:`ProjectionStore.save`."""
        check_version("version", version)
        check_version("expected version", expected_version, 0)
        if version < expected_version:
            raise ValidationError("version", version, f"not below {expected_version}: states do not go back")
        place = (aggregate, projection.name, projection.version)
        actual = self._states[place][1] if place in self._states else 0
        if actual != expected_version:
            raise VersionConflict(expected_version, actual)
        self._states[place] = (projection.encode(state), version)


class MemoryCheckpointStore:
    """A :class:`~toril.events.ProcessorCheckpointStore` in memory."""

    def __init__(self, clock: Clock = now) -> None:
        self._clock = clock
        self._checkpoints: dict[CheckpointKey, Checkpoint] = {}

    async def load(self, key: CheckpointKey) -> Checkpoint | None:
        """As :meth:`ProcessorCheckpointStore.load`."""
        return self._checkpoints.get(key)

    async def begin(self, key: CheckpointKey, event: AnyEvent) -> Claim:
        """As :meth:`ProcessorCheckpointStore.begin`."""
        current = self._checkpoints.get(key)
        claim = checkpoints.claim(current, key, event)
        if claim is Claim.RUN:
            self._checkpoints[key] = checkpoints.begun(current, key, event, self._clock())
        return claim

    async def complete(self, key: CheckpointKey, event: AnyEvent) -> Checkpoint:
        """As :meth:`ProcessorCheckpointStore.complete`."""
        current = self._checkpoints.get(key)
        made = self._checkpoints[key] = checkpoints.completed(current, key, event, self._clock())
        return made

    async def fail(self, key: CheckpointKey, event: AnyEvent, error: str, *, attempts: int) -> Checkpoint:
        """As :meth:`ProcessorCheckpointStore.fail`."""
        current = self._checkpoints.get(key)
        made = checkpoints.failed(current, key, event, self._clock(), error, attempts)
        self._checkpoints[key] = made
        return made

    async def clear(self, key: CheckpointKey, version: int) -> Checkpoint:
        """As :meth:`ProcessorCheckpointStore.clear`."""
        current = self._checkpoints.get(key)
        made = self._checkpoints[key] = checkpoints.cleared(current, version, self._clock())
        return made

    async def skip(self, key: CheckpointKey, version: int) -> Checkpoint:
        """As :meth:`ProcessorCheckpointStore.skip`."""
        current = self._checkpoints.get(key)
        made = self._checkpoints[key] = checkpoints.skipped(current, version, self._clock())
        return made

    async def get_failed(
        self, tenant: str, *, pipeline: str | None = None, processor: str | None = None, limit: int = 100
    ) -> Sequence[Checkpoint]:
        """As :meth:`ProcessorCheckpointStore.get_failed`."""
        check_tenant(tenant)
        check_version("limit", limit)
        found = [
            checkpoint
            for key, checkpoint in self._checkpoints.items()
            if checkpoint.status is CheckpointStatus.FAILED
            and key.tenant == tenant
            and pipeline in (None, key.pipeline)
            and processor in (None, key.processor)
        ]
        found.sort(key=lambda checkpoint: (checkpoint.updated_at, str(checkpoint.key)))
        return found[:limit]


class MemorySnapshotStore:
    """A :class:`~toril.events.SnapshotStore` in memory."""

    def __init__(self) -> None:
        self._snapshots: dict[tuple[Aggregate, str, int], list[Snapshot]] = defaultdict(list)

    async def save(self, snapshot: Snapshot) -> None:
        """As :meth:`SnapshotStore.save`."""
        place = (snapshot.aggregate, snapshot.projection, snapshot.projection_version)
        there = self._snapshots[place]
        at = bisect.bisect_left(there, snapshot.version, key=lambda kept: kept.version)
        if at < len(there) and there[at].version == snapshot.version:
            there[at] = snapshot
        else:
            there.insert(at, snapshot)

    async def latest(
        self,
        aggregate: Aggregate,
        projection: str,
        projection_version: int,
        *,
        up_to: int | None = None,
    ) -> Snapshot | None:
        """As :meth:`SnapshotStore.latest`."""
        if up_to is not None:
            check_version("up to", up_to)
        there = self._snapshots.get((aggregate, projection, projection_version), [])
        if up_to is not None:
            there = there[: bisect.bisect_right(there, up_to, key=lambda kept: kept.version)]
        return there[-1] if there else None


class MemoryEventPublisher:
    """An :class:`~toril.events.EventPublisher` that keeps what it was to tell, in :attr:`published`."""

    def __init__(self) -> None:
        self.published: list[AnyEvent] = []

    async def publish(self, tenant: str, events: Sequence[AnyEvent]) -> None:
        """As :meth:`EventPublisher.publish`."""
        check_tenant(tenant)
        check_one_tenant(events, tenant)
        self.published.extend(events)
