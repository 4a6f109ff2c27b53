"""Mergeable fields that choose one value: the smallest, the largest, the first and the last of an order."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from toril.events.errors import ConfigurationError
from toril.events.event import AnyEvent
from toril.events.fields import FieldOfValue, Shown, Source, Types, Where
from toril.events.orders import Order, OrderKind, Place, before

T = TypeVar("T")

# Each class has its overloads to itself: type checkers infer nothing from a base's ``self: _Base[T]``.


class _Extreme(FieldOfValue[Shown]):
    def __init__(self, value: Source, kind: type, default: Any, of: Types, where: Where | None) -> None:
        super().__init__(value, kind, default, of, where)
        if kind is object:
            raise ConfigurationError(f"a {self.what} needs values with an order: int, float, str or bool")


class Minimum(_Extreme[Shown]):
    """The smallest value: ``Minimum("data.start", int)``. None, or ``default``, where there was none."""

    what = "minimum"

    @overload
    def __init__(
        self: Minimum[T | None],
        value: Source,
        kind: type[T],
        *,
        of: Types = None,
        where: Where | None = None,
        default: None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Minimum[T],
        value: Source,
        kind: type[T],
        *,
        default: T,
        of: Types = None,
        where: Where | None = None,
    ) -> None: ...
    def __init__(
        self, value: Source, kind: Any, *, of: Types = None, where: Where | None = None, default: Any = None
    ) -> None:
        super().__init__(value, kind, default, of, where)

    def combine(self, one: Any, other: Any) -> Any:
        return min(one, other)


class Maximum(_Extreme[Shown]):
    """The largest value: ``Maximum("data.end", int)``. None, or ``default``, where there was none."""

    what = "maximum"

    @overload
    def __init__(
        self: Maximum[T | None],
        value: Source,
        kind: type[T],
        *,
        of: Types = None,
        where: Where | None = None,
        default: None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Maximum[T],
        value: Source,
        kind: type[T],
        *,
        default: T,
        of: Types = None,
        where: Where | None = None,
    ) -> None: ...
    def __init__(
        self, value: Source, kind: Any, *, of: Types = None, where: Where | None = None, default: Any = None
    ) -> None:
        super().__init__(value, kind, default, of, where)

    def combine(self, one: Any, other: Any) -> Any:
        return max(one, other)


class _By(FieldOfValue[Shown]):
    """A value chosen by an order. Accumulated are the order, the event's id, and the value."""

    def __init__(
        self,
        value: Source,
        kind: type,
        order: Order,
        order_kind: OrderKind,
        default: Any,
        of: Types,
        where: Where | None,
    ) -> None:
        super().__init__(value, kind, default, of, where)
        if self.several:
            raise ConfigurationError(f"a {self.what} chooses one value of an event, not members of it")
        self.place = Place(self, order, order_kind)

    def contribution(self, event: AnyEvent) -> tuple[Any, str, Any] | None:
        value = self._value(event)
        if value is None or (place := self.place.of(event)) is None:
            return None
        return (place, event.id, self._checked(value))

    def shown(self, accumulated: Any) -> Shown:
        made: Any = self.default if accumulated is None else accumulated[2]
        return made  # type: ignore[no-any-return]

    def restored(self, stored: Any) -> tuple[Any, str, Any]:
        if not isinstance(stored, list) or len(stored) != 3 or not isinstance(stored[1], str):
            raise ValueError(f"{self.name}: stored are an order, an event's id, and a value")
        return (self.place.restored(stored[0]), stored[1], self._checked(stored[2]))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **self.place.describe()}


class FirstBy(_By[Shown]):
    """The value that comes first in an order: ``FirstBy("data.input", str, order="data.start")``.

    The order is the time at which events occurred, unless another is given. It can have several parts, each
    of its kind: ``order=(path("data.parent").exists(), "data.start"), order_kind=(bool, int)`` takes that
    without a parent before all others, since false comes before true. Of values at the same place, that of
    the smaller event id is taken, so the answer does not depend on which was seen first.
    """

    what = "first_by"

    @overload
    def __init__(
        self: FirstBy[T | None],
        value: Source,
        kind: type[T],
        *,
        order: Order = "occurred_at",
        order_kind: OrderKind = int,
        of: Types = None,
        where: Where | None = None,
        default: None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: FirstBy[T],
        value: Source,
        kind: type[T],
        *,
        default: T,
        order: Order = "occurred_at",
        order_kind: OrderKind = int,
        of: Types = None,
        where: Where | None = None,
    ) -> None: ...
    def __init__(
        self,
        value: Source,
        kind: Any,
        *,
        order: Order = "occurred_at",
        order_kind: OrderKind = int,
        of: Types = None,
        where: Where | None = None,
        default: Any = None,
    ) -> None:
        super().__init__(value, kind, order, order_kind, default, of, where)

    def combine(self, one: tuple[Any, str, Any], other: tuple[Any, str, Any]) -> tuple[Any, str, Any]:
        return one if before(one, other, self.kind) else other


class LastBy(_By[Shown]):
    """The value that comes last in an order: ``LastBy("data.output", str, order="data.end")``.

    The order is as with :class:`FirstBy`. Of values at the same place, that of the greater event id is
    taken, so the answer does not depend on which was seen last.
    """

    what = "last_by"

    @overload
    def __init__(
        self: LastBy[T | None],
        value: Source,
        kind: type[T],
        *,
        order: Order = "occurred_at",
        order_kind: OrderKind = int,
        of: Types = None,
        where: Where | None = None,
        default: None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: LastBy[T],
        value: Source,
        kind: type[T],
        *,
        default: T,
        order: Order = "occurred_at",
        order_kind: OrderKind = int,
        of: Types = None,
        where: Where | None = None,
    ) -> None: ...
    def __init__(
        self,
        value: Source,
        kind: Any,
        *,
        order: Order = "occurred_at",
        order_kind: OrderKind = int,
        of: Types = None,
        where: Where | None = None,
        default: Any = None,
    ) -> None:
        super().__init__(value, kind, order, order_kind, default, of, where)

    def combine(self, one: tuple[Any, str, Any], other: tuple[Any, str, Any]) -> tuple[Any, str, Any]:
        return other if before(one, other, self.kind) else one
