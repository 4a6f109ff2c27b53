"""Values that are worked out of others: texts that are cut, sizes, quotients, and several values at once.

They are expressions like those of :mod:`toril.events.expressions`, so an engine can compute them too:

- The text of a text is itself. That of anything else is its JSON, without spaces, names in the order of
  their characters' numbers.
- What is cut ends with a whole character.
- A quotient is rounded to the nearest whole number, a half upwards. By zero, it is missing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from toril.events.errors import ConfigurationError, ProjectionError
from toril.events.expressions import Evaluate, Path, Value, path

_canonical = msgspec.json.Encoder(order="deterministic")


class FirstOf(Value, frozen=True, tag="first_of"):
    """The first of several values that is there."""

    values: tuple[Value, ...]

    def paths(self) -> frozenset[Path]:
        return _paths_of(self.values)

    def compiled(self) -> Evaluate:
        parts = [value.compiled() for value in self.values]

        def evaluate(thing: Any) -> Any:
            for part in parts:
                if (found := part(thing)) is not None:
                    return found
            return None

        return evaluate


class Text(Value, frozen=True, tag="text"):
    """A value as text, cut to so many bytes of UTF-8."""

    value: Value
    most: int | None

    def __post_init__(self) -> None:
        check_most(self.most)

    def paths(self) -> frozenset[Path]:
        return self.value.paths()

    def compiled(self) -> Evaluate:
        value, most = self.value.compiled(), self.most

        def evaluate(thing: Any) -> str | None:
            found = value(thing)
            return None if found is None else cut(as_text(found), most)

        return evaluate


class Size(Value, frozen=True, tag="size"):
    """How many bytes of UTF-8 the text of a value has."""

    value: Value

    def paths(self) -> frozenset[Path]:
        return self.value.paths()

    def compiled(self) -> Evaluate:
        value = self.value.compiled()

        def evaluate(thing: Any) -> int | None:
            found = value(thing)
            return None if found is None else len(as_text(found).encode())

        return evaluate


class Quotient(Value, frozen=True, tag="quotient"):
    """One whole number, so many times, by another: rounded to the nearest, a half upwards."""

    left: Value
    right: Value
    times: int

    def __post_init__(self) -> None:
        if type(self.times) is not int:
            raise ConfigurationError(f"times={self.times!r} must be a whole number")

    def paths(self) -> frozenset[Path]:
        return self.left.paths() | self.right.paths()

    def compiled(self) -> Evaluate:
        left, right, times = self.left.compiled(), self.right.compiled(), self.times

        def evaluate(thing: Any) -> int | None:
            a, b = left(thing), right(thing)
            if a is None or b is None:
                return None
            if type(a) is not int or type(b) is not int:
                wrong = a if type(a) is not int else b
                raise ProjectionError(
                    f"{wrong!r:.100} is no whole number to take a quotient of", retryable=False
                )
            return None if b == 0 else (2 * a * times + b) // (2 * b)

        return evaluate


class Members(Value, frozen=True, tag="members"):
    """Several values at once: all that are there, and of a list its members, if they are."""

    values: tuple[Value, ...]
    most: int | None

    def __post_init__(self) -> None:
        check_most(self.most)

    def paths(self) -> frozenset[Path]:
        return _paths_of(self.values)

    def compiled(self) -> Evaluate:
        parts, most = [value.compiled() for value in self.values], self.most

        def evaluate(thing: Any) -> list[Any]:
            found: list[Any] = []
            for part in parts:
                value = part(thing)
                if isinstance(value, list | tuple):
                    found.extend(member for member in value if member is not None)
                elif value is not None:
                    found.append(value)
            if most is None:
                return found
            return [cut(value, most) if isinstance(value, str) else value for value in found]

        return evaluate


def first_of(*values: str | Value) -> FirstOf:
    """The first of several values that is there: ``first_of("data.name", "data.id")``."""
    return FirstOf(_values(values))


def text(value: str | Value, most: int | None = None) -> Text:
    """A value as text, cut to ``most`` bytes of UTF-8: ``text("data.input", 4096)``."""
    return Text(_values((value,))[0], most)


def size(value: str | Value) -> Size:
    """How many bytes of UTF-8 the text of a value has, when it is not cut."""
    return Size(_values((value,))[0])


def quotient(left: str | Value, right: str | Value, *, times: int = 1) -> Quotient:
    """``left`` · ``times`` / ``right``, rounded: ``quotient("tokens", "duration", times=10**9)``."""
    one, other = _values((left, right))
    return Quotient(one, other, times)


def members(*values: str | Value, most: int | None = None) -> Members:
    """Several values at once, and of lists their members: ``SetOf(members("data.labels"), str)``.

    Each is contributed for itself. ``most`` cuts each text to so many bytes of UTF-8.
    """
    return Members(_values(values), most)


def as_text(value: Any) -> str:
    """A value as text. See the module's text."""
    return value if isinstance(value, str) else _canonical.encode(value).decode()


def cut(whole: str, most: int | None) -> str:
    """A text in at most so many bytes of UTF-8, up to a whole character."""
    if most is None or len(whole) * 4 <= most:
        return whole
    raw = whole[:most].encode()
    return whole if len(raw) <= most and len(whole) <= most else raw[:most].decode(errors="ignore")


def check_most(most: object) -> None:
    """Refuse a number of bytes that is none."""
    if most is not None and (type(most) is not int or most < 1):
        raise ConfigurationError(f"most={most!r} must be a whole number of bytes from 1")


def _values(given: tuple[str | Value, ...]) -> tuple[Value, ...]:
    if not given:
        raise ConfigurationError("at least one path or expression must be given")
    for one in given:
        if not isinstance(one, str | Value):
            raise ConfigurationError(f"{one!r} must be a path like 'data.cost' or an expression")
    return tuple(path(one) if isinstance(one, str) else one for one in given)


def _paths_of(values: tuple[Value, ...]) -> frozenset[Path]:
    return frozenset().union(*(value.paths() for value in values))
