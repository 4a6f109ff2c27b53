"""How a value is taken from an event: small expressions that are data.

An expression can be evaluated here, and looked at (:meth:`Expression.describe`) by an engine that makes
its own expression of it. Both must agree, so the rules are few:

- What is not there, and null, are the same: *missing*.
- A comparison with something missing is false.
- Text, numbers and booleans are different kinds, and values of different kinds are not the same and have no
  order: only ``differs`` is true of them. So it is with lists and objects, which are compared to nothing.
- Text is in the order of its characters' numbers, which is the order of its bytes in UTF-8.
- A difference with something missing is missing. Both sides must be whole numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from toril.events.errors import ConfigurationError, ProjectionError, ValidationError

Scalar = str | int | float | bool
"""What an expression can compare with."""

Evaluate = Callable[[Any], Any]
"""From an event (or a state) to a value; None for missing."""


class Expression(msgspec.Struct, frozen=True, tag_field="expression"):
    """Part of an expression. Make one with :func:`path` and :func:`literal`."""

    def compiled(self) -> Evaluate:
        """A function that evaluates it."""
        raise ConfigurationError(f"{type(self).__name__} does not say how it is evaluated")

    def paths(self) -> frozenset[Path]:
        """All paths in it."""
        return frozenset()

    @property
    def compilable(self) -> bool:
        """Whether an engine can compute it: whether all of it is of classes that one knows."""
        parts = (getattr(self, name) for name in self.__struct_fields__)
        inside = (one for part in parts for one in (part if isinstance(part, tuple) else (part,)))
        return is_own(self) and all(one.compilable for one in inside if isinstance(one, Expression))

    def describe(self) -> dict[str, Any]:
        """The expression as plain data, for an engine that compiles it."""
        made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return made


class Condition(Expression, frozen=True):
    """An expression that is true or false. Join conditions with ``&``, ``|`` and ``~``."""

    def __and__(self, other: Condition) -> All:
        return All((self, other))

    def __or__(self, other: Condition) -> AnyOf:
        return AnyOf((self, other))

    def __invert__(self) -> Not:
        return Not(self)


class Value(Expression, frozen=True):
    """An expression that stands for a value."""

    def equals(self, other: Value | Scalar) -> Comparison:
        """Whether both are the same."""
        return Comparison("==", self, _value(other))

    def differs(self, other: Value | Scalar) -> Comparison:
        """Whether both are there, and are not the same."""
        return Comparison("!=", self, _value(other))

    def is_in(self, *others: Scalar) -> AnyOf:
        """Whether it is one of these."""
        return AnyOf(tuple(self.equals(other) for other in others))

    def exists(self) -> Exists:
        """Whether it is there, and not null. Zero, false and the empty text exist."""
        return Exists(self)

    def __lt__(self, other: Value | Scalar) -> Comparison:
        return Comparison("<", self, _value(other))

    def __le__(self, other: Value | Scalar) -> Comparison:
        return Comparison("<=", self, _value(other))

    def __gt__(self, other: Value | Scalar) -> Comparison:
        return Comparison(">", self, _value(other))

    def __ge__(self, other: Value | Scalar) -> Comparison:
        return Comparison(">=", self, _value(other))

    def __sub__(self, other: Value | int) -> Difference:
        return Difference(self, _value(other))


class Path(Value, frozen=True, tag="path"):
    """A value inside of an event, by the names that lead to it."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names or not all(isinstance(name, str) and name for name in self.names):
            raise ConfigurationError(f"the path {self.names!r} must have names, like 'data.cost'")

    def __str__(self) -> str:
        return ".".join(self.names)

    def paths(self) -> frozenset[Path]:
        return frozenset({self})

    def compiled(self) -> Evaluate:
        root, *inner = self.names
        if not inner:
            return operator.attrgetter(root)
        from_root = operator.attrgetter(root)

        def evaluate(thing: Any) -> Any:
            found = from_root(thing)
            for name in inner:
                if type(found) is dict:
                    found = found.get(name)
                elif found is None:
                    return None
                else:
                    found = _member(found, name)
            return found

        return evaluate


class Literal(Value, frozen=True, tag="literal"):
    """A value that is always the same."""

    value: Scalar

    def __post_init__(self) -> None:
        if not isinstance(self.value, str | int | float | bool):
            raise ConfigurationError(f"{self.value!r} is no literal: text, a number, True or False is")
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise ValidationError("literal", self.value, "a finite number: no event holds another")

    def compiled(self) -> Evaluate:
        value = self.value
        return lambda _: value


