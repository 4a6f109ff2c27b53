"""What every store must do, as tests.

Inherit one, say how a fresh store is opened, and run it with pytest::

    class TestMyEventStore(EventStoreContract):
        @asynccontextmanager
        async def open(self):
            async with connect_to_mine() as store:
                yield store

The tests are asynchronous (``asyncio_mode = "auto"`` of pytest-asyncio runs them), and need no fixtures. Each
opens a store of its own, and it must be empty.
"""

from toril.events.contracts.checkpoint_store import CheckpointStoreContract
from toril.events.contracts.event_store import EventStoreContract
from toril.events.contracts.projection_store import ProjectionStoreContract
from toril.events.contracts.snapshot_store import SnapshotStoreContract

__all__ = [
    "CheckpointStoreContract",
    "EventStoreContract",
    "ProjectionStoreContract",
    "SnapshotStoreContract",
]
