"""What every projection store must do."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any

from toril.errors import InvalidValue
from toril.events.contracts.parts import FOREIGN_TRACE, OTHER_TRACE, TRACE, refused, stored
from toril.events.declared import DeclaredProjection
from toril.events.errors import StateUnreadable, VersionConflict
from toril.events.event import AnyEvent
from toril.events.fields import Count, SetOf, Sum
from toril.events.projection import FoldProjection
from toril.events.stores import ProjectionStore


class Numbers(DeclaredProjection):
    """Adds up what the contract's events have in them."""

    total = Sum("data.n")
    seen = SetOf("data.n", int)
    events = Count()


class NewNumbers(DeclaredProjection):
    """A later version of the same."""

    name = "numbers"
    version = 2
    total = Sum("data.n")


class Broken(FoldProjection[Any]):
    """Stores what it cannot read."""

    name = "broken"
    state_type = int

    def initial(self) -> Any:
        return 0

    def apply(self, state: Any, event: AnyEvent) -> Any:  # noqa: ARG002 - it does not matter what it does
        return state


class ProjectionStoreContract(ABC):
    """Tests for a :class:`~toril.events.ProjectionStore`."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[ProjectionStore]:
        """A fresh, empty store."""

    async def test_what_is_saved_is_loaded(self) -> None:
        """State and version."""
        async with self.open() as store:
            assert await store.load(Numbers, TRACE) is None
            state = Numbers.apply(Numbers.apply(Numbers.initial(), stored(1)), stored(2))
            await store.save(Numbers, TRACE, state, version=2, expected_version=0)
            found = await store.load(Numbers, TRACE)
            assert found is not None
            assert (found.state, found.version) == (state, 2)
            assert (found.state.total, found.state.seen, found.state.events) == (3, frozenset({1, 2}), 2)
            assert await store.load(Numbers, OTHER_TRACE) is None

    async def test_once_per_state_a_save_that_expects_another_version_changes_nothing(self) -> None:
        """State and checkpoint are one: who comes second has to look again."""
        async with self.open() as store:
            state = Numbers.apply(Numbers.initial(), stored(1))
            with refused(VersionConflict):
                await store.save(Numbers, TRACE, state, version=2, expected_version=1)
            await store.save(Numbers, TRACE, state, version=1, expected_version=0)
            twice = Numbers.apply(state, stored(1))
            with refused(VersionConflict) as caught:
                await store.save(Numbers, TRACE, twice, version=1, expected_version=0)
            assert (caught.error.expected, caught.error.actual) == (0, 1)
            found = await store.load(Numbers, TRACE)
            assert found is not None
            assert found.state.total == 1

    async def test_once_per_state_of_many_saves_at_once_one_wins(self) -> None:
        """The others get a conflict."""
        async with self.open() as store:
            state = Numbers.apply(Numbers.initial(), stored(1))
            saves = (store.save(Numbers, TRACE, state, version=1, expected_version=0) for _ in range(10))
            answers = await asyncio.gather(*saves, return_exceptions=True)
            assert sum(answer is None for answer in answers) == 1
            assert sum(isinstance(answer, VersionConflict) for answer in answers) == 9

    async def test_a_state_can_be_replaced_at_its_version_and_does_not_go_back(self) -> None:
        """So that it can be built anew."""
        async with self.open() as store:
            await store.save(Numbers, TRACE, Numbers.initial(), version=5, expected_version=0)
            state = Numbers.apply(Numbers.initial(), stored(1))
            await store.save(Numbers, TRACE, state, version=5, expected_version=5)
            found = await store.load(Numbers, TRACE)
            assert found is not None
            assert (found.state.total, found.version) == (1, 5)
            with refused(InvalidValue):
                await store.save(Numbers, TRACE, state, version=4, expected_version=5)

    async def test_versions_of_a_projection_have_states_of_their_own(self) -> None:
        """The new one starts from the beginning; the old one stays."""
        async with self.open() as store:
            await store.save(
                Numbers, TRACE, Numbers.apply(Numbers.initial(), stored(1)), version=1, expected_version=0
            )
            assert await store.load(NewNumbers, TRACE) is None
            await store.save(NewNumbers, TRACE, NewNumbers.initial(), version=3, expected_version=0)
            old, fresh = await store.load(Numbers, TRACE), await store.load(NewNumbers, TRACE)
            assert old is not None
            assert fresh is not None
            assert (old.version, fresh.version) == (1, 3)

    async def test_a_state_that_cannot_be_read_is_an_error(self) -> None:
        """Never the initial state, which would be stored over it."""
        async with self.open() as store:
            await store.save(Broken(), TRACE, "no number", version=1, expected_version=0)
            with refused(StateUnreadable):
                await store.load(Broken(), TRACE)

    async def test_bad_input_is_refused(self) -> None:
        """And changes nothing."""
        async with self.open() as store:
            bad: list[tuple[Any, Any]] = [(0, 0), (-1, 0), (1, -1), (1.0, 0), (True, 0), (None, 0), (1, None)]
            for version, expected in bad:
                with refused(InvalidValue):
                    await store.save(
                        Numbers, TRACE, Numbers.initial(), version=version, expected_version=expected
                    )
            assert await store.load(Numbers, TRACE) is None

    async def test_tenant_walls_one_tenant_does_not_see_anothers_state(self) -> None:
        """Same type, same id, two tenants: two states."""
        async with self.open() as store:
            mine = Numbers.apply(Numbers.initial(), stored(1))
            await store.save(Numbers, TRACE, mine, version=1, expected_version=0)
            assert await store.load(Numbers, FOREIGN_TRACE) is None
            await store.save(Numbers, FOREIGN_TRACE, Numbers.initial(), version=9, expected_version=0)
            found = await store.load(Numbers, TRACE)
            assert found is not None
            assert (found.state, found.version) == (mine, 1)
