"""Expressions: what they say of an event, with the rules that every engine must keep."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from tests.events.parts import event
from toril.events import ConfigurationError, Expression, ProjectionError, literal, path

DATA = {
    "zero": 0,
    "five": 5,
    "half": 0.5,
    "text": "b",
    "empty": "",
    "no": False,
    "yes": True,
    "null": None,
    "list": [1],
    "deep": {"er": {"gen_ai.model": "x"}, "list": [{"a": 1}]},
}


def of(expression: Expression, data: Any = DATA, **more: Any) -> Any:
    return expression.compiled()(event(2, data, **more))


def test_paths_lead_into_an_event() -> None:
    assert of(path("data.five")) == 5
    assert of(path("version")) == 2
    assert of(path("metadata.correlation_id"), metadata={"correlation_id": "c"}) == "c"
    assert of(path("data", "deep", "er", "gen_ai.model")) == "x"
    for missing in ("data.nothing", "data.null", "data.null.deeper", "data.five.real", "data.list.0"):
        assert of(path(missing)) is None
    assert of(path("data.text.upper")) is None
    assert of(path("data.a"), data=None) is None
    assert of(path("data")) == DATA


@dataclasses.dataclass
class Typed:
    cost: int
    _hidden: int = 1


class Struct(msgspec.Struct):
    inner: Typed


def test_paths_lead_into_typed_data() -> None:
    made = Struct(Typed(7))
    assert of(path("data.inner.cost"), made) == 7
    assert of(path("data.inner._hidden"), made) is None
    assert of(path("data.inner.nothing"), made) is None


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (path("data.five").equals(5), True),
        (path("data.five").equals(5.0), True),
        (path("data.zero").equals(0), True),
        (path("data.zero").equals(False), False),
        (path("data.no").equals(False), True),
        (path("data.yes").equals(1), False),
        (path("data.text").equals("b"), True),
        (path("data.five").equals("5"), False),
        (path("data.five").differs("5"), True),
        (path("data.five").differs(5), False),
        (path("data.null").differs(5), False),
        (path("data.null").equals(path("data.nothing")), False),
        (path("data.list").equals(path("data.list")), False),
        (path("data.list") < path("data.list"), False),
        (path("data.five") > 4, True),
        (path("data.five") >= 5, True),
        (path("data.five") < 5, False),
        (path("data.half") <= 0.5, True),
        (path("data.five") > "4", False),
        (path("data.text") < "c", True),
        (path("data.yes") > 0, False),
        (path("data.nothing") < 5, False),
        (path("data.nothing") >= 5, False),
        (~(path("data.nothing") < 5), True),
        (path("data.text").is_in("a", "b"), True),
        (path("data.text").is_in("a", 5), False),
        (path("data.zero").exists(), True),
        (path("data.no").exists(), True),
        (path("data.empty").exists(), True),
        (path("data.null").exists(), False),
        (path("data.nothing").exists(), False),
        (path("data.five").exists() & path("data.null").exists(), False),
        (path("data.five").exists() | path("data.null").exists(), True),
        ((path("data.five") - path("data.zero")).equals(5), True),
        ((path("data.five") - path("data.null")).exists(), False),
        (literal(3).equals(3), True),
    ],
    ids=lambda part: str(part)[:80],
)
def test_conditions(expression: Expression, expected: bool) -> None:
    assert of(expression) is expected


def test_differences_are_of_whole_numbers() -> None:
    assert of(path("data.zero") - path("data.five")) == -5
    assert of(path("data.five") - 7) == -2
    assert of(path("data.nothing") - path("data.five")) is None
    for wrong in ("data.half", "data.yes", "data.text"):
        with pytest.raises(ProjectionError, match="no whole number"):
            of(path("data.five") - path(wrong))


def test_an_expression_is_data_and_can_be_compared() -> None:
    one = (path("data.a").equals(1) & ~path("data.b").exists()) | (path("data.c") - path("data.d") > 5)
    assert one == (path("data.a").equals(1) & ~path("data.b").exists()) | (
        path("data.c") - path("data.d") > 5
    )
    assert path("data.a").equals(1) != path("data.a").equals(2)
    assert {str(used) for used in one.paths()} == {"data.a", "data.b", "data.c", "data.d"}
    assert one.describe()["expression"] == "any"
    assert path("data.a").describe() == {"expression": "path", "names": ["data", "a"]}


@pytest.mark.parametrize("names", [(), ("",), ("data..a",), ("data", "")])
def test_a_path_without_names_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises((ConfigurationError, IndexError)):
        path(*names)
