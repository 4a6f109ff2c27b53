"""Old events are read in today's form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.events.parts import SPAN, TRACE, event
from toril import InvalidValue
from toril.events import (
    Category,
    ConfigurationError,
    EventStream,
    NewEvent,
    SchemaTooNew,
    SchemaUnknown,
    Upcasters,
    UpcastingEventStore,
)
from toril.stores import MemoryEventStore


@pytest.fixture
def upcasters() -> Upcasters:
    made = Upcasters()

    @made.step(SPAN, 1, 2)
    def cents_to_nano_usd(data: dict[str, Any]) -> dict[str, Any]:
        return {"cost": data["cents"] * 10_000_000}

    @made.step(SPAN, 2, 3)
    def with_currency(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "currency": "USD"}

    return made


@pytest.mark.parametrize(
    ("version", "data"),
    [(1, {"cents": 3}), (2, {"cost": 30_000_000}), (3, {"cost": 30_000_000, "currency": "USD"})],
)
def test_a_chain_leads_to_the_newest_form(upcasters: Upcasters, version: int, data: dict[str, Any]) -> None:
    old = event(5, data, schema_version=version)
    made = upcasters.apply(old)
    assert (made.data, made.schema_version) == ({"cost": 30_000_000, "currency": "USD"}, 3)
    assert (made.id, made.version, made.occurred_at) == (old.id, old.version, old.occurred_at)
    assert old.data == data
    assert upcasters.newest(SPAN) == 3


def test_an_event_newer_than_known_is_a_clear_error(upcasters: Upcasters) -> None:
    with pytest.raises(SchemaTooNew, match=r"e0001 of type span\.recorded has schema version 4.*up to 3"):
        upcasters.apply(event(schema_version=4))
    with pytest.raises(SchemaTooNew, match="up to 1") as caught:
        upcasters.apply(event(type="never.mentioned", schema_version=2))
    assert caught.value.retryable, "a newer worker can read it"
    assert upcasters.apply(event(type="never.mentioned")).schema_version == 1


def test_an_event_older_than_known_is_a_clear_error() -> None:
    upcasters = Upcasters()
    upcasters.declare(SPAN, 3)
    upcasters.register(SPAN, 3, 4, lambda data: data)
    assert upcasters.apply(event(schema_version=3)).schema_version == 4
    with pytest.raises(SchemaUnknown, match="has schema version 2.*oldest known version is 3"):
        upcasters.apply(event(schema_version=2))


def test_a_step_that_fails_names_itself(upcasters: Upcasters) -> None:
    with pytest.raises(SchemaUnknown, match="step from 1 to 2 failed with KeyError") as caught:
        upcasters.apply(event(data={}))
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.category is Category.CRITICAL


wrong: Any = None
BAD: dict[str, Callable[[Upcasters], object]] = {
    "is there already": lambda to: to.register(SPAN, 1, 2, lambda data: data),
    "is there already ": lambda to: to.register(SPAN, 2, 3, lambda data: data),
    "circle": lambda to: to.register(SPAN, 3, 3, lambda data: data),
    "circle ": lambda to: to.register(SPAN, 3, 1, lambda data: data),
    "gap: the next step is from 3 to 4": lambda to: to.register(SPAN, 4, 5, lambda data: data),
    "gap: the next step is from 3 to 4 ": lambda to: to.register(SPAN, 3, 5, lambda data: data),
    "gap: the next step is from 1 to 2": lambda to: to.register("other.type", 2, 3, lambda data: data),
    "function": lambda to: to.register(SPAN, 3, 4, wrong),
    "whole number from 1": lambda to: to.register(SPAN, 0, 1, lambda data: data),
    "already": lambda to: to.declare(SPAN, 5),
    "must be a whole number": lambda to: to.declare("other.type", 0),
}


@pytest.mark.parametrize("what", BAD)
def test_a_step_that_cannot_be_is_refused(upcasters: Upcasters, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what.strip()):
        BAD[what](upcasters)
    assert upcasters.newest(SPAN) == 3
    assert upcasters.newest("other.type") == 1


def test_a_type_that_breaks_its_rule_is_refused(upcasters: Upcasters) -> None:
    with pytest.raises(InvalidValue):
        upcasters.register("no type", 1, 2, lambda data: data)


async def test_a_store_reads_in_the_newest_form(upcasters: Upcasters) -> None:
    plain = MemoryEventStore()
    store = UpcastingEventStore(plain, upcasters)
    await store.append(TRACE, [NewEvent(type=SPAN, data={"cents": 3})])
    await store.append(TRACE, [NewEvent(type=SPAN, data={"cost": 5, "currency": "EUR"}, schema_version=3)])
    assert [one.data["cost"] for one in await store.read(TRACE)] == [30_000_000, 5]
    assert (await plain.read(TRACE)).events[0].data == {"cents": 3}
    stream = upcasters.apply_all(EventStream.of(TRACE, [event(4, {"cents": 0})], after=3))
    assert (stream.version, stream.after, stream.events[0].data["cost"]) == (4, 3, 0)
