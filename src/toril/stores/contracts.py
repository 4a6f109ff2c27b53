"""What every cold store and every history must do, as tests, like those of :mod:`toril.events.contracts`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events.contracts.parts import (
    FOREIGN_TRACE,
    OTHER_TENANT,
    OTHER_TRACE,
    TENANT,
    TRACE,
    refused,
)
from toril.log import ColdStore, Frozen
from toril.stores.history import Recorded, WritableHistory

ODD = Aggregate(TENANT, "trace", "a'b\\c`{x}:é %_")
"""An id that statements must not take for a part of theirs."""

MONTH = 31 * 24 * 3600 * 10**9
LATEST = 2**63 - 1


class ColdStoreContract(ABC):
    """Tests for a :class:`~toril.log.ColdStore`."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[ColdStore]:
        """A fresh, empty store."""

    async def test_what_was_put_is_found(self) -> None:
        """Every byte of it; and nothing where nothing was put."""
        async with self.open() as store:
            await store.put([])
            assert await store.get(TRACE) is None
            kept = [
                Frozen(TRACE, 0, 0, b""),
                Frozen(OTHER_TRACE, 2**40, 2**53, bytes(range(256)) * 300),
                Frozen(ODD, 1, 1, "é\n\t\\'".encode()),
            ]
            await store.put(kept)
            for one in kept:
                assert await store.get(one.aggregate) == one

    async def test_many_are_found_in_the_order_in_which_they_are_asked_for(self) -> None:
        """With none where there is none, the last snapshot of each, and the same one twice if asked twice."""
        async with self.open() as store:
            assert await store.get_many([]) == []
            assert await store.get_many([TRACE]) == [None]
            kept = [
                Frozen(TRACE, 1, 5, b"\x00\xff"),
                Frozen(ODD, 1, 1, b"odd"),
                Frozen(OTHER_TRACE, 2, 3, b""),
            ]
            await store.put(kept)
            await store.put([Frozen(TRACE, 1, 4, b"older")])
            asked = [ODD, FOREIGN_TRACE, TRACE, OTHER_TRACE, TRACE]
            assert await store.get_many(asked) == [kept[1], None, kept[0], kept[2], kept[0]]
            many = [Frozen(Aggregate(TENANT, "trace", f"{n}"), 1, n, b"%d" % n) for n in range(250)]
            await store.put(many)
            assert await store.get_many([one.aggregate for one in many[::-1]]) == many[::-1]

    async def test_of_two_snapshots_the_one_with_more_changes_counts(self) -> None:
        """Whatever their order, in one batch or in two."""
        async with self.open() as store:
            await store.put([Frozen(TRACE, 1, 5, b"five")])
            await store.put([Frozen(TRACE, 1, 4, b"four")])
            assert await store.get(TRACE) == Frozen(TRACE, 1, 5, b"five")
            await store.put([Frozen(TRACE, 2, 7, b"seven"), Frozen(TRACE, 2, 6, b"six")])
            assert await store.get(TRACE) == Frozen(TRACE, 2, 7, b"seven")

    async def test_what_is_put_again_is_there_once(self) -> None:
        """After an outcome that was not known."""
        async with self.open() as store:
            for _ in range(3):
                await store.put([Frozen(TRACE, 1, 1, b"x"), Frozen(OTHER_TRACE, 1, 1, b"y")])
            found = [aggregate async for aggregate in store.aggregates()]
            assert sorted(found, key=lambda one: one.key) == [TRACE, OTHER_TRACE]
            assert await store.erase(TENANT) == 2

    async def test_all_aggregates_are_named_once(self) -> None:
        """Of all tenants, however many there are."""
        async with self.open() as store:
            kept = {Aggregate(f"t{n % 3}", f"kind-{n % 2}", f"{n}") for n in range(2500)}
            await store.put([Frozen(one, 1, 1, b"") for one in kept])
            await store.put([Frozen(one, 1, 2, b"") for one in list(kept)[:100]])
            found = [aggregate async for aggregate in store.aggregates()]
            assert len(found) == len(kept)
            assert set(found) == kept

    async def test_many_at_once(self) -> None:
        """All of them are kept."""
        async with self.open() as store:
            kept = [Frozen(Aggregate(TENANT, "trace", f"{n}"), 1, n, b"%d" % n) for n in range(200)]
            await asyncio.gather(*(store.put([one]) for one in kept))
            for one in kept[::20]:
                assert await store.get(one.aggregate) == one
            assert await store.erase(TENANT) == 200

    async def test_tenant_walls_aggregates_are_a_tenants_own(self) -> None:
        """To get and to erase; and what is put after an erasure is there."""
        async with self.open() as store:
            await store.put([Frozen(TRACE, 1, 9, b"mine")])
            assert await store.get(FOREIGN_TRACE) is None
            await store.put([Frozen(FOREIGN_TRACE, 1, 1, b"theirs"), Frozen(TRACE, 1, 10, b"mine")])
            assert await store.erase(TENANT) == 1
            assert await store.get(TRACE) is None
            assert await store.get(FOREIGN_TRACE) == Frozen(FOREIGN_TRACE, 1, 1, b"theirs")
            assert [aggregate async for aggregate in store.aggregates()] == [FOREIGN_TRACE]
            await store.put([Frozen(TRACE, 1, 1, b"new")])
            assert await store.get(TRACE) == Frozen(TRACE, 1, 1, b"new")
            assert await store.erase("nobody") == 0


