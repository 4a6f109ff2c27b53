"""Orders of several parts, several values at once, texts that are cut, quotients, and texts by key."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from math import floor
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.parts import event
from toril.events import (
    AnyEvent,
    ConfigurationError,
    DeclaredProjection,
    Derived,
    Field,
    FirstBy,
    FirstPerKey,
    LastBy,
    Maximum,
    Minimum,
    ProjectionError,
    SetOf,
    StateUnreadable,
    Sum,
    first_of,
    fold,
    literal,
    members,
    path,
    quotient,
    size,
    text,
)

IS_CHILD = path("data.parent").exists()
ORDER = (IS_CHILD, "data.start", "data.span")


class Tree(DeclaredProjection):
    root_first = FirstBy("data.name", object, order=ORDER, order_kind=(bool, int, str))
    root_last = LastBy("data.name", object, order=(~IS_CHILD, "data.score"), order_kind=(bool, float))
    child_first = FirstBy("data.name", object, order=~IS_CHILD, order_kind=bool)
    models = SetOf(members("data.model", "data.models", most=3), str, limit=3)
    low = Minimum(members("data.start", "data.end"), int)
    high = Maximum(members("data.start", "data.end"), int)
    total = Sum(members("data.counts"), default=None)
    preview = FirstBy(text("data.input", 5), str, order="data.start")
    preview_bytes = FirstBy(size("data.input"), int, order="data.start")
    alias = FirstBy(first_of("data.nick", "data.span"), str, order="data.start")
    notes = FirstPerKey(
        {"name": "data.name", "m.fixed": first_of("data.nick", "data.model")},
        prefixes={"m.": "data.notes"},
        order=ORDER,
        order_kind=(bool, int, str),
        limit=4,
        most=6,
    )
    per = Derived(quotient("total", path("high") - path("low"), times=10), int)


words = st.sampled_from(["", "a", "b", "gpt-4o", "ü😀€", "zz"])
payloads = st.fixed_dictionaries(
    {},
    optional={
        "parent": st.none() | words,
        "start": st.none() | st.integers(-2, 3),
        "end": st.none() | st.integers(-2, 3),
        "span": words,
        "score": st.sampled_from([0, -0.0, 0.0, 1.5, -1]),
        "name": st.none() | words | st.just({"b": 1, "a": [None, 1.5]}) | st.integers(0, 3),
        "model": st.none() | words,
        "models": st.none() | words | st.lists(words | st.none(), max_size=6),
        "counts": st.none() | st.lists(st.integers(-5, 2**70), max_size=4),
        "input": st.none() | words | st.lists(words, max_size=3),
        "nick": st.none() | words,
        "notes": st.none()
        | words
        | st.dictionaries(
            st.sampled_from(["m.a", "m.b", "m.c", "m.d", "m.fixed", "m.", "m", "x", "m." + "long" * 64]),
            st.none() | words | st.integers(0, 9) | st.just({"z": 1, "a": "ü"}),
            max_size=6,
        ),
    },
)


@st.composite
def histories(draw: st.DrawFn, most: int = 9) -> list[AnyEvent]:
    parts = draw(st.lists(payloads, max_size=most))
    ids = draw(st.permutations(range(len(parts))))
    return [
        event(version, data, id=f"e{ident:02}")
        for version, (data, ident) in enumerate(zip(parts, ids, strict=True), 1)
    ]


def accumulate(field: Field[Any], events: list[AnyEvent]) -> Any:
    return reduce(field.merge, map(field.lift, events), None)


def exact(value: Any) -> str:
    return repr(sorted(value)) if isinstance(value, frozenset) else repr(value)


FIELDS = list(Tree.fields.values())


@pytest.mark.promise
@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.what} {field.name}")
@given(st.data())
def test_every_field_is_a_commutative_monoid(field: Field[Any], data: st.DataObject) -> None:
    events = data.draw(histories())
    first, second = sorted(data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
    a, b, c = (accumulate(field, part) for part in (events[:first], events[first:second], events[second:]))
    merge = field.merge
    assert exact(merge(None, a)) == exact(a) == exact(merge(a, None))
    assert exact(merge(merge(a, b), c)) == exact(merge(a, merge(b, c)))
    assert exact(merge(a, b)) == exact(merge(b, a))
    assert exact(merge(merge(a, b), c)) == exact(accumulate(field, events))


@pytest.mark.promise
@given(histories(), st.randoms(use_true_random=False))
def test_order_and_storing_make_no_difference(events: list[AnyEvent], chance: random.Random) -> None:
    whole = fold(Tree, events)
    raw = Tree.encode(whole)
    assert Tree.encode(fold(Tree, chance.sample(events, len(events)))) == raw
    again = Tree.decode(raw)
    assert again == whole
    assert Tree.encode(again) == raw
    assert again.as_dict() == whole.as_dict()


@given(histories())
def test_the_fields_say_what_plain_python_says(events: list[AnyEvent]) -> None:
    state = fold(Tree, events)
    data = [(one.data, one.id) for one in events]

    def first(name: str, key: Callable[[Any, str], Any]) -> Any:
        places = [(key(d, ident), d[name]) for d, ident in data if d.get(name) is not None]
        return min((one for one in places if None not in one[0]), key=lambda one: one[0], default=(0, None))[
            1
        ]

    def root_first(d: Any, ident: str) -> tuple[Any, ...]:
        return (d.get("parent") is not None, d.get("start"), d.get("span"), ident)

    assert state.root_first == first("name", root_first)
    assert state.child_first == first("name", lambda d, ident: (d.get("parent") is None, ident))
    models = set()
    for d, _ in data:
        many = d.get("models")
        models |= {d.get("model"), *(many if isinstance(many, list) else [many])} - {None}
    clipped = {one.encode()[:3].decode(errors="ignore") for one in models}
    assert state.models == set(sorted(clipped)[:3])
    times = [d[name] for d, _ in data for name in ("start", "end") if d.get(name) is not None]
    assert (state.low, state.high) == (min(times, default=None), max(times, default=None))
    counts = [count for d, _ in data for count in d.get("counts") or []]
    assert state.total == (sum(counts) if counts else None)
    notes: dict[str, Any] = {}
    for d, ident in data:
        said = d.get("notes") if isinstance(d.get("notes"), dict) else {}
        found = {key: value for key, value in said.items() if key.startswith("m.") and len(key) < 200}
        nick = d.get("nick") if d.get("nick") is not None else d.get("model")
        found |= {"name": d.get("name"), "m.fixed": nick}
        for key, value in found.items():
            place = root_first(d, ident)
            if value is not None and None not in place and (key not in notes or place < notes[key][0]):
                as_text = (
                    value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
                )
                notes[key] = (place, as_text.encode()[:6].decode(errors="ignore"))
    assert state.notes == {key: notes[key][1] for key in sorted(notes)[:4]}
    if state.total is not None and times and min(times) < max(times):
        ratio = Fraction(state.total * 10, max(times) - min(times))
        assert state.per == floor(ratio + Fraction(1, 2))
    else:
        assert state.per is None


# ---------------------------------------------------------------------- one by one


def of(value: Any, **data: Any) -> Any:
    return value.compiled()(event(1, data))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("abc", "abc"),
        ("abcdef", "abcd"),
        ("aüüü", "aü"),
        ("😀😀", "😀"),
        ("€€", "€"),
        ("", ""),
        (0, "0"),
        (False, "fals"),
        (1.5, "1.5"),
        ({"b": 1, "a": 2}, '{"a"'),
        ([], "[]"),
        (None, None),
    ],
)
def test_a_text_is_cut_at_a_whole_character(value: Any, expected: str | None) -> None:
    assert of(text("data.x", 4), x=value) == expected


def test_the_size_is_that_of_the_whole_text() -> None:
    assert of(size("data.x"), x="ü" * 9) == 18
    assert of(size("data.x"), x={"b": 1, "a": 2}) == len('{"a":2,"b":1}')
    assert of(size("data.x")) is None


@pytest.mark.parametrize(
    ("left", "right", "times", "expected"),
    [
        (7, 2, 1, 4),
        (-7, 2, 1, -3),
        (7, -2, 1, -3),
        (1, 3, 1, 0),
        (2, 3, 1, 1),
        (0, 5, 1, 0),
        (5, 0, 1, None),
        (2**70, 3, 10**9, (2**70 * 10**9 * 2 + 3) // 6),
        (None, 3, 1, None),
        (3, None, 1, None),
    ],
)
def test_a_quotient_is_rounded_half_up(left: Any, right: Any, times: int, expected: int | None) -> None:
    assert of(quotient("data.a", "data.b", times=times), a=left, b=right) == expected


def test_a_quotient_of_fractions_is_refused() -> None:
    with pytest.raises(ProjectionError, match="1.5 is no whole number"):
        of(quotient("data.a", literal(2)), a=1.5)


def test_the_first_that_is_there_is_taken_zero_too() -> None:
    assert of(first_of("data.a", "data.b"), a=None, b=0) == 0
    assert of(first_of("data.a", "data.b")) is None


def test_a_member_of_another_kind_is_an_error_that_names_it() -> None:
    with pytest.raises(ProjectionError, match="models: 5 is int, not str"):
        Tree.apply(Tree.initial(), event(1, {"models": ["a", 5]}))


def test_an_event_without_a_part_of_the_order_contributes_nothing() -> None:
    state = fold(Tree, [event(1, {"name": "x", "start": 1}), event(2, {"name": "y", "span": "s"})])
    assert state.root_first is None
    assert state.notes == {}


def test_keys_beyond_the_limit_are_the_largest_in_whatever_order() -> None:
    events = [
        event(n, {"start": n, "span": "s", "notes": {f"m.{key}": key}}) for n, key in enumerate("fbdeca", 1)
    ]
    for order in (events, events[::-1]):
        assert fold(Tree, order).notes == {"m.a": "a", "m.b": "b", "m.c": "c", "m.d": "d"}


def test_one_event_with_more_than_the_limit_keeps_the_smallest_too() -> None:
    notes = {f"m.{key}": key for key in "fbdeca"}
    many = event(1, {"start": 1, "span": "s", "notes": notes, "models": ["e", "d", "a", "c", "b"]})
    state = fold(Tree, [many])
    assert list(state.notes) == ["m.a", "m.b", "m.c", "m.d"]
    assert state.models == {"a", "b", "c"}
    assert Tree.decode(Tree.encode(state)) == state


def test_a_declaration_with_them_is_data() -> None:
    assert Tree.compilable
    described = {one["name"]: one for one in Tree.describe()["fields"]}
    child = {"expression": "exists", "value": {"expression": "path", "names": ["data", "parent"]}}
    start = {"expression": "path", "names": ["data", "start"]}
    span = {"expression": "path", "names": ["data", "span"]}
    assert described["root_first"]["order"] == [child, start, span]
    assert described["root_first"]["order_kind"] == ["bool", "int", "str"]
    assert described["child_first"]["order"] == {"expression": "not", "condition": child}
    assert described["preview"]["order_kind"] == "int"
    assert described["preview"]["value"] == {
        "expression": "text",
        "value": {"expression": "path", "names": ["data", "input"]},
        "most": 5,
    }
    assert described["low"]["value"] == {
        "expression": "members",
        "values": [start, {"expression": "path", "names": ["data", "end"]}],
        "most": None,
    }
    notes = described["notes"]
    assert (notes["field"], notes["limit"], notes["most"], notes["longest_key"]) == (
        "first_per_key",
        4,
        6,
        256,
    )
    assert notes["prefixes"] == {"m.": {"expression": "path", "names": ["data", "notes"]}}
    assert notes["named"]["name"] == {"expression": "path", "names": ["data", "name"]}
    assert Tree.describe()["derived"][0]["value"]["times"] == 10
    assert msgspec.json.decode(msgspec.json.encode(Tree.describe())) == Tree.describe()


def test_python_in_an_order_or_a_map_is_told() -> None:
    class WithPython(DeclaredProjection):
        ordered = FirstBy("data.x", int, order=(lambda one: one.data["x"], "data.x"), order_kind=(int, int))
        texts = FirstPerKey({"x": lambda one: one.data["x"]}, limit=1, most=10)

    state = fold(WithPython, [event(1, {"x": 2}), event(2, {"x": 1})])
    assert (state.ordered, state.texts) == (1, {"x": "2"})
    described = WithPython.describe()["fields"]
    assert [one["compilable"] for one in described] == [False, False]
    assert described[0]["order"][0] is None
    assert described[1]["named"] == {"x": None}


wrong: Any = lambda value: value  # noqa: E731 - what no type checker would let through

REFUSED: dict[str, Callable[[], object]] = {
    "a condition as value": lambda: Sum(wrong(path("data.x").exists())),
    "members where one is chosen": lambda: FirstBy(members("data.x"), int),
    "too few kinds": lambda: FirstBy("data.x", int, order=("data.a", "data.b"), order_kind=(int,)),
    "one kind for several parts": lambda: FirstBy("data.x", int, order=("data.a", "data.b")),
    "several kinds for one part": lambda: FirstBy("data.x", int, order="data.a", order_kind=(int,)),
    "no part": lambda: FirstBy("data.x", int, order=(), order_kind=()),
    "a part of objects": lambda: FirstBy("data.x", int, order=("data.a",), order_kind=(object,)),
    "text of 0 bytes": lambda: text("data.x", 0),
    "members of true bytes": lambda: members("data.x", most=True),
    "members of nothing": lambda: members(),
    "text of a number": lambda: text(wrong(5)),
    "quotient times 1.5": lambda: quotient("a", "b", times=cast("int", 1.5)),
    "a map without limit": lambda: FirstPerKey({}, limit=0, most=5),
    "a map of no bytes": lambda: FirstPerKey({}, limit=1, most=0),
    "a map with an empty key": lambda: FirstPerKey({"": "data.x"}, limit=1, most=5),
    "a map with a long prefix": lambda: FirstPerKey({}, prefixes={"x" * 257: "data.x"}, limit=1, most=5),
    "a map into nothing": lambda: FirstPerKey({"a": "nothing.x"}, limit=1, most=5),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_work_is_refused(what: str) -> None:
    with pytest.raises(ConfigurationError):
        REFUSED[what]()


FULL = Tree.encode(fold(Tree, [event(1, {"name": "n", "start": 1, "span": "s"})]))

UNREADABLE = {
    "a part of the order less": (b'"root_first":[[false,1,"s"]', b'"root_first":[[false,1]'),
    "a part of another kind": (b'"root_first":[[false,1,"s"]', b'"root_first":[[0,1,"s"]'),
    "one part for several": (b'"root_first":[[false,1,"s"]', b'"root_first":[false'),
    "a map without keys": (b'{"name":"n"}', b"{}"),
    "a map of numbers": (b'{"name":"n"}', b'{"name":5}'),
    "a map as such": (b'[[[false,1,"s"],"e0001",{"name":"n"}]]', b'{"name":"n"}'),
    "a map with half a group": (b'[[[false,1,"s"],"e0001",{"name":"n"}]]', b'[[[false,1,"s"],"e0001"]]'),
    "a map with a key twice": (
        b'[[[false,1,"s"],"e0001",{"name":"n"}]]',
        b'[[[false,1,"s"],"e0001",{"name":"n"}],[[false,2,"s"],"e0002",{"name":"n"}]]',
    ),
    "a map of nothing": (b'[[[false,1,"s"],"e0001",{"name":"n"}]]', b"[]"),
    "a map over its limit": (b'{"name":"n"}', b'{"a":"","b":"","c":"","d":"","e":""}'),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_state_that_cannot_have_been_stored_is_refused(what: str) -> None:
    good, bad = UNREADABLE[what]
    assert good in FULL
    with pytest.raises(StateUnreadable):
        Tree.decode(FULL.replace(good, bad))
