"""Mergeable fields: what a declared projection is made of.

Each field says what one event contributes (:meth:`Field.lift`), and how two contributions are joined
(:meth:`Field.combine`). Joining is associative and commutative, and nothing (None) changes nothing: a
commutative monoid. So the state is the same in whatever order events come, and however they are split over
machines. It is not idempotent: an event must be taken once, which is the checkpoint's job.

What is missing or null contributes nothing. Zero, false and the empty text are values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, Generic, NoReturn, Self, TypeVar, overload

import msgspec

from toril.events.computed import Members
from toril.events.errors import ConfigurationError, ProjectionError
from toril.events.event import AnyEvent
from toril.events.expressions import Condition, Evaluate, Expression, Value, is_own, path
from toril.events.projection import event_type_set

Shown = TypeVar("Shown")
"""What a field shows in a state."""
T = TypeVar("T")

Source = str | Value | Callable[[AnyEvent], Any]
"""Where a value comes from: a path like ``"data.cost"``, an expression, or Python that no engine can read."""

Where = Condition | Callable[[AnyEvent], bool]
"""Which events count: a condition, or Python (which no engine can read)."""

Types = str | Iterable[str] | None
"""Event types; None for all that the projection takes."""

EVENT_ROOTS = frozenset(
    {
        "id",
        "aggregate_type",
        "aggregate_id",
        "version",
        "type",
        "schema_version",
        "occurred_at",
        "recorded_at",
        "data",
        "metadata",
    }
)
"""What a path into an event can begin with."""

KINDS = {int: "int", float: "float", str: "str", bool: "bool", object: "json"}
"""The types that values can have, and what an engine knows them by."""


class Field(ABC, Generic[Shown]):
    """One field of a declared projection."""

    what: str
    """What kind of field it is, as an engine knows it."""
    name: str = "field"

    def __init__(self, *, of: Types = None, where: Where | None = None) -> None:
        self.event_types = event_type_set(of)
        """The types of events it looks at; None for all that the projection takes."""
        if where is not None and not isinstance(where, Condition) and not callable(where):
            raise ConfigurationError(f"where={where!r} must be a condition or a function")
        self.where = where
        self.condition: Evaluate | None = None if where is None else _compiled(where)
        """``where`` as a function."""
        self._sources: list[Source | Where] = [] if where is None else [where]

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, state: None, owner: type) -> Self: ...
    @overload
    def __get__(self, state: object, owner: type) -> Shown: ...
    def __get__(self, state: Any, owner: type) -> Any:
        return self if state is None else self.shown(state.accumulated(self.name))

    def __set__(self, state: object, value: object) -> NoReturn:
        raise AttributeError(f"{self.name} cannot be set: a state never changes")

    @property
    def compilable(self) -> bool:
        """Whether an engine can compute it: whether there is no Python in it."""
        return is_own(self) and all(isinstance(one, Expression) and one.compilable for one in self._sources)

    def takes(self, event: AnyEvent) -> bool:
        """Whether it looks at this event at all."""
        if self.event_types is not None and event.type not in self.event_types:
            return False
        return self.condition is None or bool(self.condition(event))

    def lift(self, event: AnyEvent) -> Any:
        """What one event contributes; None for nothing."""
        return self.contribution(event) if self.takes(event) else None

    def merge(self, one: Any, other: Any) -> Any:
        """Two contributions as one. None, on either side, changes nothing."""
        if one is None:
            return other
        return one if other is None else self.combine(one, other)

    @abstractmethod
    def contribution(self, event: AnyEvent) -> Any:
        """What an event that it looks at contributes; None for nothing."""

    @abstractmethod
    def combine(self, one: Any, other: Any) -> Any:
        """Two contributions, neither of them None, as one."""

    @abstractmethod
    def shown(self, accumulated: Any) -> Shown:
        """What is shown for what has been accumulated, which may be None."""

    def stored(self, accumulated: Any) -> Any:
        """What has been accumulated, as JSON. Equal values, equal JSON."""
        return accumulated

    @abstractmethod
    def restored(self, stored: Any) -> Any:
        """From JSON. A ValueError where it cannot have been stored by this field."""

    def describe(self) -> dict[str, Any]:
        """The field as plain data, for an engine that compiles it."""
        return {
            "name": self.name,
            "field": self.what,
            "event_types": None if self.event_types is None else sorted(self.event_types),
            "where": self.where.describe() if isinstance(self.where, Condition) else None,
            "compilable": self.compilable,
        }

    def take(self, source: Source | Condition) -> tuple[Source | Condition, Evaluate]:
        """Something that this field is made of, and the function that evaluates it."""
        if isinstance(source, str):
            source = path(source)
        if not isinstance(source, Expression) and not callable(source):
            raise ConfigurationError(
                f"{source!r} must be a path like 'data.cost', an expression or a function"
            )
        self._sources.append(source)
        return source, _compiled(source)


class FieldOfValue(Field[Shown]):
    """A field made of a value of each event, of one kind; with ``members(…)``, of several."""

    def __init__(self, value: Source, kind: type, default: Any, of: Types, where: Where | None) -> None:
        super().__init__(of=of, where=where)
        self.value, self._value = self.take(value)
        if isinstance(self.value, Condition):
            raise ConfigurationError(f"{value!r} is a condition, not a value")
        if kind not in KINDS:
            raise ConfigurationError(f"kind {kind!r} must be one of int, float, str, bool, object")
        self.kind = kind
        self.default = None if default is None else self._checked(default)
        self.several = isinstance(self.value, Members)
        """Whether an event contributes each of several values."""

    def _checked(self, value: Any, kind: type | None = None) -> Any:
        return checked(self.name, value, kind or self.kind)

    def contribution(self, event: AnyEvent) -> Any:
        value = self._value(event)
        if self.several:
            return reduce(self.combine, map(self._checked, value)) if value else None
        return None if value is None else self._checked(value)

    def shown(self, accumulated: Any) -> Shown:
        made: Any = self.default if accumulated is None else accumulated
        return made  # type: ignore[no-any-return]

    def restored(self, stored: Any) -> Any:
        return self._checked(stored)

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "value": self.value.describe() if isinstance(self.value, Value) else None,
            "kind": KINDS[self.kind],
            "default": self.default,
        }


class Sum(FieldOfValue[Shown]):
    """The sum of whole numbers, exact whatever their size: ``Sum("data.cost")``.

    Floats are refused: their sum depends on the order in which they are added, so live and batch would not
    agree. Take a unit in which values are whole: nano-USD, nanoseconds, tokens. (Exact fractions would
    agree too, but grow without bound, and no engine has them.) ``default=None`` tells a sum of 0 from one
    of nothing.
    """

    what = "sum"

    @overload
    def __init__(
        self: Sum[int], value: Source, *, of: Types = None, where: Where | None = None, default: int = 0
    ) -> None: ...
    @overload
    def __init__(
        self: Sum[int | None],
        value: Source,
        *,
        default: None,
        of: Types = None,
        where: Where | None = None,
    ) -> None: ...
    def __init__(
        self, value: Source, *, of: Types = None, where: Where | None = None, default: int | None = 0
    ) -> None:
        super().__init__(value, int, default, of, where)

    def combine(self, one: int, other: int) -> int:
        return one + other


class Count(Field[int]):
    """How many events there were: ``Count(of="lw.obs.span.recorded")``, ``Count(where=path(…).exists())``."""

    what = "count"

    def contribution(self, event: AnyEvent) -> int:  # noqa: ARG002 - each event counts the same
        return 1

    def combine(self, one: int, other: int) -> int:
        return one + other

    def shown(self, accumulated: int | None) -> int:
        return accumulated or 0

    def restored(self, stored: Any) -> int:
        number: int = checked(self.name, stored, int)
        if number < 1:
            raise ValueError(f"{self.name}: {number} is no number of events")
        return number


class SetOf(FieldOfValue[frozenset[T]]):
    """The values that there were, each once: ``SetOf("data.model", str)``. Stored in order.

    Of lists, and of several places: ``SetOf(members("data.labels", "data.label"), str)``.

    ``limit`` keeps that many of them, the smallest; which those are does not depend on the order of events.
    A set that grows with the number of events makes each event dearer than the last: set a limit.
    """

    what = "set"

    def __init__(
        self,
        value: Source,
        kind: type[T],
        *,
        limit: int | None = None,
        of: Types = None,
        where: Where | None = None,
    ) -> None:
        super().__init__(value, kind, None, of, where)
        if kind is object:
            raise ConfigurationError("a set needs values of one kind: int, float, str or bool")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ConfigurationError(f"limit={limit!r} must be a whole number from 1")
        self.limit = limit

    def contribution(self, event: AnyEvent) -> frozenset[Any] | None:
        value = self._value(event)
        if self.several:
            return self._limited(frozenset(map(self._checked, value))) if value else None
        return None if value is None else frozenset((self._checked(value),))

    def combine(self, one: frozenset[Any], other: frozenset[Any]) -> frozenset[Any]:
        return one if other <= one else self._limited(one | other)

    def _limited(self, values: frozenset[Any]) -> frozenset[Any]:
        if self.limit is None or len(values) <= self.limit:
            return values
        return frozenset(sorted(values)[: self.limit])

    def shown(self, accumulated: frozenset[T] | None) -> frozenset[T]:
        return frozenset() if accumulated is None else accumulated

    def stored(self, accumulated: frozenset[Any] | None) -> list[Any] | None:
        return None if accumulated is None else sorted(accumulated)

    def restored(self, stored: Any) -> frozenset[Any]:
        if not isinstance(stored, list) or not stored:
            raise ValueError(f"{self.name}: a set is stored as a list with values")
        return frozenset(self._checked(value) for value in stored)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "limit": self.limit}


class Flag(Field[bool]):
    """Whether there was an event of a kind: ``Flag(where=path("data.status").equals("error"))``."""

    what = "flag"

    def contribution(self, event: AnyEvent) -> bool:  # noqa: ARG002 - that there was one is enough
        return True

    def combine(self, one: bool, other: bool) -> bool:
        return one or other

    def shown(self, accumulated: bool | None) -> bool:
        return bool(accumulated)

    def restored(self, stored: Any) -> bool:
        if stored is not True:
            raise ValueError(f"{self.name}: a flag is stored as true, or not at all")
        return True


def checked(name: str, value: Any, kind: type) -> Any:
    """A value in the one form that its kind has; a :class:`ProjectionError` for one of another kind."""
    if kind is int and type(value) is int:
        return value
    if kind is str and isinstance(value, str):
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value) + 0.0  # no -0.0: of two that are equal, neither may be kept by chance
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    if kind is bool and type(value) is bool:
        return value
    if kind is object:
        return value if isinstance(value, str | int) else msgspec.to_builtins(value)
    hint = "; take a unit in which it is whole" if kind is int and isinstance(value, float) else ""
    raise ProjectionError(
        f"{name}: {value!r:.100} is {type(value).__name__}, not {kind.__name__}{hint}", retryable=False
    )


def _compiled(source: Any) -> Evaluate:
    """The function that evaluates an expression over an event, or the function given."""
    if not isinstance(source, Expression):
        evaluate: Evaluate = source
        return evaluate
    for used in source.paths():
        if used.names[0] not in EVENT_ROOTS:
            raise ConfigurationError(
                f"the path {used} must begin with one of {', '.join(sorted(EVENT_ROOTS))}"
            )
    return source.compiled()
