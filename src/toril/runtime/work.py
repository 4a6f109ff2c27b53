"""What a processor does with events: a handler's effects, or a projection's state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events.event import AnyEvent
from toril.events.handlers import BatchEventHandler, EventHandler, HandlerContext, call, handle_event
from toril.events.projection import AnyProjection, ProjectionState, wants
from toril.events.stores import ProjectionStore
from toril.events.upcasters import Upcasters
from toril.log.entry import Entry
from toril.stores.log import event_of

if TYPE_CHECKING:
    from toril.runtime.telemetry import RuntimeTelemetry  # needs an extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a failing event is tried, and how long is waited in between."""

    attempts: int = 10
    first: float = 0.5
    """Seconds before the second attempt; doubled for each further one."""
    longest: float = 60.0

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise InvalidValue("retry attempts", self.attempts, "a whole number from 1")
        if not 0 <= self.first <= self.longest:
            raise InvalidValue("retry first", self.first, f"0 to {self.longest} seconds")

    def delay(self, attempt: int, at_least: float | None = None) -> float:
        """Seconds to wait after this attempt has failed: half of it certain, half by chance."""
        wait = min(self.first * 2.0 ** (attempt - 1), self.longest) * (0.5 + random.random() / 2)
        return max(wait, at_least or 0.0)


PATIENT = Retry(attempts=10_000)
"""For what waits for another system: every minute, for days. What cannot pass fails at once all the same."""

ANY_TYPE = "*"
"""In the place of an aggregate type: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What every processor has."""

    pipeline: str
    name: str
    """Its own name; with the pipeline's, :attr:`processor`."""
    aggregate_type: str
    depends_on: tuple[str, ...] = ()
    """Full names of the processors that must have processed an event before it comes here."""
    awaited: bool = False
    """Whether others depend on it."""
    retry: Retry = Retry()
    concurrency: int = 32
    """Handlers: events processed at once, by one worker."""
    start: str = "first"
    """Where it begins when it is new: at the ``first`` event there is, at the ``tail``, or, ``loaded``, where
    the states end that were made elsewhere."""
    upcasters: Upcasters | None = None
    telemetry: RuntimeTelemetry | None = None

    @property
    def processor(self) -> str:
        """Its full name, ``pipeline/name``."""
        return f"{self.pipeline}/{self.name}"

    def event(self, entry: Entry) -> AnyEvent:
        """The event of an entry, in the form that is known now."""
        event = event_of(entry)
        return event if self.upcasters is None else self.upcasters.apply(event)


@lru_cache(4096)
def _context(tenant: str, pipeline: str, processor: str, attempt: int, is_replay: bool) -> HandlerContext:
    """A context never changes: one is enough for all events that have it in common."""
    return HandlerContext(
        tenant=tenant, pipeline=pipeline, processor=processor, attempt=attempt, is_replay=is_replay
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerWork(Work):
    """An event handler."""

    handler: EventHandler[Any]
    event_types: frozenset[str] | None = None

    async def handle(self, event: AnyEvent, attempt: int, *, is_replay: bool = False) -> None:
        """Run the handler, where it wants such events."""
        if not wants(self.event_types, event):
            return
        context = _context(event.tenant, self.pipeline, self.name, attempt, is_replay)
        telemetry = self.telemetry
        if telemetry is None:
            if wants(self.handler.event_types, event):
                await call(self.handler.handle, event, context)
        else:
            with telemetry.handling(self.pipeline, self.name, event, attempt, is_replay):
                await handle_event(self.handler, event, context)

    @property
    def takes_many(self) -> bool:
        """Whether the handler takes the events of an aggregate together."""
        return isinstance(self.handler, BatchEventHandler)

    async def handle_many(self, events: Sequence[AnyEvent]) -> None:
        """Run a handler that takes many, with those of an aggregate's events that it wants."""
        assert isinstance(self.handler, BatchEventHandler)
        wanted = [
            event
            for event in events
            if wants(self.event_types, event) and wants(self.handler.event_types, event)
        ]
        if not wanted:
            return
        context = _context(wanted[0].tenant, self.pipeline, self.name, 1, False)
        if self.telemetry is None:
            await call(self.handler.handle_many, wanted, context)
        else:
            with self.telemetry.handling(self.pipeline, self.name, wanted[-1], 1, False, len(wanted)):
                await call(self.handler.handle_many, wanted, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionWork(Work):
    """A projection; its states are kept with the checkpoints, or in a store of their own."""

    projection: AnyProjection
    store: ProjectionStore | None = None
    """None: state and checkpoint are committed together."""
    concurrency: int = field(default=1)

    def shares_rows(self, other: ProjectionWork) -> bool:
        """Whether the states of both are in the same rows of a store of their own."""
        one, its = self.projection, other.projection
        same = (one.name, one.version) == (its.name, its.version)
        return self.store is not None and self.store == other.store and same

    def updating(self, aggregates: int) -> AbstractContextManager[object]:
        """Around the folding of some aggregates' events."""
        if self.telemetry is None:
            return nullcontext()
        return self.telemetry.projecting(self.pipeline, self.name, self.projection.version, aggregates)

    def apply(self, at: ProjectionState[Any], event: AnyEvent) -> ProjectionState[Any]:
        """The state after one more event; one that is in it already changes nothing."""
        if event.version <= at.version:
            return at
        return ProjectionState(self.folded(at.state, event), event.version)

    def folded(self, state: Any, event: AnyEvent) -> Any:
        """The state after one more event that is not in it."""
        return self.projection.apply(state, event) if wants(self.projection.event_types, event) else state

    async def load(self, key: str, version: int, kept: bytes | None) -> ProjectionState[Any]:
        """The state of an aggregate, from its own store or as it was kept with the checkpoint."""
        if self.store is not None:
            found = await self.store.load(self.projection, Aggregate.parse(key))
            return found or ProjectionState(self.projection.initial(), 0)
        if kept is None:
            return ProjectionState(self.projection.initial(), version)
        return ProjectionState(self.projection.decode(kept), version)

    async def save(self, key: str, at: ProjectionState[Any]) -> None:
        """Keep a state in its own store; one that is there already is not kept again."""
        assert self.store is not None
        aggregate = Aggregate.parse(key)
        found = await self.store.load(self.projection, aggregate)
        before = 0 if found is None else found.version
        if before < at.version:
            await self.store.save(
                self.projection, aggregate, at.state, version=at.version, expected_version=before
            )
