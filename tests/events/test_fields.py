"""Mergeable fields are commutative monoids, and a projection made of them is one too."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import reduce
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.parts import NOTE, ODD, SPAN, TraceSummary, event, histories
from toril.errors import InvalidValue
from toril.events import (
    AnyEvent,
    ConfigurationError,
    Count,
    DeclaredProjection,
    Derived,
    Field,
    FirstBy,
    Flag,
    LastBy,
    Maximum,
    Minimum,
    ProjectionError,
    SetOf,
    StateUnreadable,
    Sum,
    fold,
    path,
)

FIELDS = list(TraceSummary.fields.values())


def canonical(value: Any) -> Any:
    """So that 1, 1.0, True and -0.0 are told apart."""
    return repr(sorted(value, key=repr)) if isinstance(value, frozenset) else repr(value)


# ---------------------------------------------------------------------- laws of every field


def accumulate(field: Field[Any], events: list[AnyEvent]) -> Any:
    return reduce(field.merge, map(field.lift, events), None)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.what} {field.name}")
@given(st.data())
def test_every_field_is_a_commutative_monoid(field: Field[Any], data: st.DataObject) -> None:
    events = data.draw(histories(9))
    first, second = sorted(data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
    a, b, c = (accumulate(field, part) for part in (events[:first], events[first:second], events[second:]))
    merge = field.merge
    assert canonical(merge(None, a)) == canonical(a) == canonical(merge(a, None))
    assert canonical(merge(merge(a, b), c)) == canonical(merge(a, merge(b, c)))
    assert canonical(merge(a, b)) == canonical(merge(b, a))
    assert canonical(merge(merge(a, b), c)) == canonical(accumulate(field, events))


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.what} {field.name}")
@given(st.data())
def test_what_a_field_stores_it_restores(field: Field[Any], data: st.DataObject) -> None:
    made = accumulate(field, data.draw(histories()))
    if made is not None:
        again = field.restored(as_json(field.stored(made)))
        assert canonical(again) == canonical(made)


def as_json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


# ---------------------------------------------------------------------- laws of a whole projection


@given(histories(), histories(), histories())
def test_a_composed_projection_is_a_commutative_monoid(
    one: list[AnyEvent], two: list[AnyEvent], three: list[AnyEvent]
) -> None:
    merge, encode = TraceSummary.merge, TraceSummary.encode
    a, b, c = (fold(TraceSummary, events) for events in (one, two, three))
    initial = TraceSummary.initial()
    assert encode(merge(initial, a)) == encode(a) == encode(merge(a, initial))
    assert encode(merge(merge(a, b), c)) == encode(merge(a, merge(b, c)))
    assert encode(merge(a, b)) == encode(merge(b, a))


@given(histories(), st.randoms(use_true_random=False), st.integers(1, 5))
def test_live_is_batch_merging_any_split_equals_the_fold(
    events: list[AnyEvent], chance: random.Random, parts: int
) -> None:
    whole = fold(TraceSummary, events)
    shares: list[list[AnyEvent]] = [[] for _ in range(parts)]
    for one in chance.sample(events, len(events)):
        chance.choice(shares).append(one)
    states = [fold(TraceSummary, share) for share in shares]
    chance.shuffle(states)
    merged = reduce(TraceSummary.merge, states)
    assert merged == whole
    assert TraceSummary.encode(merged) == TraceSummary.encode(whole)
    assert merged.as_dict() == whole.as_dict()


@given(histories(), st.randoms(use_true_random=False))
def test_the_declared_form_equals_a_hand_written_one_on_shuffled_input(
    events: list[AnyEvent], chance: random.Random
) -> None:
    shuffled = chance.sample(events, len(events))
    assert canonical(fold(TraceSummary, shuffled).as_dict()) == canonical(by_hand(events))


def by_hand(events: list[AnyEvent]) -> dict[str, Any]:
    """What the declaration of TraceSummary says, once more, in plain Python over the whole history."""

    def values(name: str, kinds: tuple[str, ...] = (SPAN, NOTE, ODD)) -> list[Any]:
        found = (one.data.get(name) for one in events if one.type in kinds)
        return [value for value in found if value is not None]

    def by(name: str, order: str, chosen: Any, among: list[AnyEvent]) -> Any:
        places = [
            (one.data[order], one.id, one.data[name])
            for one in among
            if one.data.get(order) is not None and one.data.get(name) is not None
        ]
        return chosen(places, key=lambda place: place[:2])[2] if places else None

    spans = [one for one in events if one.type == SPAN]
    timed = [one for one in spans if one.data.get("start") is not None and one.data.get("end") is not None]
    scores = [float(score) + 0.0 for score in values("score")]
    notes = [one for one in events if one.type == NOTE and one.data.get("text") is not None]
    unfailed = [one for one in events if one.data.get("status") != "error"]
    started = min(values("start"), default=None)
    ended = max(values("end"), default=-1)
    note = max(notes, key=lambda one: (one.occurred_at, one.id)).data["text"] if notes else "none"
    return {
        "started_at": started,
        "ended_at": ended,
        "slowest": max((one.data["end"] - one.data["start"] for one in timed), default=None),
        "best_score": max(scores, default=None),
        "first_model": min(values("model"), default=None),
        "cost": sum(values("cost", (SPAN,))),
        "tokens": sum(values("tokens")) if values("tokens") else None,
        "spans": len(spans),
        "free_spans": sum(one.data.get("cost") == 0 for one in spans),
        "models": sorted(set(values("model")) - {""}),
        "few_starts": sorted(set(values("start")))[:3],
        "input": by("input", "start", min, events),
        "output": by("output", "end", max, unfailed),
        "note": note,
        "failed": any(
            one.data.get("status") == "error" or (one.data.get("cost") or 0) > 90 for one in events
        ),
        "duration": None if started is None else ended - started,
        "has_notes": note != "none",
    }


@given(histories())
def test_a_state_survives_being_stored(events: list[AnyEvent]) -> None:
    state = fold(TraceSummary, events)
    raw = TraceSummary.encode(state)
    assert TraceSummary.decode(raw) == state
    assert TraceSummary.encode(TraceSummary.decode(raw)) == raw


# ---------------------------------------------------------------------- values


class One(DeclaredProjection):
    low = Minimum("data.x", int)
    total = Sum("data.x")
    maybe = Sum("data.x", default=None)
    seen = SetOf("data.x", int)
    count = Count(where=path("data.x").exists())
    first = FirstBy("data.x", int, order="data.at")


def test_zero_is_a_value_and_null_is_none() -> None:
    state = fold(One, [event(1, {"x": None}), event(2, {}), event(3, {"at": 1})])
    assert state == One.initial()
    assert (state.low, state.total, state.maybe, state.seen, state.count, state.first) == (
        None,
        0,
        None,
        frozenset(),
        0,
        None,
    )
    state = One.apply(state, event(4, {"x": 0, "at": 0}))
    assert (state.low, state.maybe, state.seen, state.count, state.first) == (0, 0, frozenset({0}), 1, 0)


def test_whole_numbers_are_exact_whatever_their_size() -> None:
    state = fold(One, [event(n, {"x": 2**200 + n}) for n in range(1, 4)])
    assert state.total == 3 * 2**200 + 6
    assert One.decode(One.encode(state)).total == 3 * 2**200 + 6


@pytest.mark.parametrize("value", [0.1, 1.0, "1", True, [], {}, math.nan])
def test_a_value_of_another_kind_is_an_error_that_names_it(value: Any) -> None:
    with pytest.raises(ProjectionError, match="low") as caught:
        One.apply(One.initial(), event(1, {"x": value}))
    assert not caught.value.retryable


def test_floats_are_refused_in_a_sum_and_the_error_says_what_to_do() -> None:
    class Cost(DeclaredProjection):
        cost = Sum("data.cost")

    with pytest.raises(
        ProjectionError, match=r"cost: 0\.1 is float, not int; take a unit in which it is whole"
    ):
        Cost.apply(Cost.initial(), event(1, {"cost": 0.1}))


def test_a_float_has_one_form() -> None:
    class Scores(DeclaredProjection):
        low = Minimum("data.x", float)
        seen = SetOf("data.x", float)

    events = [event(n, {"x": x}) for n, x in enumerate([0.0, -0.0, 0], 1)]
    for order in (events, events[::-1]):
        state = fold(Scores, order)
        assert repr((state.low, sorted(state.seen))) == "(0.0, [0.0])"
    with pytest.raises(ProjectionError, match="low"):
        Scores.apply(Scores.initial(), event(1, {"x": 10**400}))


def test_of_equal_places_the_event_id_decides() -> None:
    class Ties(DeclaredProjection):
        first = FirstBy("data.x", str)
        last = LastBy("data.x", str)

    events = [event(n, {"x": ident}, id=ident, occurred_at=0) for n, ident in enumerate("bca", 1)]
    for order in (events, events[::-1]):
        state = fold(Ties, order)
        assert (state.first, state.last) == ("a", "c")


def test_an_event_is_counted_each_time_it_is_applied() -> None:
    """Once per event is the checkpoint's job: a sum cannot know."""
    twice = fold(One, [event(1, {"x": 5}), event(1, {"x": 5})])
    assert (twice.total, twice.count, twice.low) == (10, 2, 5)