class Difference(Value, frozen=True, tag="difference"):
    """One whole number less another, such as an end less a start."""

    left: Value
    right: Value

    def paths(self) -> frozenset[Path]:
        return self.left.paths() | self.right.paths()

    def compiled(self) -> Evaluate:
        left, right = self.left.compiled(), self.right.compiled()

        def evaluate(thing: Any) -> int | None:
            a, b = left(thing), right(thing)
            if a is None or b is None:
                return None
            if type(a) is not int or type(b) is not int:
                wrong = a if type(a) is not int else b
                raise ProjectionError(f"{wrong!r:.100} is no whole number to take a difference of")
            return a - b

        return evaluate


class Comparison(Condition, frozen=True, tag="comparison"):
    """Two values, compared."""

    operators: ClassVar[dict[str, Callable[[Any, Any], bool]]] = {
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }

    operator: str
    left: Value
    right: Value

    def __post_init__(self) -> None:
        if self.operator not in self.operators:
            raise ConfigurationError(f"there is no comparison {self.operator!r}")

    def paths(self) -> frozenset[Path]:
        return self.left.paths() | self.right.paths()

    def compiled(self) -> Evaluate:
        left, right = self.left.compiled(), self.right.compiled()
        compare = self.operators[self.operator]
        different_kinds = self.operator == "!="

        def evaluate(thing: Any) -> bool:
            a = left(thing)
            if a is None:
                return False
            b = right(thing)
            if b is None:
                return False
            same_type = type(a) is type(b) and type(a) in _COMPARED  # almost always, and quick to tell
            if not same_type and ((kind := _kind(a)) is None or kind != _kind(b)):
                return different_kinds
            return compare(a, b)

        return evaluate


class Exists(Condition, frozen=True, tag="exists"):
    """Whether a value is there, and not null."""

    value: Value

    def paths(self) -> frozenset[Path]:
        return self.value.paths()

    def compiled(self) -> Evaluate:
        value = self.value.compiled()
        return lambda thing: value(thing) is not None


class All(Condition, frozen=True, tag="all"):
    """Whether all conditions are true."""

    conditions: tuple[Condition, ...]

    def paths(self) -> frozenset[Path]:
        return _paths_of(self.conditions)

    def compiled(self) -> Evaluate:
        parts = [condition.compiled() for condition in self.conditions]

        def evaluate(thing: Any) -> bool:
            for part in parts:  # noqa: SIM110 - a generator would cost more than most conditions
                if not part(thing):
                    return False
            return True

        return evaluate


class AnyOf(Condition, frozen=True, tag="any"):
    """Whether one of the conditions is true."""

    conditions: tuple[Condition, ...]

    def paths(self) -> frozenset[Path]:
        return _paths_of(self.conditions)

    def compiled(self) -> Evaluate:
        parts = [condition.compiled() for condition in self.conditions]

        def evaluate(thing: Any) -> bool:
            for part in parts:  # noqa: SIM110 - as above
                if part(thing):
                    return True
            return False

        return evaluate


class Not(Condition, frozen=True, tag="not"):
    """Whether a condition is false."""

    condition: Condition

    def paths(self) -> frozenset[Path]:
        return self.condition.paths()

    def compiled(self) -> Evaluate:
        part = self.condition.compiled()
        return lambda thing: not part(thing)


def path(*names: str) -> Path:
    """A value of an event: ``path("data.cost")``; ``path("data", "attributes", "gen_ai.model")``.

    A single name is taken apart at its dots; of several, each is one name, dots and all.
    """
    return Path(tuple(names[0].split(".")) if len(names) == 1 else names)


def literal(value: Scalar) -> Literal:
    """A value that is always the same."""
    return Literal(value)


def is_own(made: object) -> bool:
    """Whether it is of a class of this package: what another class does, no engine can know."""
    return type(made).__module__.startswith(f"{__package__}.")


def _value(thing: Value | Scalar) -> Value:
    return thing if isinstance(thing, Value) else Literal(thing)


def _paths_of(parts: tuple[Condition, ...]) -> frozenset[Path]:
    return frozenset().union(*(part.paths() for part in parts))


def _member(thing: Any, name: str) -> Any:
    """What an object has under a name. Where data has a type of its own, its fields are attributes."""
    if isinstance(thing, Mapping):
        return thing.get(name)
    if isinstance(thing, str | bytes | int | float | list | tuple) or name.startswith("_"):
        return None
    return getattr(thing, name, None)


_COMPARED = frozenset({str, int, float, bool})


def _kind(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else None
