"""Implementations of the stores that ``toril.events`` describes."""

from toril.stores.memory import (
    MemoryCheckpointStore,
    MemoryEventPublisher,
    MemoryEventStore,
    MemoryProjectionStore,
    MemorySnapshotStore,
)

__all__ = [
    "MemoryCheckpointStore",
    "MemoryEventPublisher",
    "MemoryEventStore",
    "MemoryProjectionStore",
    "MemorySnapshotStore",
]