def test_a_limited_set_keeps_the_smallest() -> None:
    class Few(DeclaredProjection):
        few = SetOf("data.x", int, limit=2)

    for order in ([3, 1, 2], [1, 2, 3], [2, 3, 1]):
        state = fold(Few, [event(n, {"x": x}) for n, x in enumerate(order, 1)])
        assert state.few == {1, 2}


def test_python_in_a_field_works_and_is_told() -> None:
    class WithPython(DeclaredProjection):
        length = Sum(lambda one: len(one.data["text"]))
        long_ones = Count(where=lambda one: len(one.data["text"]) > 3)
        plain = Count()

    state = fold(WithPython, [event(1, {"text": "abc"}), event(2, {"text": "abcd"})])
    assert (state.length, state.long_ones, state.plain) == (7, 1, 2)
    assert not WithPython.compilable
    assert [one["compilable"] for one in WithPython.describe()["fields"]] == [False, False, True]


# ---------------------------------------------------------------------- declarations


def test_a_declaration_is_data() -> None:
    class Small(DeclaredProjection):
        version = 2
        cost = Sum("data.cost", of=SPAN, where=path("data", "attributes", "gen_ai.model").equals("x"))
        took = Maximum(path("data.end") - path("data.start"), int)
        twice = Derived(path("cost") - path("took"), int)

    assert Small.compilable
    assert Small.describe() == {
        "name": "small",
        "version": 2,
        "event_types": None,
        "compilable": True,
        "fields": [
            {
                "name": "cost",
                "field": "sum",
                "event_types": [SPAN],
                "where": {
                    "expression": "comparison",
                    "operator": "==",
                    "left": {"expression": "path", "names": ["data", "attributes", "gen_ai.model"]},
                    "right": {"expression": "literal", "value": "x"},
                },
                "compilable": True,
                "value": {"expression": "path", "names": ["data", "cost"]},
                "kind": "int",
                "default": 0,
            },
            {
                "name": "took",
                "field": "maximum",
                "event_types": None,
                "where": None,
                "compilable": True,
                "value": {
                    "expression": "difference",
                    "left": {"expression": "path", "names": ["data", "end"]},
                    "right": {"expression": "path", "names": ["data", "start"]},
                },
                "kind": "int",
                "default": None,
            },
        ],
        "derived": [
            {
                "name": "twice",
                "value": {
                    "expression": "difference",
                    "left": {"expression": "path", "names": ["cost"]},
                    "right": {"expression": "path", "names": ["took"]},
                },
                "kind": "int",
                "compilable": True,
            }
        ],
    }