def recorded(version: int, aggregate: Aggregate = TRACE, recorded_at: int | None = None) -> Recorded:
    """An event with its number in it, and bytes that are no text."""
    when = version if recorded_at is None else recorded_at
    body = b"\x00\xff%d" % version
    return Recorded(aggregate, version, when, body, f"{aggregate.key}/{version}", "contract.happened")


def read(events: list[Recorded]) -> list[tuple[int, int, bytes]]:
    """As a history gives them."""
    return [(event.version, event.recorded_at, event.body) for event in events]


class HistoryContract(ABC):
    """Tests for a :class:`~toril.stores.WritableHistory`."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[WritableHistory]:
        """A fresh, empty history."""

    async def test_events_are_read_in_the_order_of_their_versions(self) -> None:
        """In whatever order they were written, and within the bounds that were asked for."""
        async with self.open() as history:
            await history.write([])
            assert list(await history.read(TRACE, 1, 100)) == []
            events = [recorded(version) for version in range(1, 21)]
            await history.write(events[::-2])
            await history.write(events[::2])
            await history.write([recorded(version, OTHER_TRACE) for version in (1, 2)])
            assert list(await history.read(TRACE, 1, 20)) == read(events)
            assert list(await history.read(TRACE, 5, 7)) == read(events[4:7])
            assert list(await history.read(TRACE, 19, 99)) == read(events[18:])
            assert list(await history.read(TRACE, 8, 7)) == []

    async def test_what_is_written_again_is_there_once(self) -> None:
        """After an outcome that was not known; also where batches overlap."""
        async with self.open() as history:
            events = [recorded(version) for version in range(1, 11)]
            for batch in (events, events[3:], events[:7]):
                await history.write(batch)
            assert list(await history.read(TRACE, 1, 10)) == read(events)
            assert await history.count(TENANT) == 10

    async def test_times_and_bodies_are_exact(self) -> None:
        """Zero and the last nanosecond that there is; every byte."""
        async with self.open() as history:
            events = [
                recorded(1, recorded_at=0),
                recorded(2, recorded_at=LATEST),
                recorded(3, recorded_at=1_700_000_000_123_456_789),
                Recorded(TRACE, 4, 1, bytes(range(256)), "e4", "x"),
                Recorded(TRACE, 5, 1, b"", "e5", "x"),
            ]
            await history.write(events)
            await history.write([recorded(1, ODD)])
            assert list(await history.read(TRACE, 1, 5)) == read(events)
            assert list(await history.read(ODD, 1, 1)) == read([recorded(1, ODD)])

    async def test_events_of_many_years_are_written_together(self) -> None:
        """As when an old log is archived."""
        async with self.open() as history:
            events = [recorded(version, recorded_at=version * MONTH) for version in range(1, 111)]
            await history.write(events)
            assert list(await history.read(TRACE, 1, 110)) == read(events)

    async def test_tenant_walls_events_are_a_tenants_own(self) -> None:
        """To read and to erase; and what is written after an erasure is there, were it the same event."""
        async with self.open() as history:
            mine, theirs = [recorded(1), recorded(2)], [recorded(1, FOREIGN_TRACE, 7)]
            await history.write(mine)
            assert list(await history.read(FOREIGN_TRACE, 1, 9)) == []
            await history.write(theirs + mine)
            assert await history.erase(TENANT) == 2
            assert list(await history.read(TRACE, 1, 9)) == []
            assert (await history.count(TENANT), await history.count(OTHER_TENANT)) == (0, 1)
            assert list(await history.read(FOREIGN_TRACE, 1, 9)) == read(theirs)
            await history.write(mine)
            assert list(await history.read(TRACE, 1, 9)) == read(mine)

    async def test_bad_input_is_refused(self) -> None:
        """A tenant must be named."""
        async with self.open() as history:
            for wrong in ("", "a:b"):
                with refused(InvalidValue):
                    await history.erase(wrong)
