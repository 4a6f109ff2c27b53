"""Checkpoints: their keys, and that whatever happens, they only move on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.parts import TRACE, event
from toril import InvalidValue
from toril.events import CheckpointError, CheckpointKey, CheckpointStatus, Claim, OrderingError
from toril.stores import MemoryCheckpointStore

KEY = CheckpointKey.of(TRACE, "span_ingestion", "span-storage")


def test_a_key_has_five_parts_and_the_last_may_have_colons() -> None:
    assert str(KEY) == "tenant-one:span_ingestion:span-storage:trace:t:1"
    assert CheckpointKey.parse(str(KEY)) == KEY
    assert KEY.aggregate == TRACE


names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=5)


@given(names, names, names, names, st.text(":abc ", min_size=1).filter(str.strip))
def test_a_key_gives_back_what_it_names(a: str, b: str, c: str, d: str, e: str) -> None:
    assert CheckpointKey.parse(str(CheckpointKey(a, b, c, d, e))) == CheckpointKey(a, b, c, d, e)


PARTS: dict[str, list[Any]] = {
    "tenant": ["", "a:b", " a", None],
    "pipeline": ["", "a:b", " a", "a\n", "x" * 129, None, 5],
    "processor": ["", "a:b", "a ", "\0", None],
    "aggregate_type": ["", "a:b", "a b", None],
    "aggregate_id": ["", " ", "a\n", None],
}


@pytest.mark.parametrize(("part", "value"), [(part, value) for part, all_ in PARTS.items() for value in all_])
def test_a_key_with_a_bad_part_is_refused(part: str, value: Any) -> None:
    good: dict[str, Any] = dict.fromkeys(PARTS, "x")
    with pytest.raises(InvalidValue):
        CheckpointKey(**{**good, part: value})


@pytest.mark.parametrize("text", ["", "acme", "acme:b:c:d", "acme::c:d:e", "acme:b:c:d:", None, 5])
def test_tenant_walls_what_is_no_key_is_refused_without_showing_it(text: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        CheckpointKey.parse(text)
    assert "acme" not in str(caught.value)
    assert KEY.tenant not in repr(KEY)


steps = st.lists(
    st.tuples(st.sampled_from(["begin", "complete", "fail", "clear", "skip"]), st.integers(1, 5)),
    max_size=40,
)


@given(steps)
async def test_order_kept_whatever_is_asked_a_checkpoint_only_moves_on(asked: list[tuple[str, int]]) -> None:
    """Its version never falls, grows by one, past nothing that was not completed or skipped."""
    store = MemoryCheckpointStore()
    events = {version: event(version) for version in range(1, 6)}
    done: set[int] = set()
    for verb, version in asked:
        before = await store.load(KEY)
        try:
            if verb == "begin":
                claim = await store.begin(KEY, events[version])
                if claim is Claim.RUN:
                    assert version not in done
                    assert done >= set(range(1, version))
                elif claim is Claim.DONE:
                    assert version in done
                elif claim is Claim.BLOCKED:
                    assert before is not None
                    assert before.status is CheckpointStatus.FAILED
                    assert version >= before.version
            elif verb == "complete":
                await store.complete(KEY, events[version])
                done.add(version)
            elif verb == "fail":
                await store.fail(KEY, events[version], "boom", attempts=1)
                assert version not in done
            elif verb == "clear":
                await store.clear(KEY, version)
            else:
                await store.skip(KEY, version)
                done.add(version)
        except (CheckpointError, OrderingError):
            assert await store.load(KEY) == before
            continue
        after = await store.load(KEY)
        old = 0 if before is None else before.version
        assert old <= (0 if after is None else after.version) <= old + 1
        if before is not None and after is not None and before.status is CheckpointStatus.PROCESSED:
            assert after.status is CheckpointStatus.PROCESSED or after.version > before.version
        assert done == set(range(1, len(done) + 1))