def test_the_types_of_a_projection_are_those_of_its_fields() -> None:
    class Both(DeclaredProjection):
        a = Count(of="a.x")
        b = Count(of=["b.x", "c.x"])

    class One(DeclaredProjection):
        a = Count(of="a.x")
        every = Count()

    class Given(DeclaredProjection):
        event_types = frozenset({"a.x", "b.x"})
        a = Count(of="a.x")
        every = Count()

    class More(Given):
        b = Count(of="b.x")

    assert Both.event_types == frozenset({"a.x", "b.x", "c.x"})
    assert One.event_types is None
    assert Given.event_types == More.event_types == frozenset({"a.x", "b.x"})
    assert list(More.fields) == ["a", "every", "b"]
    state = fold(More, [event(1, type="a.x"), event(2, type="b.x"), event(3, type="c.x")])
    assert (state.a, state.b, state.every) == (1, 1, 2)
    assert More.apply(state, event(4, type="c.x")) is state


wrong: Any = lambda value: value  # noqa: E731 - what no type checker would let through

REFUSED: dict[str, Callable[[], object]] = {
    "no path": lambda: Sum(wrong(5)),
    "empty path": lambda: Sum(""),
    "path into nothing": lambda: Sum("cost"),
    "path to the tenant": lambda: SetOf("tenant", str),
    "no kind": lambda: Minimum("data.x", wrong(list)),
    "kind without order": lambda: Minimum("data.x", object),
    "set of anything": lambda: SetOf("data.x", object),
    "limit 0": lambda: SetOf("data.x", int, limit=0),
    "no condition": lambda: Count(where=wrong("data.x")),
    "a value as condition": lambda: Count(where=wrong(path("data.x"))),
    "no event types": lambda: Count(of=[]),
    "order of objects": lambda: FirstBy("data.x", int, order_kind=object),
    "derived of nothing": lambda: Derived(wrong(5)),
    "derived without kind": lambda: Derived(wrong(path("a"))),
    "literal list": lambda: path("data.x").equals(wrong([1])),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_field_that_cannot_work_is_refused(what: str) -> None:
    with pytest.raises(ConfigurationError):
        REFUSED[what]()


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_literal_that_no_event_can_hold_is_refused(number: float) -> None:
    with pytest.raises(InvalidValue, match=f"literal.*{number}.*a finite number"):
        Count(where=path("data.x") < number)


def test_a_default_must_be_of_the_kind() -> None:
    with pytest.raises(ProjectionError, match="'x' is str, not int"):
        Minimum("data.x", int, default=wrong("x"))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"apply": Count()}, "'apply'"),
        ({"name": Sum("data.x")}, "name"),
        ({"_hidden": Count()}, "'_hidden'"),
        ({"version": 0}, "version 0"),
        ({"name": "a:b"}, "name 'a:b'"),
        ({"d": Derived(path("nothing") - 1, int)}, "derived of nothing"),
        ({"event_types": frozenset({"a.x"}), "b": Count(of="b.x")}, "leaves out .* b.x"),
    ],
)
def test_a_projection_that_cannot_work_is_refused(members: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        type("Bad", (DeclaredProjection,), members)


def test_a_state_never_changes() -> None:
    state = One.initial()
    with pytest.raises(AttributeError, match="total cannot be set"):
        state.total = 5
    before = One.apply(state, event(1, {"x": 5}))
    One.apply(before, event(2, {"x": 5}))
    One.merge(before, before)
    assert (state.total, before.total) == (0, 5)


def test_a_state_shows_itself() -> None:
    state = fold(One, [event(1, {"x": 5, "at": 1})])
    assert repr(state) == "One(low=5, total=5, maybe=5, seen=[5], count=1, first=5)"
    assert state != 5
    assert state != TraceSummary.initial()


UNREADABLE = {
    "nothing": b"",
    "no JSON": b"{",
    "another thing": b"[]",
    "another projection": TraceSummary.encode(TraceSummary.initial()),
    "another version": One.encode(One.initial()).replace(b'"version":1', b'"version":2'),
    "a field less": b'{"projection":"one","version":1,"state":{"low":null}}',
    "a list for a number": One.encode(fold(One, [event(1, {"x": 5})])).replace(b'"low":5', b'"low":[5]'),
    "a count of none": One.encode(fold(One, [event(1, {"x": 5})])).replace(b'"count":1', b'"count":0'),
    "a number for a set": One.encode(fold(One, [event(1, {"x": 5})])).replace(b"[5]", b"5"),
    "half a place": One.encode(fold(One, [event(1, {"x": 5, "at": 1})])).replace(b'"e0001",', b""),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_state_that_cannot_be_read_is_an_error_never_the_initial_state(what: str) -> None:
    with pytest.raises(StateUnreadable):
        One.decode(UNREADABLE[what])


def test_states_of_another_projection_are_refused() -> None:
    other: Any = TraceSummary.initial()
    for use in (
        lambda: One.merge(other, One.initial()),
        lambda: One.encode(other),
        lambda: One.apply(other, event(1, {"x": 5})),
    ):
        with pytest.raises(ProjectionError, match="no state of one"):
            use()


def test_flags_and_counts_take_no_value() -> None:
    class Kinds(DeclaredProjection):
        noted = Flag(of=NOTE)
        spans = Count(of=SPAN)

    state = fold(Kinds, [event(1, type=NOTE), event(2), event(3, type=ODD)])
    assert (state.noted, state.spans) == (True, 1)
