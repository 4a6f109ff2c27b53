"""The state of an aggregate at any version, with and without snapshots, is the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.parts import FOREIGN, SPAN, TRACE, TraceSummary, event, payloads
from toril.events import (
    Aggregate,
    AnyEvent,
    Count,
    DeclaredProjection,
    EventStream,
    FoldProjection,
    NewEvent,
    ProjectionError,
    ProjectionState,
    SecurityError,
    Snapshot,
    StateUnreadable,
    ValidationError,
    fold,
    restore_snapshot,
    snapshots,
    state_at,
    take_snapshot,
)
from toril.stores import MemoryEventStore, MemorySnapshotStore


class Letters(FoldProjection[list[str]]):
    """Written in Python, and the order matters."""

    name = "letters"
    state_type = list[str]

    def initial(self) -> list[str]:
        return []

    def apply(self, state: list[str], event: AnyEvent) -> list[str]:
        return [*state, event.data["letter"]]


class Reads(MemoryEventStore):
    """Counts what is read."""

    read_events = 0

    async def read(
        self, aggregate: Aggregate, from_version: int = 1, limit: int | None = None
    ) -> EventStream:
        stream = await super().read(aggregate, from_version, limit)
        self.read_events += len(stream)
        return stream


@pytest.fixture
async def store() -> Reads:
    made = Reads()
    await made.append(TRACE, [NewEvent(type=SPAN, data={"letter": letter}) for letter in "abcdefghij"])
    return made


async def test_time_travel(store: Reads) -> None:
    for version in range(11):
        at = await state_at(store, Letters(), TRACE, version)
        assert at == ProjectionState(list("abcdefghij")[:version], version)
    assert (await state_at(store, Letters(), TRACE)).version == 10
    assert (await state_at(store, Letters(), TRACE, 99)).version == 10
    assert await state_at(store, Letters(), FOREIGN) == ProjectionState([], 0)
    with pytest.raises(ValidationError):
        await state_at(store, Letters(), TRACE, -1)


async def test_events_are_read_a_number_at_a_time(store: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "READ_AT_ONCE", 3)
    for version in (None, 10, 7):
        at = await state_at(store, Letters(), TRACE, version)
        assert "".join(at.state) == "abcdefghij"[:version]


async def test_a_snapshot_saves_reading_the_events_before_it(store: Reads) -> None:
    kept = MemorySnapshotStore()
    taken = await take_snapshot(kept, Letters(), TRACE, await state_at(store, Letters(), TRACE, 6))
    assert (taken.version, taken.projection, taken.projection_version) == (6, "letters", 1)
    for version, expected_reads in ((None, 4), (9, 3), (6, 0), (4, 4), (0, 0)):
        store.read_events = 0
        at = await state_at(store, Letters(), TRACE, version, snapshots=kept)
        assert at == await state_at(store, Letters(), TRACE, version)
        assert store.read_events - at.version == expected_reads


class NewLetters(Letters):
    name = "letters"
    version = 2

    def apply(self, state: list[str], event: AnyEvent) -> list[str]:
        return [*state, event.data["letter"].upper()]


async def test_a_snapshot_of_another_version_of_the_projection_is_ignored(store: Reads) -> None:
    kept = MemorySnapshotStore()
    taken = await take_snapshot(kept, Letters(), TRACE, await state_at(store, Letters(), TRACE, 6))
    assert restore_snapshot(taken, NewLetters(), TRACE) is None
    at = await state_at(store, NewLetters(), TRACE, snapshots=kept)
    assert "".join(at.state) == "ABCDEFGHIJ"


async def test_a_snapshot_that_cannot_be_read_is_an_error(store: Reads) -> None:
    kept = MemorySnapshotStore()
    await kept.save(Snapshot(TRACE, "letters", 1, 6, b"rubbish", 0))
    with pytest.raises(StateUnreadable):
        await state_at(store, Letters(), TRACE, snapshots=kept)


def test_tenant_walls_a_snapshot_of_another_tenant_is_refused() -> None:
    raw = Letters().encode([])
    with pytest.raises(SecurityError) as caught:
        restore_snapshot(Snapshot(FOREIGN, "letters", 1, 6, raw, 0), Letters(), TRACE)
    assert "tenant-" not in str(caught.value)
    elsewhere = Aggregate(TRACE.tenant, "trace", "other")
    with pytest.raises(ValidationError) as other:
        restore_snapshot(Snapshot(elsewhere, "letters", 1, 6, raw, 0), Letters(), TRACE)
    assert "tenant-" not in str(other.value)


@given(st.lists(payloads, max_size=10), st.integers(0, 10), st.integers(0, 10))
async def test_from_any_snapshot_the_state_is_the_same(
    data: list[dict[str, Any]], snapshot_at: int, version: int
) -> None:
    store, kept = MemoryEventStore(), MemorySnapshotStore()
    if data:
        await store.append(TRACE, [NewEvent(type=SPAN, data=one) for one in data])
    early = await state_at(store, TraceSummary, TRACE, snapshot_at)
    if early.version:
        await take_snapshot(kept, TraceSummary, TRACE, early)
    whole = await state_at(store, TraceSummary, TRACE, version)
    assert await state_at(store, TraceSummary, TRACE, version, snapshots=kept) == whole
    assert whole.state == fold(TraceSummary, (await store.read(TRACE)).events[:version])


# ---------------------------------------------------------------------- projections written in Python


def test_a_written_projection_merges_only_if_it_says_how() -> None:
    class Longest(FoldProjection[int]):
        name = "longest"
        state_type = int

        def initial(self) -> int:
            return 0

        def apply(self, state: int, event: AnyEvent) -> int:
            return max(state, len(event.data["letter"]))

        def merge(self, one: int, other: int) -> int:
            return max(one, other)

    assert Longest().mergeable
    assert Longest().merge(3, 5) == 5
    assert not Letters().mergeable
    with pytest.raises(ProjectionError, match="letters has no merge"):
        Letters().merge([], [])


def test_a_state_that_is_no_json_cannot_be_stored() -> None:
    wrong: Any = [object()]
    with pytest.raises(ProjectionError, match="letters version 1 cannot be stored"):
        Letters().encode(wrong)


def test_tenant_walls_a_fold_takes_the_events_of_one_aggregate() -> None:
    class Events(DeclaredProjection):
        count = Count()

    with pytest.raises(SecurityError, match="event 1 belongs to another tenant") as caught:
        fold(Events, [event(1), event(2, aggregate=FOREIGN)])
    assert caught.value.index == 1
    with pytest.raises(ValidationError, match="event 1"):
        fold(Events, [event(1), event(2, aggregate=Aggregate(TRACE.tenant, "trace", "other"))])
