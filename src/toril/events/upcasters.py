"""Old events in today's form: upcasters lead from one schema version to the next, when events are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from toril.aggregate import Aggregate
from toril.events.errors import ConfigurationError, SchemaTooNew, SchemaUnknown
from toril.events.event import AnyEvent, check_event_type
from toril.events.stores import EventStore, WrappedEventStore
from toril.events.stream import EventStream

Upcast = Callable[[Any], Any]
"""From the data of one schema version to that of the next. It must leave what it is given as it is."""

Function = TypeVar("Function", bound=Upcast)


class Upcasters:
    """The schema versions of event types, and the ways from the old ones to the newest.

    A type that is not mentioned here has version 1. Ways are added one step after the other::

        upcasters = Upcasters()

        @upcasters.step("lw.obs.span_ingestion.recorded", 1, 2)
        def cost_in_nano_usd(data):
            return {**data, "cost": data["cost_cents"] * 10_000_000}
    """

    def __init__(self) -> None:
        self._oldest: dict[str, int] = {}
        self._steps: dict[str, list[Upcast]] = {}

    def declare(self, event_type: str, version: int) -> None:
        """Say that a type begins with this schema version; older ones cannot be read. Before its steps."""
        check_event_type(event_type)
        if type(version) is not int or version < 1:
            raise ConfigurationError(f"the schema version {version!r} must be a whole number from 1")
        if event_type in self._oldest:
            raise ConfigurationError(f"{event_type} has been declared or has steps already")
        self._oldest[event_type] = version
        self._steps[event_type] = []

    def register(self, event_type: str, from_version: int, to_version: int, upcast: Upcast) -> None:
        """Add the step from one schema version of a type to the next."""
        check_event_type(event_type)
        for name, value in (("from", from_version), ("to", to_version)):
            if type(value) is not int or value < 1:
                raise ConfigurationError(
                    f"the version {value!r} to lead {name} must be a whole number from 1"
                )
        what = f"the step of {event_type} from {from_version} to {to_version}"
        if not callable(upcast):
            raise ConfigurationError(f"{what} must be a function")
        if to_version <= from_version:
            raise ConfigurationError(f"{what} leads back: that would be a circle")
        newest = self.newest(event_type)
        if event_type in self._oldest and self._oldest[event_type] <= from_version < newest:
            raise ConfigurationError(f"{what} is there already")
        if to_version != from_version + 1 or from_version != newest:
            raise ConfigurationError(f"{what} leaves a gap: the next step is from {newest} to {newest + 1}")
        self._oldest.setdefault(event_type, 1)
        self._steps.setdefault(event_type, []).append(upcast)

    def step(self, event_type: str, from_version: int, to_version: int) -> Callable[[Function], Function]:
        """:meth:`register` as a decorator."""

        def register(function: Function) -> Function:
            self.register(event_type, from_version, to_version, function)
            return function

        return register

    def steps(self) -> list[tuple[str, int, Upcast]]:
        """All steps in order: of which type, from which version, and the function."""
        return [
            (event_type, version, upcast)
            for event_type in sorted(self._steps)
            for version, upcast in enumerate(self._steps[event_type], self._oldest[event_type])
        ]

    def newest(self, event_type: str) -> int:
        """The schema version that events of a type have after upcasting."""
        return self._oldest.get(event_type, 1) + len(self._steps.get(event_type, ()))

    def apply(self, event: AnyEvent) -> AnyEvent:
        """The event in the newest form."""
        newest = self.newest(event.type)
        if event.schema_version == newest:
            return event
        what = f"event {event.id} of type {event.type} has schema version {event.schema_version}"
        if event.schema_version > newest:
            raise SchemaTooNew(f"{what}, and this program knows versions up to {newest}")
        oldest = self._oldest.get(event.type, 1)
        if event.schema_version < oldest:
            raise SchemaUnknown(f"{what}, and nothing leads on from it: the oldest known version is {oldest}")
        data = event.data
        for at, upcast in enumerate(
            self._steps[event.type][event.schema_version - oldest :], event.schema_version
        ):
            try:
                data = upcast(data)
            except Exception as problem:
                raise SchemaUnknown(
                    f"{what}, and its step from {at} to {at + 1} failed with {type(problem).__name__}"
                ) from problem
        return event.with_data(data, schema_version=newest)

    def apply_all(self, stream: EventStream) -> EventStream:
        """The stream with all events in the newest form."""
        return replace(stream, events=tuple(self.apply(event) for event in stream.events))


class UpcastingEventStore(WrappedEventStore):
    """An event store whose events are read in the newest form. What is stored stays as it is."""

    def __init__(self, store: EventStore, upcasters: Upcasters) -> None:
        super().__init__(store)
        self._upcasters = upcasters

    async def read(
        self, aggregate: Aggregate, from_version: int = 1, limit: int | None = None
    ) -> EventStream:
        """As :meth:`EventStore.read`, in the newest form."""
        return self._upcasters.apply_all(await super().read(aggregate, from_version, limit))
