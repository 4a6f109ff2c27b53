"""JSON as jobs and events carry it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pytest

from toril import InvalidValue, codec


class Struct(msgspec.Struct):
    x: Any


@dataclasses.dataclass
class Dataclass:
    x: Any


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("inside", [lambda x: x, Struct, Dataclass, lambda x: {"a": [Struct({"b": (x,)})]}])
def test_numbers_that_would_become_null_are_refused_wherever_they_are(number: float, inside: Any) -> None:
    with pytest.raises(InvalidValue, match="would become null"):
        codec.encode("data", inside(number))


def test_null_itself_is_taken() -> None:
    assert codec.encode("data", Struct([None, Dataclass("null")])) == b'{"x":[null,{"x":"null"}]}'
