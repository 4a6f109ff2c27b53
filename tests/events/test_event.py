"""Events, their ids and times, and streams of them."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from typing import Any

import msgspec
import pytest

from tests.events.parts import FOREIGN, TRACE, event
from toril import InvalidValue
from toril.events import (
    Aggregate,
    Event,
    EventStream,
    NewEvent,
    OrderingError,
    SecurityError,
    StoreError,
    ValidationError,
    new_event_id,
    now,
    use_clock,
)
from toril.handler import UnfitPayload

LONE = "\ud800"
TIMES: list[Any] = [-1, 1.5, True, "5", None, math.nan, 2**63]
NUMBERS: list[Any] = [0, -1, 1.0, True, "1", None, 2**53]

REFUSED: list[tuple[str, str, list[Any]]] = [
    ("id", "event id", ["", "a\nb", "x" * 257, LONE, 5, None]),
    ("type", "event type", ["", "a b", "a:b", "a\n", "x" * 257, 5, None]),
    ("schema_version", "schema_version", NUMBERS),
    ("occurred_at", "occurred_at", TIMES),
    ("metadata", "metadata", [None, [], "x", {1: 2}]),
]
REFUSED_STORED: list[tuple[str, str, list[Any]]] = [
    *REFUSED,
    ("version", "version", NUMBERS),
    ("recorded_at", "recorded_at", TIMES),
    ("aggregate_type", "aggregate type", ["", "a b", [], None]),
    ("aggregate_id", "aggregate id", ["", " ", "a\n", None]),
    ("tenant", "tenant", ["", " a", "a:b", [], None]),
]


@pytest.mark.parametrize(
    ("name", "field", "value"), [(name, field, value) for name, field, all_ in REFUSED for value in all_]
)
def test_a_new_event_that_breaks_a_rule_is_refused(name: str, field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        NewEvent(**{"type": "a.b", "data": 1, name: value})
    assert caught.value.field == field
    assert isinstance(caught.value, InvalidValue)
    assert str(caught.value).endswith(caught.value.rule)


@pytest.mark.parametrize(
    ("name", "field", "value"), [(name, field, v) for name, field, all_ in REFUSED_STORED for v in all_]
)
def test_an_event_that_breaks_a_rule_is_refused(name: str, field: str, value: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        Event(**{**msgspec.structs.asdict(event()), name: value})
    assert caught.value.field == field


def test_known_metadata_is_text_and_all_else_passes_through() -> None:
    for name in ("traceparent", "causation_id", "correlation_id"):
        with pytest.raises(ValidationError, match=f"metadata {name} None"):
            NewEvent(type="a", data=1, metadata={name: None})
    metadata = {"traceparent": "t", "causation_id": "c", "correlation_id": "s", "own": {"deep": [0]}}
    made = event(metadata=metadata)
    assert (made.traceparent, made.causation_id, made.correlation_id) == ("t", "c", "s")
    assert Event.from_bytes(made.to_bytes()).metadata == metadata
    assert (event().traceparent, event().causation_id, event().correlation_id) == (None, None, None)


def test_an_event_survives_being_stored() -> None:
    made = event(3, {"zero": 0, "big": 2**70, "text": "ünï ✓", "none": None}, occurred_at=0, recorded_at=0)
    assert Event.from_bytes(made.to_bytes()) == made
    new: NewEvent[Any] = NewEvent(type="a.b", data=[1, {"x": 0.5}], occurred_at=2**63 - 1)
    assert NewEvent.from_bytes(new.to_bytes()) == new


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b'{"type":"a b","data":1,"id":"x"}', b"\xff"])
def test_an_event_that_cannot_be_read_is_an_error(raw: bytes) -> None:
    for read in (Event.from_bytes, NewEvent.from_bytes):
        with pytest.raises(StoreError, match="cannot be read") as caught:
            read(raw)
        assert not caught.value.retryable


@pytest.mark.parametrize("data", [object(), math.nan, [math.inf], {"a": {1j}}, LONE])
def test_data_that_is_not_json_is_refused(data: Any) -> None:
    with pytest.raises(InvalidValue, match="JSON"):
        NewEvent(type="a", data=data).to_bytes()


class Span(msgspec.Struct):
    name: str
    cost: int = 0


def test_data_has_the_type_one_asks_for() -> None:
    made = event(data={"name": "x"})
    assert made.data_as(Span) == Span("x", 0)
    with pytest.raises(UnfitPayload, match="Span"):
        event(data={"cost": "much"}).data_as(Span)
    typed = NewEvent(type="a", data=Span("x", 5))
    assert NewEvent.from_bytes(typed.to_bytes()).data == {"name": "x", "cost": 5}


def test_an_event_can_be_changed_into_another() -> None:
    made = event(2, {"a": 1})
    assert made.with_data([0]).data == [0]
    assert made.with_data([0]).schema_version == 1
    assert made.with_data([0], schema_version=4).schema_version == 4
    assert made.data == {"a": 1}
    with pytest.raises(AttributeError):
        made.version = 5  # type: ignore[misc]


def test_a_cause_is_remembered() -> None:
    cause = event(id="first")
    effect = NewEvent(type="b", data=1, metadata={"own": 1}).caused_by(cause)
    assert effect.metadata == {"own": 1, "causation_id": "first", "correlation_id": "first"}
    next_one = NewEvent(type="c", data=1).caused_by(effect.recorded(TRACE, version=2, recorded_at=0))
    assert next_one.metadata == {"causation_id": effect.id, "correlation_id": "first"}


def test_tenant_walls_an_event_shows_itself_without_tenant_and_data() -> None:
    made = event(7, {"secret": "s3cret"})
    assert repr(made) == "Event('span.recorded', id='e0007', version=7)"
    assert "s3cret" not in repr(NewEvent(type="a", data="s3cret"))


# ---------------------------------------------------------------------- ids and times


def test_ids_are_unique_sorted_and_of_version_7() -> None:
    before = time.time_ns() // 1_000_000
    ids = [new_event_id() for _ in range(10_000)]
    after = time.time_ns() // 1_000_000
    assert ids == sorted(set(ids))
    for text in (ids[0], ids[-1]):
        made = uuid.UUID(text)
        assert (made.version, made.variant, str(made)) == (7, uuid.RFC_4122, text)
        assert before <= made.int >> 80 <= after + 5


def test_ids_are_unique_over_threads() -> None:
    made: list[list[str]] = [[] for _ in range(8)]

    def fill(ids: list[str]) -> None:
        ids.extend(new_event_id() for _ in range(2000))

    threads = [threading.Thread(target=fill, args=(ids,)) for ids in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for ids in made for one in ids}) == 16_000
    assert all(ids == sorted(ids) for ids in made)


def test_ids_go_on_when_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_event_id()
    monkeypatch.setattr("time.time_ns", lambda: 5)
    assert first < new_event_id() < new_event_id()


async def test_events_occur_by_the_clock_in_use() -> None:
    assert abs(NewEvent(type="a", data=1).occurred_at - time.time_ns()) < 10**9
    with use_clock(lambda: 0):
        assert NewEvent(type="a", data=1).occurred_at == 0
        assert await asyncio.to_thread(now) == 0
        with use_clock(lambda: 7):
            assert now() == 7
        assert now() == 0
    assert now() > 0


# ---------------------------------------------------------------------- streams


def test_a_stream_knows_its_place() -> None:
    stream = EventStream.of(TRACE, [event(3, occurred_at=0), event(4, occurred_at=9)], after=2)
    assert (stream.version, stream.tenant, len(stream)) == (4, TRACE.tenant, 2)
    assert [one.version for one in stream] == [3, 4]
    assert (stream.metadata.event_count, stream.metadata.first_occurred_at) == (2, 0)
    assert stream.metadata.last_occurred_at == 9
    empty = EventStream(TRACE)
    assert (empty.version, len(empty), empty.metadata.event_count) == (0, 0, 0)
    assert empty.metadata.first_occurred_at is None


@pytest.mark.parametrize(
    ("versions", "after", "expected", "actual"),
    [([2], 0, 1, 2), ([1, 3], 0, 2, 3), ([1, 1], 0, 2, 1), ([2, 1], 1, 3, 1), ([1], 1, 2, 1)],
)
def test_gap_free_a_stream_without_contiguous_versions_is_refused(
    versions: list[int], after: int, expected: int, actual: int
) -> None:
    with pytest.raises(OrderingError) as caught:
        EventStream.of(TRACE, [event(version) for version in versions], after)
    assert (caught.value.expected, caught.value.actual) == (expected, actual)


def test_tenant_walls_a_stream_has_the_events_of_one_tenant() -> None:
    with pytest.raises(SecurityError, match="event 1 belongs to another tenant") as caught:
        EventStream.of(TRACE, [event(1), event(2, aggregate=FOREIGN)])
    assert caught.value.index == 1
    with pytest.raises(ValidationError, match="event 0"):
        EventStream.of(TRACE, [event(1, aggregate=Aggregate(TRACE.tenant, "trace", "other"))])
    with pytest.raises(ValidationError, match="after"):
        EventStream(TRACE, after=-1)
