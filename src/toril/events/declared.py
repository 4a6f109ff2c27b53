"""Projections without code: a class whose attributes are mergeable fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar, overload

from toril.events.errors import ConfigurationError, ProjectionError, StateUnreadable
from toril.events.event import AnyEvent
from toril.events.expressions import Evaluate, Value, is_own
from toril.events.fields import KINDS, Field, checked
from toril.events.projection import check_declaration, event_type_set, unwrap_state, wrap_state

Shown = TypeVar("Shown")
T = TypeVar("T")

_Plan = tuple[tuple[int, Evaluate | None, Evaluate, Callable[[Any, Any], Any]], ...]
"""For the fields that look at a type of event: place, condition, contribution, and how two are joined."""


class Derived(Generic[Shown]):
    """A value worked out of the others when it is looked at, and never stored.

    Of an expression over the fields, which an engine can compute too::

        duration = Derived(path("ended_at") - path("started_at"), int)

    or of Python, which none can::

        @Derived
        def tokens_per_second(self) -> int | None: ...
    """

    name: str = "derived"

    @overload
    def __init__(self: Derived[T | None], value: Value, kind: type[T]) -> None: ...
    @overload
    def __init__(self: Derived[T], value: Callable[[Any], T]) -> None: ...
    def __init__(self, value: Any, kind: Any = None) -> None:
        if isinstance(value, Value) and kind not in KINDS:
            raise ConfigurationError(f"kind {kind!r} must be one of int, float, str, bool, object")
        if not isinstance(value, Value) and not callable(value):
            raise ConfigurationError(f"{value!r} must be an expression over the fields, or a function")
        self.value = value
        self.kind = kind
        self._evaluate = value.compiled() if isinstance(value, Value) else value
        self.__doc__ = getattr(value, "__doc__", None)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, state: None, owner: type) -> Self: ...
    @overload
    def __get__(self, state: object, owner: type) -> Shown: ...
    def __get__(self, state: Any, owner: type) -> Any:
        if state is None:
            return self
        found = self._evaluate(state)
        return found if found is None or self.kind is None else checked(self.name, found, self.kind)

    def __set__(self, state: object, value: object) -> NoReturn:
        raise AttributeError(f"{self.name} cannot be set: a state never changes")

    @property
    def compilable(self) -> bool:
        """Whether an engine can compute it: whether it is an expression."""
        return is_own(self) and isinstance(self.value, Value) and self.value.compilable

    def describe(self) -> dict[str, Any]:
        """The value as plain data, for an engine that compiles it."""
        if not isinstance(self.value, Value):
            return {"name": self.name, "value": None, "kind": None, "compilable": False}
        return {
            "name": self.name,
            "value": self.value.describe(),
            "kind": KINDS[self.kind],
            "compilable": self.compilable,
        }


class DeclaredProjection:
    """A projection that is declared. The class is the projection; its instances are the states.

    ::

        class TraceSummary(DeclaredProjection):
            started_at = Minimum("data.start", int)
            ended_at = Maximum("data.end", int)
            cost = Sum("data.cost")
            models = SetOf("data.model", str)
            duration = Derived(path("ended_at") - path("started_at"), int)

        state = TraceSummary.apply(TraceSummary.initial(), event)
        state.cost

    States never change; ``apply`` and ``merge`` give new ones. Their order makes no difference. ``apply``
    counts an event each time it is called: that each event is applied once is the checkpoint's job.
    """

    name: ClassVar[str]
    """The class's name in snake case, unless another is given."""
    version: ClassVar[int] = 1
    """Raise it when fields change: states are built anew."""
    event_types: ClassVar[frozenset[str] | None] = None
    """The types of events it is made of: as given, else those of the fields; None for all."""
    mergeable: ClassVar[bool] = True
    compilable: ClassVar[bool] = True
    """Whether an engine can compute all of it: whether no field has Python in it."""
    fields: ClassVar[Mapping[str, Field[Any]]] = MappingProxyType({})
    derived: ClassVar[Mapping[str, Derived[Any]]] = MappingProxyType({})

    _given_types: ClassVar[frozenset[str] | None] = None
    _places: ClassVar[dict[str, int]] = {}
    _plans: ClassVar[dict[str, _Plan]] = {}

    __slots__ = ("_accumulated",)
    _accumulated: tuple[Any, ...]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = snake_case(cls.__name__)
        check_declaration(cls, cls.name, cls.version)
        fields, derived = dict(cls.fields), dict(cls.derived)
        for name, made in vars(cls).items():
            if isinstance(made, Field | Derived):
                if name in _RESERVED or name.startswith("_"):
                    raise ConfigurationError(f"no field of {cls.__name__} can be called {name!r}")
                fields.pop(name, None)
                derived.pop(name, None)
                if isinstance(made, Field):
                    fields[name] = made
                else:
                    derived[name] = made
        cls.fields, cls.derived = MappingProxyType(fields), MappingProxyType(derived)
        cls._places = {name: place for place, name in enumerate(fields)}
        cls._plans = {}
        if "event_types" in vars(cls):
            cls._given_types = event_type_set(cls.event_types)
        cls.event_types = _event_types(cls, cls._given_types)
        cls.compilable = all(one.compilable for one in fields.values()) and all(
            one.compilable for one in derived.values()
        )
        for one in derived.values():
            for used in one.value.paths() if isinstance(one.value, Value) else ():
                if used.names[0] not in fields:
                    raise ConfigurationError(
                        f"{cls.__name__}.{one.name} is derived of {used}, which is no field of it"
                    )

    def __init__(self) -> None:
        self._accumulated = (None,) * len(self.fields)

    @classmethod
    def _of(cls, accumulated: tuple[Any, ...]) -> Self:
        made = cls.__new__(cls)
        object.__setattr__(made, "_accumulated", accumulated)
        return made

    # ------------------------------------------------------------------ the projection

    @classmethod
    def initial(cls) -> Self:
        """The state before the first event."""
        return cls()

    @classmethod
    def apply(cls, state: Self, event: AnyEvent) -> Self:
        """The state after one more event."""
        accumulated: list[Any] | None = None
        for place, where, contribution, combine in cls._plans.get(event.type) or cls._plan(event.type):
            if where is not None and not where(event):
                continue
            lifted = contribution(event)
            if lifted is None:
                continue
            if accumulated is None:
                accumulated = list(cls._own(state))
            held = accumulated[place]
            accumulated[place] = lifted if held is None else combine(held, lifted)
        return state if accumulated is None else cls._of(tuple(accumulated))

    @classmethod
    def merge(cls, one: Self, other: Self) -> Self:
        """The state of all events of which the two are made. Each event may be in one of them only."""
        parts = zip(cls.fields.values(), cls._own(one), cls._own(other), strict=True)
        return cls._of(tuple(field.merge(a, b) for field, a, b in parts))

    @classmethod
    def encode(cls, state: Self) -> bytes:
        """The state as it is stored, with the projection's name and version. Equal states, equal bytes."""
        parts = zip(cls.fields.values(), cls._own(state), strict=True)
        stored = {field.name: None if value is None else field.stored(value) for field, value in parts}
        return wrap_state(cls.name, cls.version, stored)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """From what :meth:`encode` made; :class:`StateUnreadable` for anything else."""
        stored: dict[str, Any] = unwrap_state(cls.name, cls.version, raw, dict[str, Any])
        if stored.keys() != cls.fields.keys():
            raise StateUnreadable(
                f"a stored state of {cls.name} version {cls.version} has other fields "
                f"({', '.join(sorted(stored.keys() ^ cls.fields.keys()))}); "
                "where fields were changed, raise the projection's version"
            )
        try:
            restored = (
                None if stored[name] is None else field.restored(stored[name])
                for name, field in cls.fields.items()
            )
            return cls._of(tuple(restored))
        except (ValueError, ProjectionError) as problem:
            raise StateUnreadable(
                f"a stored state of {cls.name} version {cls.version} cannot be read: {problem}"
            ) from None

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """The declaration as plain data: what an engine needs to compute the same."""
        return {
            "name": cls.name,
            "version": cls.version,
            "event_types": None if cls.event_types is None else sorted(cls.event_types),
            "compilable": cls.compilable,
            "fields": [field.describe() for field in cls.fields.values()],
            "derived": [derived.describe() for derived in cls.derived.values()],
        }

    @classmethod
    def _plan(cls, event_type: str) -> _Plan:
        """What is to be done for one type of event."""
        plan = tuple(
            (place, field.condition, field.contribution, field.combine)
            for place, field in enumerate(cls.fields.values())
            if (cls.event_types is None or event_type in cls.event_types)
            and (field.event_types is None or event_type in field.event_types)
        )
        if len(cls._plans) < 1000:  # types come from outside
            cls._plans[event_type] = plan
        return plan

    @classmethod
    def _own(cls, state: Self) -> tuple[Any, ...]:
        if type(state) is not cls:
            raise ProjectionError(f"{type(state).__name__} is no state of {cls.name}", retryable=False)
        return state._accumulated

    # ------------------------------------------------------------------ a state

    def accumulated(self, name: str) -> Any:
        """What a field has accumulated; None for nothing. What it shows is the attribute of its name."""
        return self._accumulated[self._places[name]]

    def as_dict(self) -> dict[str, Any]:
        """All fields and derived values, by name, as JSON has them: sets are lists in order."""
        shown = {name: getattr(self, name) for name in (*self.fields, *self.derived)}
        return {name: sorted(v) if isinstance(v, frozenset) else v for name, v in shown.items()}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._accumulated == self._accumulated

    __hash__ = None  # type: ignore[assignment]  # values may be JSON objects

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r:.60}" for name, value in self.as_dict().items())
        return f"{type(self).__name__}({inside})"


_RESERVED = frozenset(dir(DeclaredProjection))


def _event_types(cls: type[DeclaredProjection], given: frozenset[str] | None) -> frozenset[str] | None:
    """The types a projection takes: as it says; else all that its fields name, if each of them names some."""
    named = [field.event_types for field in cls.fields.values()]
    of_fields = frozenset().union(*(types for types in named if types is not None))
    if given is None:
        return of_fields if named and None not in named else None
    if stray := of_fields - given:
        raise ConfigurationError(
            f"{cls.__name__}.event_types leaves out what a field of it needs: {', '.join(sorted(stray))}"
        )
    return given


def snake_case(name: str) -> str:
    """``TraceSummary`` as ``trace_summary``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
