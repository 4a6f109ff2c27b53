"""Implementations of the stores that ``toril.events`` describes."""

from toril.stores.clickhouse import ClickHouseColdStore, ClickHouseHistory, Database
from toril.stores.history import MemoryHistory, Recorded, WritableHistory
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
    "ClickHouseColdStore",
    "ClickHouseHistory",
    "Database",
    "LogEventStore",
    "MemoryCheckpointStore",
    "MemoryEventPublisher",
    "MemoryEventStore",
    "MemoryHistory",
    "MemoryProjectionStore",
    "MemorySnapshotStore",
    "Recorded",
    "SqliteColdStore",
    "WritableHistory",
]
