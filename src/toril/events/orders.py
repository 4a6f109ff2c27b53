"""Orders by which fields choose among events: one value, or several that are compared in turn."""

from __future__ import annotations

from typing import Any

import msgspec

from toril.events.errors import ConfigurationError
from toril.events.event import AnyEvent
from toril.events.expressions import Condition, Expression
from toril.events.fields import KINDS, Field, Source, checked

OrderPart = Source | Condition
"""What events are compared by: a value, or a condition (kind ``bool``: false comes before true)."""

Order = OrderPart | tuple[OrderPart, ...]
"""One part, or several: where the first is the same, the second decides, and so on."""

OrderKind = type | tuple[type, ...]
"""``int``, ``float``, ``str`` or ``bool``; of an order with several parts, one for each."""

_canonical = msgspec.json.Encoder(order="deterministic")


class Place:
    """Where an event stands in an order. One that lacks a part of it has no place."""

    def __init__(self, field: Field[Any], order: Order, kind: OrderKind) -> None:
        parts = order if isinstance(order, tuple) else (order,)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not parts or len(parts) != len(kinds) or isinstance(order, tuple) != isinstance(kind, tuple):
            raise ConfigurationError(f"order_kind {kind!r} must name one kind for each part of the order")
        for one in kinds:
            if one not in (int, float, str, bool):
                raise ConfigurationError(f"order_kind {one!r} must be int, float, str or bool")
        self._field = field
        self._single = not isinstance(order, tuple)
        self._kinds = kinds
        taken = [field.take(part) for part in parts]
        self._parts = [part for part, _ in taken]
        self._evaluate = [(evaluate, one) for (_, evaluate), one in zip(taken, kinds, strict=True)]

    def of(self, event: AnyEvent) -> Any:
        """The place of an event: a value, or a tuple of an order with several parts; None for none."""
        place = []
        for evaluate, kind in self._evaluate:
            part = evaluate(event)
            if part is None:
                return None
            place.append(part if type(part) is kind and kind is not float else self._checked(part, kind))
        return place[0] if self._single else tuple(place)

    def restored(self, stored: Any) -> Any:
        """From JSON. A ValueError where it is no place in this order."""
        if self._single:
            return self._checked(stored, self._kinds[0])
        if not isinstance(stored, list) or len(stored) != len(self._kinds):
            raise ValueError(f"{self._field.name}: an order of {len(self._kinds)} parts is stored as a list")
        return tuple(self._checked(part, kind) for part, kind in zip(stored, self._kinds, strict=True))

    def describe(self) -> dict[str, Any]:
        """The order as plain data, for an engine that compiles it."""
        parts = [part.describe() if isinstance(part, Expression) else None for part in self._parts]
        kinds = [KINDS[kind] for kind in self._kinds]
        if self._single:
            return {"order": parts[0], "order_kind": kinds[0]}
        return {"order": parts, "order_kind": kinds}

    def _checked(self, part: Any, kind: type) -> Any:
        return checked(self._field.name, part, kind)


def before(one: tuple[Any, str, Any], other: tuple[Any, str, Any], kind: type = object) -> bool:
    """Which of (place, event id, value) is first. Should two events share an id, the value itself decides.

    Values of one kind are in its order; those that may be of any kind are in that of their JSON.
    """
    if one[0] != other[0]:
        return bool(one[0] < other[0])
    if one[1] != other[1]:
        return one[1] < other[1]
    if kind is not object:
        return bool(one[2] <= other[2])
    return _canonical.encode(one[2]) <= _canonical.encode(other[2])
