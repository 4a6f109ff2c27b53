"""The state of an aggregate at a version: from its events, and from a snapshot where there is one."""

from __future__ import annotations

from typing import TypeVar

from toril.aggregate import Aggregate
from toril.events.errors import SecurityError, ValidationError
from toril.events.identity import now
from toril.events.projection import Projection, ProjectionState, fold
from toril.events.stores import EventStore, Snapshot, SnapshotStore, check_version

State = TypeVar("State")

READ_AT_ONCE = 1000
"""Events that are read in one call."""


async def take_snapshot(
    snapshots: SnapshotStore,
    projection: Projection[State],
    aggregate: Aggregate,
    at: ProjectionState[State],
) -> Snapshot:
    """Keep a state, so that later ones need only the events after it."""
    made = Snapshot(
        aggregate, projection.name, projection.version, at.version, projection.encode(at.state), now()
    )
    await snapshots.save(made)
    return made


def restore_snapshot(
    snapshot: Snapshot, projection: Projection[State], aggregate: Aggregate
) -> ProjectionState[State] | None:
    """The state of a snapshot; None where the projection has another version by now.

    A snapshot of another tenant or aggregate is refused, and one that cannot be decoded is an error.
    """
    if snapshot.aggregate.tenant != aggregate.tenant:
        raise SecurityError("the snapshot")
    if snapshot.aggregate != aggregate:
        raise ValidationError("snapshot", snapshot.aggregate, f"it must be one of {aggregate!r}")
    if (snapshot.projection, snapshot.projection_version) != (projection.name, projection.version):
        return None
    return ProjectionState(projection.decode(snapshot.state), snapshot.version)


async def state_at(
    events: EventStore,
    projection: Projection[State],
    aggregate: Aggregate,
    version: int | None = None,
    *,
    snapshots: SnapshotStore | None = None,
) -> ProjectionState[State]:
    """The state when the aggregate was at a version; now, without one.

    It starts from the latest snapshot that is not after that version, and folds the events since, a number
    of them at a time. Where the aggregate never came to the version, its latest state is given.
    """
    if version is not None:
        check_version("version", version, 0)
    made = ProjectionState(projection.initial(), 0)
    if snapshots is not None and version != 0:
        found = await snapshots.latest(aggregate, projection.name, projection.version, up_to=version)
        restored = None if found is None else restore_snapshot(found, projection, aggregate)
        made = made if restored is None else restored
    while version is None or made.version < version:
        most = READ_AT_ONCE if version is None else min(READ_AT_ONCE, version - made.version)
        stream = await events.read(aggregate, made.version + 1, most)
        if not stream.events:
            break
        made = ProjectionState(fold(projection, stream, made.state), stream.version)
    return made
