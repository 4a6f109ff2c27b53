"""The memory stores keep what every store must keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from toril.connection import DurabilityRefused
from toril.events import NewEvent
from toril.events.contracts import (
    CheckpointStoreContract,
    EventStoreContract,
    ProjectionStoreContract,
    SnapshotStoreContract,
)
from toril.events.contracts.parts import TRACE
from toril.events.stores import EventStore
from toril.events.upcasters import Upcasters, UpcastingEventStore
from toril.stores import (
    MemoryCheckpointStore,
    MemoryEventStore,
    MemoryProjectionStore,
    MemorySnapshotStore,
)


class TestMemoryEventStore(EventStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[EventStore]:
        yield MemoryEventStore()

    async def test_memory_is_no_more_durable_than_it_is(self) -> None:
        store = MemoryEventStore()
        for wanted in ("fsync", "replicated"):
            with pytest.raises(DurabilityRefused, match=wanted):
                await store.append(TRACE, [NewEvent(type="a", data=1)], durability=wanted)
        assert (await store.read(TRACE)).version == 0


class TestUpcastingEventStore(EventStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[EventStore]:
        upcasters = Upcasters()
        upcasters.declare("contract.second", 3)
        yield UpcastingEventStore(MemoryEventStore(), upcasters)


class TestMemoryProjectionStore(ProjectionStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[MemoryProjectionStore]:
        yield MemoryProjectionStore()


class TestMemoryCheckpointStore(CheckpointStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[MemoryCheckpointStore]:
        yield MemoryCheckpointStore()


class TestMemorySnapshotStore(SnapshotStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[MemorySnapshotStore]:
        yield MemorySnapshotStore()
