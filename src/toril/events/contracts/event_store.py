"""What every event store must do."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any

from toril.errors import InvalidValue
from toril.events.contracts.parts import FOREIGN_TRACE, OTHER_TRACE, TRACE, new, refused, stored
from toril.events.errors import SecurityError, ValidationError, VersionConflict
from toril.events.event import AnyNewEvent, NewEvent
from toril.events.stores import Appended, EventStore, NewAppend


class EventStoreContract(ABC):
    """Tests for an :class:`~toril.events.EventStore`."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[EventStore]:
        """A fresh, empty store."""

    async def test_what_is_appended_is_read(self) -> None:
        """All that was said about events, with versions from 1."""
        async with self.open() as store:
            metadata = {"traceparent": "00-a-b-01", "causation_id": "c", "correlation_id": "d", "own": [1]}
            first: AnyNewEvent = NewEvent(
                type="contract.first", data={"zero": 0, "none": None, "ünï": "✓"}, metadata=metadata
            )
            second = NewEvent(type="contract.second", data=[0], id="own id", schema_version=3, occurred_at=0)
            appended = await store.append(TRACE, [first, second])
            assert (appended.first_version, appended.last_version) == (1, 2)
            assert not appended.repeated
            stream = await store.read(TRACE)
            assert stream.aggregate == TRACE
            assert stream.version == 2
            assert list(stream) == [
                first.recorded(TRACE, version=1, recorded_at=appended.recorded_at),
                second.recorded(TRACE, version=2, recorded_at=appended.recorded_at),
            ]

    async def test_many_appends_are_each_by_itself(self) -> None:
        """What is wrong with one is wrong with no other; those of an aggregate keep their order."""
        async with self.open() as store:
            await store.append(TRACE, [new(1)], idempotency_key="known")
            outcomes = await store.append_many(
                [
                    NewAppend(TRACE, [new(2)]),
                    NewAppend(TRACE, [new(3)], expected_version=7),
                    NewAppend(OTHER_TRACE, [new(1), new(2)], expected_version=0),
                    NewAppend(TRACE, [new(9)], idempotency_key="known"),
                    NewAppend(TRACE, []),
                    NewAppend(FOREIGN_TRACE, [new(1)]),
                    NewAppend(TRACE, [NewEvent(type="contract.no_json", data=math.nan)]),
                    NewAppend(TRACE, [new(4)]),
                ]
            )
            assert [type(outcome) for outcome in outcomes] == [
                Appended,
                VersionConflict,
                Appended,
                Appended,
                ValidationError,
                Appended,
                InvalidValue,
                Appended,
            ]
            repeated = outcomes[3]
            assert isinstance(repeated, Appended)
            assert (repeated.repeated, repeated.first_version) == (True, 1)
            assert [event.data["n"] for event in await store.read(TRACE)] == [1, 2, 4]
            assert [event.data["n"] for event in await store.read(OTHER_TRACE)] == [1, 2]
            assert [event.data["n"] for event in await store.read(FOREIGN_TRACE)] == [1]
            assert await store.append_many([]) == []

    async def test_an_aggregate_without_events_has_an_empty_stream(self) -> None:
        """Version 0, and nothing in it."""
        async with self.open() as store:
            stream = await store.read(TRACE)
            assert (stream.version, len(stream)) == (0, 0)

    async def test_data_comes_back_as_json(self) -> None:
        """Tuples as lists, keys as text, whole numbers of any size exactly."""
        async with self.open() as store:
            await store.append(TRACE, [NewEvent(type="contract.json", data={1: (2, 2**70), "f": 0.5})])
            (event,) = await store.read(TRACE)
            assert event.data == {"1": [2, 2**70], "f": 0.5}

    async def test_what_is_read_can_be_changed_without_harm(self) -> None:
        """A reader's changes reach no other reader."""
        async with self.open() as store:
            await store.append(TRACE, [new(1)])
            (await store.read(TRACE)).events[0].data["n"] = 99
            assert (await store.read(TRACE)).events[0].data == {"n": 1}

    async def test_reading_from_a_version_and_up_to_a_number(self) -> None:
        """Parts of a stream know where they begin."""
        async with self.open() as store:
            await store.append(TRACE, [new(n) for n in range(1, 6)])
            part = await store.read(TRACE, 3)
            assert ([event.version for event in part], part.after, part.version) == ([3, 4, 5], 2, 5)
            part = await store.read(TRACE, 2, 2)
            assert ([event.version for event in part], part.version) == ([2, 3], 3)
            part = await store.read(TRACE, 6)
            assert (len(part), part.version) == (0, 5)

    async def test_gap_free_versions_go_on_where_they_were(self) -> None:
        """Over several appends, each aggregate by itself."""
        async with self.open() as store:
            for first in (1, 3, 5):
                appended = await store.append(TRACE, [new(first), new(first + 1)])
                assert (appended.first_version, appended.last_version) == (first, first + 1)
            assert (await store.append(OTHER_TRACE, [new(1)])).first_version == 1
            assert [event.data["n"] for event in await store.read(TRACE)] == [1, 2, 3, 4, 5, 6]

    async def test_gap_free_versions_under_concurrency(self) -> None:
        """Many appends at once: each is whole, none has the versions of another."""
        async with self.open() as store:
            answers = await asyncio.gather(*(store.append(TRACE, [new(n), new(-n)]) for n in range(1, 31)))
            assert sorted(answer.first_version for answer in answers) == list(range(1, 60, 2))
            events = (await store.read(TRACE)).events
            assert len(events) == 60
            for n, answer in enumerate(answers, 1):
                mine = events[answer.first_version - 1 : answer.last_version]
                assert [event.data["n"] for event in mine] == [n, -n]

    async def test_an_expected_version_that_is_met(self) -> None:
        """0 for a new aggregate."""
        async with self.open() as store:
            await store.append(TRACE, [new(1)], expected_version=0)
            await store.append(TRACE, [new(2)], expected_version=1)
            assert (await store.read(TRACE)).version == 2

    async def test_a_version_conflict_changes_nothing(self) -> None:
        """It says what was expected, and what is."""
        async with self.open() as store:
            await store.append(TRACE, [new(1), new(2)])
            for expected in (0, 1, 3):
                with refused(VersionConflict) as caught:
                    await store.append(TRACE, [new(3)], expected_version=expected)
                assert (caught.error.expected, caught.error.actual) == (expected, 2)
            with refused(VersionConflict):
                await store.append(OTHER_TRACE, [new(1)], expected_version=1)
            assert (await store.read(TRACE)).version == 2
            assert (await store.read(OTHER_TRACE)).version == 0

    async def test_of_many_that_expect_one_version_one_wins(self) -> None:
        """The others get a conflict."""
        async with self.open() as store:
            tries = (store.append(TRACE, [new(n)], expected_version=0) for n in range(20))
            answers = await asyncio.gather(*tries, return_exceptions=True)
            assert sum(isinstance(answer, Appended) for answer in answers) == 1
            assert sum(isinstance(answer, VersionConflict) for answer in answers) == 19
            assert (await store.read(TRACE)).version == 1

    async def test_a_repeat_gives_the_first_answer(self) -> None:
        """Whatever the events, and although the expected version is no longer met."""
        async with self.open() as store:
            first = await store.append(TRACE, [new(1), new(2)], expected_version=0, idempotency_key="k:1")
            await store.append(TRACE, [new(3)])
            again = await store.append(TRACE, [new(9)], expected_version=0, idempotency_key="k:1")
            assert not first.repeated
            assert again.repeated
            assert (again.first_version, again.last_version) == (1, 2)
            assert again.recorded_at == first.recorded_at
            assert (await store.read(TRACE)).version == 3

    async def test_a_conflict_leaves_no_answer_behind(self) -> None:
        """The key is free for the next attempt."""
        async with self.open() as store:
            with refused(VersionConflict):
                await store.append(TRACE, [new(1)], expected_version=7, idempotency_key="k")
            assert not (await store.append(TRACE, [new(1)], idempotency_key="k")).repeated

    async def test_of_many_repeats_at_once_one_is_stored(self) -> None:
        """All get the same versions."""
        async with self.open() as store:
            answers = await asyncio.gather(
                *(store.append(TRACE, [new(n)], idempotency_key="k") for n in range(20))
            )
            assert {answer.first_version for answer in answers} == {1}
            assert sum(not answer.repeated for answer in answers) == 1
            assert (await store.read(TRACE)).version == 1

    async def test_an_idempotency_key_is_the_aggregates_own(self) -> None:
        """Another aggregate can have the same."""
        async with self.open() as store:
            await store.append(TRACE, [new(1)], idempotency_key="k")
            assert not (await store.append(OTHER_TRACE, [new(1)], idempotency_key="k")).repeated

    async def test_an_earlier_append_is_found_by_its_key(self) -> None:
        """The answer that a repeat would get."""
        async with self.open() as store:
            assert await store.find_append(TRACE, "k") is None
            first = await store.append(TRACE, [new(1), new(2)], idempotency_key="k")
            found = await store.find_append(TRACE, "k")
            assert found is not None
            assert found.repeated
            assert (found.first_version, found.last_version) == (1, 2)
            assert found.recorded_at == first.recorded_at
            assert await store.find_append(OTHER_TRACE, "k") is None
            assert await store.find_append(FOREIGN_TRACE, "k") is None

    async def test_recorded_times_do_not_go_back(self) -> None:
        """Within an aggregate."""
        async with self.open() as store:
            answers = [await store.append(TRACE, [new(n)]) for n in range(5)]
            times = [event.recorded_at for event in await store.read(TRACE)]
            assert times == [answer.recorded_at for answer in answers]
            assert times == sorted(times)

    async def test_bad_input_is_refused_and_changes_nothing(self) -> None:
        """Errors name the field, the value and the rule."""
        bad: list[tuple[Any, dict[str, Any]]] = [
            ([], {}),
            ([new(1), {"type": "x"}], {}),
            ([stored(1)], {}),
            ([new(1, id="same"), new(2, id="same")], {}),
            ([NewEvent(type="contract.bad", data=math.nan)], {}),
            ([NewEvent(type="contract.bad", data=object())], {}),
            ([new(1)], {"expected_version": -1}),
            ([new(1)], {"expected_version": True}),
            ([new(1)], {"idempotency_key": ""}),
            ([new(1)], {"idempotency_key": "a\nb"}),
            ([new(1)], {"idempotency_key": "k" * 257}),
            ([new(1)], {"durability": "forever"}),
        ]
        async with self.open() as store:
            for events, options in bad:
                with refused(InvalidValue):
                    await store.append(TRACE, events, **options)
            for wrong in ((0,), (-1,), (1.5,), (1, 0), (1, -1)):
                with refused(InvalidValue):
                    await store.read(TRACE, *wrong)
            assert (await store.read(TRACE)).version == 0

    async def test_tenant_walls_one_tenant_does_not_see_anothers_events(self) -> None:
        """Same type, same id, two tenants: two streams."""
        async with self.open() as store:
            await store.append(TRACE, [new(1), new(2)], idempotency_key="k")
            assert len(await store.read(FOREIGN_TRACE)) == 0
            answer = await store.append(FOREIGN_TRACE, [new(7)], expected_version=0, idempotency_key="k")
            assert (answer.first_version, answer.repeated) == (1, False)
            assert [event.data["n"] for event in await store.read(FOREIGN_TRACE)] == [7]
            assert [event.data["n"] for event in await store.read(TRACE)] == [1, 2]

    async def test_tenant_walls_an_event_of_another_tenant_is_not_appended(self) -> None:
        """The error says which one it was, and nothing is stored."""
        async with self.open() as store:
            events: list[Any] = [new(1), new(2), stored(3, FOREIGN_TRACE)]
            with refused(SecurityError) as caught:
                await store.append(TRACE, events)
            assert caught.error.index == 2
            assert (await store.read(TRACE)).version == 0
