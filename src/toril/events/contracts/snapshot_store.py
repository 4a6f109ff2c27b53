"""What every snapshot store must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events.contracts.parts import FOREIGN_TRACE, OTHER_TRACE, TRACE, refused
from toril.events.stores import Snapshot, SnapshotStore


def snapshot(version: int, state: bytes = b"{}", aggregate: Aggregate = TRACE, of: int = 1) -> Snapshot:
    """A snapshot of version ``of`` of the projection."""
    return Snapshot(aggregate, "summary", of, version, state, 5)


class SnapshotStoreContract(ABC):
    """Tests for a :class:`~toril.events.SnapshotStore`."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[SnapshotStore]:
        """A fresh, empty store."""

    async def test_the_latest_snapshot_is_found(self) -> None:
        """Whatever the order in which they were saved; at a version or before it, where asked."""
        async with self.open() as store:
            assert await store.latest(TRACE, "summary", 1) is None
            for version in (20, 10, 30):
                await store.save(snapshot(version, b"%d" % version))
            assert await store.latest(TRACE, "summary", 1) == snapshot(30, b"30")
            assert await store.latest(TRACE, "summary", 1, up_to=29) == snapshot(20, b"20")
            assert await store.latest(TRACE, "summary", 1, up_to=10) == snapshot(10, b"10")
            assert await store.latest(TRACE, "summary", 1, up_to=9) is None

    async def test_a_second_snapshot_at_a_version_replaces_the_first(self) -> None:
        """So that a bad one can be put right."""
        async with self.open() as store:
            await store.save(snapshot(10, b"bad"))
            await store.save(snapshot(10, b"\x00good\xff"))
            assert await store.latest(TRACE, "summary", 1) == snapshot(10, b"\x00good\xff")

    async def test_versions_of_a_projection_have_snapshots_of_their_own(self) -> None:
        """As have projections and aggregates."""
        async with self.open() as store:
            await store.save(snapshot(10))
            assert await store.latest(TRACE, "summary", 2) is None
            assert await store.latest(TRACE, "other", 1) is None
            assert await store.latest(OTHER_TRACE, "summary", 1) is None
            await store.save(snapshot(5, of=2))
            found = await store.latest(TRACE, "summary", 2)
            assert found is not None
            assert found.version == 5

    async def test_bad_input_is_refused(self) -> None:
        """A version is a whole number from 1."""
        async with self.open() as store:
            for wrong in (0, -1, True):
                with refused(InvalidValue):
                    await store.latest(TRACE, "summary", 1, up_to=wrong)

    async def test_tenant_walls_one_tenant_does_not_see_anothers_snapshot(self) -> None:
        """Same type, same id, two tenants: two snapshots."""
        async with self.open() as store:
            await store.save(snapshot(10, b"mine"))
            assert await store.latest(FOREIGN_TRACE, "summary", 1) is None
            await store.save(snapshot(20, b"theirs", FOREIGN_TRACE))
            assert await store.latest(TRACE, "summary", 1) == snapshot(10, b"mine")
