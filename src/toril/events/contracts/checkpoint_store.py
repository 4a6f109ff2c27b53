"""What every checkpoint store must do."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events.checkpoints import CheckpointKey, CheckpointStatus, Claim
from toril.events.contracts.parts import (
    FOREIGN_TRACE,
    OTHER_TENANT,
    OTHER_TRACE,
    TENANT,
    TRACE,
    refused,
    stored,
)
from toril.events.errors import CheckpointError, OrderingError, SecurityError
from toril.events.stores import ProcessorCheckpointStore

KEY = CheckpointKey.of(TRACE, "pipeline", "writer")
EVENTS = {version: stored(version) for version in range(1, 6)}
PENDING, PROCESSED, FAILED = CheckpointStatus.PENDING, CheckpointStatus.PROCESSED, CheckpointStatus.FAILED


class CheckpointStoreContract(ABC):
    """Tests for a :class:`~toril.events.ProcessorCheckpointStore`."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[ProcessorCheckpointStore]:
        """A fresh, empty store."""

    async def test_an_event_goes_from_pending_to_processed(self) -> None:
        """And each step is there to be read."""
        async with self.open() as store:
            assert await store.load(KEY) is None
            assert await store.begin(KEY, EVENTS[1]) is Claim.RUN
            found = await store.load(KEY)
            assert found is not None
            assert (found.key, found.status, found.version) == (KEY, PENDING, 1)
            assert found.event_id == EVENTS[1].id
            assert found.event_occurred_at == EVENTS[1].occurred_at
            done = await store.complete(KEY, EVENTS[1])
            assert (done.status, done.version) == (PROCESSED, 1)
            assert await store.load(KEY) == done

    async def test_order_kept_events_begin_one_after_the_other(self) -> None:
        """1, 3, 2 arrive: 3 waits for 2."""
        async with self.open() as store:
            assert await store.begin(KEY, EVENTS[2]) is Claim.EARLY
            assert await store.load(KEY) is None
            assert await store.begin(KEY, EVENTS[1]) is Claim.RUN
            assert await store.begin(KEY, EVENTS[2]) is Claim.EARLY
            await store.complete(KEY, EVENTS[1])
            assert await store.begin(KEY, EVENTS[3]) is Claim.EARLY
            assert await store.begin(KEY, EVENTS[2]) is Claim.RUN
            await store.complete(KEY, EVENTS[2])
            assert await store.begin(KEY, EVENTS[3]) is Claim.RUN

    async def test_what_is_processed_is_passed_over(self) -> None:
        """A second delivery, or a third."""
        async with self.open() as store:
            await self._process(store, 2)
            for version in (1, 2):
                assert await store.begin(KEY, EVENTS[version]) is Claim.DONE

    async def test_a_pending_event_begins_again(self) -> None:
        """A retry is not a failure."""
        async with self.open() as store:
            for _ in range(3):
                assert await store.begin(KEY, EVENTS[1]) is Claim.RUN
            assert (await store.complete(KEY, EVENTS[1])).status is PROCESSED

    async def test_an_event_may_be_completed_without_having_begun(self) -> None:
        """In its order: so it is with events of types that a processor does not want."""
        async with self.open() as store:
            assert (await store.complete(KEY, EVENTS[1])).version == 1
            assert (await store.complete(KEY, EVENTS[2])).version == 2
            with refused(OrderingError) as caught:
                await store.complete(KEY, EVENTS[4])
            assert (caught.error.expected, caught.error.actual) == (3, 4)

    async def test_nothing_moves_back(self) -> None:
        """A caller that was away for long changes nothing."""
        async with self.open() as store:
            await self._process(store, 3)
            late = await store.complete(KEY, EVENTS[1])
            assert (late.status, late.version) == (PROCESSED, 3)
            for version in (1, 3):
                with refused(CheckpointError):
                    await store.fail(KEY, EVENTS[version], "late", attempts=1)
            found = await store.load(KEY)
            assert found is not None
            assert (found.status, found.version, found.error) == (PROCESSED, 3, None)

    async def test_order_kept_a_failed_event_blocks_those_after_it(self) -> None:
        """And those of no other aggregate and no other processor."""
        async with self.open() as store:
            await self._process(store, 1)
            await store.begin(KEY, EVENTS[2])
            failed = await store.fail(KEY, EVENTS[2], "boom", attempts=3)
            assert (failed.status, failed.version, failed.error, failed.attempts) == (FAILED, 2, "boom", 3)
            for version in (2, 3):
                assert await store.begin(KEY, EVENTS[version]) is Claim.BLOCKED
                with refused(CheckpointError):
                    await store.complete(KEY, EVENTS[version])
            assert await store.begin(KEY, EVENTS[1]) is Claim.DONE
            elsewhere = CheckpointKey.of(OTHER_TRACE, "pipeline", "writer")
            assert await store.begin(elsewhere, stored(1, OTHER_TRACE)) is Claim.RUN
            assert await store.begin(CheckpointKey.of(TRACE, "pipeline", "x"), EVENTS[1]) is Claim.RUN

    async def test_a_failure_can_be_reported_again(self) -> None:
        """The last report counts."""
        async with self.open() as store:
            await store.fail(KEY, EVENTS[1], "one", attempts=1)
            again = await store.fail(KEY, EVENTS[1], "two", attempts=2)
            assert (again.status, again.error, again.attempts) == (FAILED, "two", 2)
            with refused(CheckpointError):
                await store.fail(KEY, EVENTS[2], "three", attempts=1)

    async def test_a_cleared_event_is_processed_again(self) -> None:
        """And those after it come after it."""
        async with self.open() as store:
            await store.fail(KEY, EVENTS[1], "boom", attempts=3)
            cleared = await store.clear(KEY, 1)
            assert (cleared.status, cleared.version, cleared.error) == (PENDING, 1, None)
            assert await store.begin(KEY, EVENTS[2]) is Claim.EARLY
            assert await store.begin(KEY, EVENTS[1]) is Claim.RUN
            await store.complete(KEY, EVENTS[1])
            assert await store.begin(KEY, EVENTS[2]) is Claim.RUN

    async def test_a_skipped_event_is_left_out(self) -> None:
        """Its failure stays on record until the next event."""
        async with self.open() as store:
            await store.fail(KEY, EVENTS[1], "boom", attempts=3)
            skipped = await store.skip(KEY, 1)
            assert (skipped.status, skipped.version, skipped.error) == (PROCESSED, 1, "boom")
            assert skipped.skipped
            assert await store.begin(KEY, EVENTS[1]) is Claim.DONE
            assert await store.begin(KEY, EVENTS[2]) is Claim.RUN
            assert not (await store.complete(KEY, EVENTS[2])).skipped

    async def test_only_what_has_failed_at_that_version_can_be_cleared_or_skipped(self) -> None:
        """So that a decision about one event is not taken for another."""
        async with self.open() as store:
            decisions: tuple[Callable[[CheckpointKey, int], Awaitable[Any]], ...] = (store.clear, store.skip)
            for decide in decisions:
                with refused(CheckpointError):
                    await decide(KEY, 1)
            await self._process(store, 1)
            await store.fail(KEY, EVENTS[2], "boom", attempts=1)
            for decide in decisions:
                for version in (1, 3):
                    with refused(CheckpointError):
                        await decide(KEY, version)

    async def test_two_histories_of_one_aggregate_are_noticed(self) -> None:
        """Another event at the version that is pending, processed or failed."""
        async with self.open() as store:
            other = stored(1)
            assert other.id != EVENTS[1].id
            await store.begin(KEY, EVENTS[1])
            with refused(CheckpointError):
                await store.begin(KEY, other)
            with refused(CheckpointError):
                await store.complete(KEY, other)

    async def test_failed_checkpoints_are_listed(self) -> None:
        """The oldest failure first, by pipeline and processor where asked."""
        async with self.open() as store:
            keys = [
                CheckpointKey(TENANT, pipeline, processor, "trace", f"{number}")
                for number, (pipeline, processor) in enumerate([("p", "a"), ("p", "b"), ("q", "a")])
            ]
            for key in keys:
                await store.fail(key, stored(1, key.aggregate), "boom", attempts=1)
                await asyncio.sleep(0.002)
            await self._process(store, 1)
            assert [found.key for found in await store.get_failed(TENANT)] == keys
            assert [found.key for found in await store.get_failed(TENANT, pipeline="p")] == keys[:2]
            assert [found.key for found in await store.get_failed(TENANT, processor="a")] == keys[::2]
            assert [found.key for found in await store.get_failed(TENANT, limit=1)] == keys[:1]
            assert not await store.get_failed(TENANT, pipeline="q", processor="b")
            await store.clear(keys[0], 1)
            await store.skip(keys[1], 1)
            assert [found.key for found in await store.get_failed(TENANT)] == keys[2:]

    async def test_of_many_that_begin_at_once_the_checkpoint_is_one(self) -> None:
        """Two workers may run one pending event; its completion counts once."""
        async with self.open() as store:
            await asyncio.gather(*(store.begin(KEY, EVENTS[1]) for _ in range(10)))
            await asyncio.gather(*(store.complete(KEY, EVENTS[1]) for _ in range(10)))
            found = await store.load(KEY)
            assert found is not None
            assert (found.status, found.version) == (PROCESSED, 1)

    async def test_bad_input_is_refused(self) -> None:
        """An event of another aggregate, a failure without a number of attempts."""
        async with self.open() as store:
            elsewhere = stored(1, OTHER_TRACE)
            wrong: Any = None
            for call in (
                store.begin(KEY, elsewhere),
                store.complete(KEY, elsewhere),
                store.fail(KEY, elsewhere, "boom", attempts=1),
                store.fail(KEY, EVENTS[1], "boom", attempts=0),
                store.fail(KEY, EVENTS[1], wrong, attempts=1),
                store.get_failed(TENANT, limit=0),
                store.get_failed(""),
            ):
                with refused(InvalidValue):
                    await call
            assert await store.load(KEY) is None

    async def test_tenant_walls_an_event_of_another_tenant_moves_nothing(self) -> None:
        """Nor does one's own event move another tenant's checkpoint."""
        async with self.open() as store:
            foreign = stored(1, FOREIGN_TRACE)
            for call in (
                store.begin(KEY, foreign),
                store.complete(KEY, foreign),
                store.fail(KEY, foreign, "boom", attempts=1),
            ):
                with refused(SecurityError):
                    await call
            assert await store.load(KEY) is None

    async def test_tenant_walls_checkpoints_are_a_tenants_own(self) -> None:
        """To load and to list."""
        async with self.open() as store:
            foreign = CheckpointKey.of(FOREIGN_TRACE, "pipeline", "writer")
            await store.fail(KEY, EVENTS[1], "boom", attempts=1)
            assert await store.load(foreign) is None
            assert not await store.get_failed(OTHER_TENANT)
            with refused(CheckpointError):
                await store.clear(foreign, 1)
            assert await store.begin(foreign, stored(1, FOREIGN_TRACE)) is Claim.RUN
            assert len(await store.get_failed(TENANT)) == 1

    async def _process(
        self, store: ProcessorCheckpointStore, up_to: int, aggregate: Aggregate = TRACE
    ) -> None:
        key = CheckpointKey.of(aggregate, "pipeline", "writer")
        for version in range(1, up_to + 1):
            assert await store.begin(key, EVENTS[version]) is Claim.RUN
            await store.complete(key, EVENTS[version])
