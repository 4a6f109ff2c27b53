"""Implementations of the stores that ``toril.events`` describes."""

from toril.stores.log import LogEventStore
from toril.stores.memory import (
    MemoryCheckpointStore,
    MemoryEventPublisher,
    MemoryEventStore,
    MemoryProjectionStore,
    MemorySnapshotStore,
)
from toril.stores.sqlite import SqliteColdStore

__all__ = [
    "LogEventStore",
    "MemoryCheckpointStore",
    "MemoryEventPublisher",
    "MemoryEventStore",
    "MemoryProjectionStore",
    "MemorySnapshotStore",
    "SqliteColdStore",
]
