from __future__ import annotations

import pytest

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events import Event, NewEvent, StoreError
from toril.events.event import restore_event

ORDER = Aggregate("acme", "order", "17:a")


@pytest.mark.parametrize("schema", [1, 2])
def test_a_stored_event_is_the_one_that_was_recorded(schema: int) -> None:
    new = NewEvent(
        type="placed",
        data={"n": [1, None]},
        schema_version=schema,
        metadata={"traceparent": "00-1", "x": 1},
    )
    recorded = new.recorded(ORDER, version=3, recorded_at=5)
    restored = restore_event(new.to_bytes(), ORDER.key, version=3, recorded_at=5)
    assert restored == recorded
    assert type(restored) is type(recorded)
    assert restored.to_bytes() == recorded.to_bytes()
    assert (
        restored.metadata
        is not restore_event(b'{"type":"t","data":1}', "a:b:c", version=1, recorded_at=0).metadata
    )


def test_one_does_not_change_another() -> None:
    first = restore_event(NewEvent(type="a", data=1).to_bytes(), ORDER.key, version=1, recorded_at=1)
    restore_event(NewEvent(type="b", data=2).to_bytes(), "other:x:1", version=2, recorded_at=2)
    assert (first.type, first.data, first.version, first.aggregate) == ("a", 1, 1, ORDER)


@pytest.mark.parametrize("body", [b"", b"{", b'{"type": 5, "data": 1}', b'{"data": 1}', b"[]"])
def test_what_cannot_be_read_is_an_error(body: bytes) -> None:
    with pytest.raises(StoreError, match="cannot be read") as caught:
        restore_event(body, ORDER.key, version=1, recorded_at=0)
    assert not caught.value.retryable


@pytest.mark.parametrize("said", ['"data":', '"data":1,"more":'])
def test_what_is_nested_too_deeply_is_an_error_as_well(said: str) -> None:
    deep = f"{said}{'[' * 5000}{']' * 5000}".encode()
    new = NewEvent(type="placed", data=1)
    for read, written in (
        (lambda raw: restore_event(raw, ORDER.key, version=1, recorded_at=0), new),
        (NewEvent.from_bytes, new),
        (Event.from_bytes, new.recorded(ORDER, version=1, recorded_at=0)),
    ):
        with pytest.raises(StoreError, match="cannot be read: it is nested too deeply") as caught:
            read(written.to_bytes().replace(b'"data":1', deep))
        assert not caught.value.retryable


def test_a_key_with_too_few_parts_is_an_error() -> None:
    with pytest.raises(InvalidValue, match="three parts"):
        restore_event(b'{"type":"t","data":1}', "acme:order", version=1, recorded_at=0)
