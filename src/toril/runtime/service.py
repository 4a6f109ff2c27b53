"""The service of a pipeline: storing events, asking for states, and what people do about failures."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from toril.aggregate import Aggregate, check_tenant
from toril.events.checkpoints import Checkpoint, CheckpointKey, CheckpointStatus
from toril.events.errors import CheckpointError, ConfigurationError, ValidationError
from toril.events.event import AnyNewEvent
from toril.events.projection import ProjectionState
from toril.events.stores import (
    Appended,
    AppendOptions,
    EventPublisher,
    EventStore,
    Snapshot,
    WrappedEventStore,
    check_append,
)
from toril.events.stream import EventStream
from toril.events.upcasters import UpcastingEventStore
from toril.log.entry import START, Partition
from toril.runtime.backend import Backend, Trouble
from toril.runtime.decisions import Decision, skipped
from toril.runtime.generations import Generations
from toril.runtime.names import generation_name, split_generation
from toril.runtime.pipeline import Definition
from toril.runtime.work import ANY_TYPE, HandlerWork, ProjectionWork, Work

if TYPE_CHECKING:
    from toril.runtime.telemetry import RuntimeTelemetry  # needs an extra

logger = logging.getLogger("toril.runtime")

READ_AT_ONCE = 500

STATES_AT_ONCE = 64
"""States that are asked for at the same time."""

_STATUSES = {"p": CheckpointStatus.PROCESSED, "n": CheckpointStatus.PENDING, "f": CheckpointStatus.FAILED}


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """An event that a processor could not process; later events of its aggregate wait."""

    processor: str
    """Its name in the pipeline."""
    aggregate: Aggregate
    version: int
    event_id: str
    event_type: str
    error: str
    attempts: int
    first_at: int
    """When it failed first (ms)."""
    last_at: int


@dataclass(frozen=True, slots=True)
class ProcessorStanding:
    """How a processor stands."""

    name: str
    kind: str
    """``handler`` or ``projection``."""
    behind: int
    """Events it has not processed."""
    retrying: int
    """Aggregates whose first waiting event is tried again."""
    failed: int
    """Aggregates with an event that waits for a person's decision."""
    waiting: int
    """Aggregates whose events wait for another processor, or for a tenant that is paused."""
    paused: bool
    owners: dict[str, int]
    """By worker, how many partitions it has."""
    oldest: int | None
    """When the oldest event that it has not processed was recorded (ms); None where there is none."""


class Lag(NamedTuple):
    """How far a processor is behind in one partition."""

    processor: str
    partition: Partition
    events: int


class TracingEventStore(WrappedEventStore):
    """An event store that writes traces, and gives events the trace they are stored in."""

    def __init__(self, store: EventStore, pipeline: str, telemetry: RuntimeTelemetry) -> None:
        super().__init__(store)
        self._pipeline = pipeline
        self._telemetry = telemetry

    async def append(
        self, aggregate: Aggregate, events: Sequence[AnyNewEvent], **how: Unpack[AppendOptions]
    ) -> Appended:
        """Store within a span."""
        check_append(aggregate, events, how.get("expected_version"), how.get("idempotency_key"))
        with self._telemetry.storing(self._pipeline, aggregate, events) as traced:
            return await super().append(aggregate, traced, **how)


class PublishingEventStore(WrappedEventStore):
    """An event store that tells a publisher; what it cannot tell is stored all the same."""

    def __init__(self, store: EventStore, publisher: EventPublisher) -> None:
        super().__init__(store)
        self._publisher = publisher

    async def append(
        self, aggregate: Aggregate, events: Sequence[AnyNewEvent], **how: Unpack[AppendOptions]
    ) -> Appended:
        """Store, then tell."""
        done = await super().append(aggregate, events, **how)
        if not done.repeated:
            stored = [
                event.recorded(aggregate, version=version, recorded_at=done.recorded_at)
                for version, event in enumerate(events, done.first_version)
            ]
            try:
                await self._publisher.publish(aggregate.tenant, stored)
            except Exception:
                logger.exception("%d stored events could not be published", len(stored))
        return done


class LiveSnapshots:
    """The states that processors have built, as snapshots: who decides on one reads only the events since."""

    def __init__(self, definition: Definition, backend: Backend, generations: Generations) -> None:
        self._definition = definition
        self._backend = backend
        self._generations = generations

    async def save(self, snapshot: Snapshot) -> None:
        """They are made by processors alone."""
        raise ConfigurationError(f"the states of {snapshot.projection!r} are kept by its processor")

    async def latest(
        self, aggregate: Aggregate, projection: str, projection_version: int, *, up_to: int | None = None
    ) -> Snapshot | None:
        """The state that a processor of the pipeline has built, where it is not too new."""
        work = await self._work(projection, projection_version)
        found = None if work is None else await self._backend.find(work.processor, aggregate)
        if found is None or found.state is None or not found.version:
            return None
        if up_to is not None and found.version > up_to:
            return None
        return Snapshot(
            aggregate,
            projection,
            projection_version,
            found.version,
            found.state,
            found.updated_at * 1_000_000,
        )

    async def _work(self, projection: str, version: int) -> ProjectionWork | None:
        """Whose states are taken: of the generation that readers see, where it is of this version."""
        fit = {
            name: work
            for name, work in self._definition.works.items()
            if isinstance(work, ProjectionWork)
            and work.store is None
            and (work.projection.name, work.projection.version) == (projection, version)
        }
        for name in {split_generation(name)[0] for name in fit}:
            try:
                seen = await self._generations.reading(name)
            except ConfigurationError:
                continue  # readers see a version that this program does not have
            if (seen.projection.name, seen.projection.version) == (projection, version):
                return seen
        return next(iter(fit.values()), None)


class EventSourcingService:
    """What can be asked of a pipeline, and done about it."""

    def __init__(
        self,
        definition: Definition,
        store: EventStore,
        backend: Backend,
        telemetry: RuntimeTelemetry | None = None,
    ) -> None:
        self._definition = definition
        self._backend = backend
        self.generations = Generations(definition, backend)
        """The generations of the pipeline's projections."""
        self.snapshots = LiveSnapshots(definition, backend, self.generations)
        """The states of the pipeline's projections, for commands that decide on them."""
        self._decided = self._store = store
        if definition.upcasters is not None:
            self._store = UpcastingEventStore(self._store, definition.upcasters)
        if definition.publisher is not None:
            self._store = PublishingEventStore(self._store, definition.publisher)
        if telemetry is not None:
            self._store = TracingEventStore(self._store, definition.name, telemetry)

    @property
    def store(self) -> EventStore:
        """The event store, with the pipeline's upcasters and publisher."""
        return self._store

    def aggregate(self, tenant: str, aggregate_id: str) -> Aggregate:
        """One of the pipeline's aggregates; of a pipeline for any type, by ``type:id``."""
        kind = self._definition.aggregate_type
        if kind == ANY_TYPE:
            kind, _, aggregate_id = aggregate_id.partition(":")
        return Aggregate(tenant, kind, aggregate_id)

    # ------------------------------------------------------------------ events

    async def store_events(
        self,
        tenant: str,
        aggregate_id: str,
        events: Sequence[AnyNewEvent],
        **how: Unpack[AppendOptions],
    ) -> Appended:
        """Store events of an aggregate, and tell the publisher. Processors find them in the log.

        ``how``: ``expected_version``, ``idempotency_key``, ``durability``, as for an event store.
        """
        return await self._store.append(self.aggregate(tenant, aggregate_id), events, **how)

    async def get_events(
        self, tenant: str, aggregate_id: str, from_version: int = 1, limit: int | None = None
    ) -> EventStream:
        """The events of an aggregate."""
        return await self._store.read(self.aggregate(tenant, aggregate_id), from_version, limit)

    # ------------------------------------------------------------------ states

    def _projection(self, name: str) -> ProjectionWork:
        work = self._work(name)
        if not isinstance(work, ProjectionWork):
            raise ConfigurationError(f"{name!r} in pipeline {self._definition.name!r} is no projection")
        return work

    def _work(self, name: str) -> Work:
        work = self._definition.works.get(name)
        if work is None:
            known = ", ".join(self._definition.works) or "none"
            raise ConfigurationError(
                f"pipeline {self._definition.name!r} has no processor {name!r}; it has: {known}"
            )
        return work

    async def _known(self, name: str) -> Work:
        """A processor, or a generation that was made since this program began."""
        if name not in self._definition.works and split_generation(name)[1] > 1:
            await self.generations.learn()
        return self._work(name)

    async def current(self, name: str) -> str:
        """The name of the generation of a projection that readers see; empty where they see none yet."""
        seen = await self._seen(name)
        return "" if seen is None else seen.name

    async def _seen(self, name: str) -> ProjectionWork | None:
        """What readers of a projection see; a generation that is named by its number, itself."""
        if split_generation(name)[1] == 1:
            return await self.generations.seen(self._projection(name).name)
        return self._projection((await self._known(name)).name)

    async def promote(self, name: str, generation: int) -> None:
        """Let readers see another generation of a projection, however far that is: one write.

        See :meth:`Generations.switch <toril.runtime.generations.Generations.switch>`, which looks first.
        """
        await self.generations.switch(name, generation, force=True)

    async def get_projection(self, name: str, tenant: str, aggregate_id: str) -> ProjectionState[Any] | None:
        """The state that the processor has built, and up to which event; None where there is none yet."""
        return (await self.get_projections(name, tenant, [aggregate_id])).get(aggregate_id)

    async def get_projections(
        self, name: str, tenant: str, aggregate_ids: Iterable[str]
    ) -> dict[str, ProjectionState[Any]]:
        """The states of some aggregates, all of one generation; those that have none yet are left out."""
        idents = list(dict.fromkeys(aggregate_ids))
        work = await self._seen(name)
        while True:
            found = {} if work is None else await self._states(work, tenant, idents)
            if len(found) == len(idents):
                return found
            before, work = work, await self._seen(name)
            if before is work or (before is not None and work is not None and before.name == work.name):
                return found
            # What was seen is perhaps retired, and gone.

    async def _states(
        self, work: ProjectionWork, tenant: str, idents: Sequence[str]
    ) -> dict[str, ProjectionState[Any]]:
        found: dict[str, ProjectionState[Any]] = {}
        for first in range(0, len(idents), STATES_AT_ONCE):
            some = idents[first : first + STATES_AT_ONCE]
            states = await asyncio.gather(
                *(self._state(work, self.aggregate(tenant, ident)) for ident in some)
            )
            found |= {ident: state for ident, state in zip(some, states, strict=True) if state is not None}
        return found

    async def _state(self, work: ProjectionWork, aggregate: Aggregate) -> ProjectionState[Any] | None:
        if work.store is not None:
            return await work.store.load(work.projection, aggregate)
        loaded = await self._backend.find(work.processor, aggregate)
        if loaded is None or loaded.state is None:
            return None
        return ProjectionState(work.projection.decode(loaded.state), loaded.version)

    async def rebuild_projection(
        self, name: str, tenant: str, aggregate_id: str, *, up_to: int | None = None
    ) -> ProjectionState[Any]:
        """The state folded anew from the events: now, or as it was at a version.

        Events that a person had the processor skip are left out, as the processor left them out.
        """
        work = self._projection((await self._known(name)).name)
        aggregate = self.aggregate(tenant, aggregate_id)
        skipped = await self.skipped(name, tenant, aggregate_id)
        made = ProjectionState(work.projection.initial(), 0)
        while up_to is None or made.version < up_to:
            most = READ_AT_ONCE if up_to is None else min(READ_AT_ONCE, up_to - made.version)
            stream = await self._store.read(aggregate, made.version + 1, most)
            if not stream.events:
                break
            for event in stream:
                if event.version in skipped:
                    made = ProjectionState(made.state, event.version)
                else:
                    made = work.apply(made, event)
        return made

    async def skipped(self, name: str, tenant: str, aggregate_id: str) -> set[int]:
        """The versions of an aggregate that a person had a processor skip."""
        work = await self._known(name)
        aggregate = self.aggregate(tenant, aggregate_id)
        made = await self._backend.decided(aggregate)
        return {one.version for one in skipped(made, work.processor)}

    async def replay(
        self, name: str, tenant: str, aggregate_id: str, *, from_version: int = 1, up_to: int | None = None
    ) -> int:
        """Have a handler see the events of an aggregate again, with ``is_replay``; says how many.

        Checkpoints stay where they are. Events that were skipped are skipped again.
        """
        work = await self._known(name)
        if not isinstance(work, HandlerWork):
            raise ConfigurationError(f"{name!r} is no handler: rebuild_projection folds a projection anew")
        skipped = await self.skipped(name, tenant, aggregate_id)
        aggregate = self.aggregate(tenant, aggregate_id)
        count = 0
        while up_to is None or from_version <= up_to:
            most = READ_AT_ONCE if up_to is None else min(READ_AT_ONCE, up_to - from_version + 1)
            stream = await self._store.read(aggregate, from_version, most)
            if not stream.events:
                break
            for event in stream:
                if event.version not in skipped:
                    await work.handle(event, 1, is_replay=True)
                    count += 1
            from_version = stream.version + 1
        return count

    # ------------------------------------------------------------------ failures

    async def get_checkpoint(self, processor: str, tenant: str, aggregate_id: str) -> Checkpoint | None:
        """How far a processor is with an aggregate; None where it has not seen it."""
        work, aggregate = await self._known(processor), self.aggregate(tenant, aggregate_id)
        found = await self._backend.find(work.processor, aggregate)
        if found is None:
            return None
        status = _STATUSES[found.status]
        version = found.version if status is CheckpointStatus.PROCESSED else found.version + 1
        trouble = await self._trouble(work, aggregate)
        (event,) = (await self._store.read(aggregate, version, 1)).events
        return Checkpoint(
            CheckpointKey.of(aggregate, self._definition.name, work.name),
            version,
            found.event_id,
            status,
            found.updated_at * 1_000_000,
            event.occurred_at,
            attempts=0 if trouble is None else trouble.attempts,
            error=None if trouble is None else trouble.error,
            skipped=version in await self.skipped(processor, tenant, aggregate_id),
        )

    async def get_failed_events(
        self, tenant: str, *, processor: str | None = None, limit: int = 100
    ) -> list[FailedEvent]:
        """The events of a tenant that failed, the oldest failure first."""
        check_tenant(tenant)
        if type(limit) is not int or limit < 1:
            raise ValidationError("limit", limit, "a whole number from 1")
        works = await self._running() if processor is None else [await self._known(processor)]
        found: list[FailedEvent] = []
        for work in works:
            for partition in await self._backend.partitions():
                for key, trouble in (await self._backend.troubles(work.processor, partition)).items():
                    aggregate = Aggregate.parse(key)
                    if trouble.status == "failed" and aggregate.tenant == tenant:
                        found.append(_failed(work, aggregate, trouble))
        return sorted(found, key=lambda one: one.first_at)[:limit]

    async def retry_failed(
        self, processor: str, tenant: str, aggregate_id: str, *, by: str = "", reason: str = ""
    ) -> None:
        """Have a failed event processed again, with all its attempts; recorded in the log."""
        await self._decide("retry", processor, self.aggregate(tenant, aggregate_id), by, reason)

    async def skip_failed(
        self, processor: str, tenant: str, aggregate_id: str, *, by: str = "", reason: str = ""
    ) -> None:
        """Have a failed event left out, and those after it processed; recorded in the log."""
        await self._decide("skip", processor, self.aggregate(tenant, aggregate_id), by, reason)

    async def retry_all(self, processor: str, tenant: str, *, by: str = "", reason: str = "") -> int:
        """Have all failed events of a tenant processed again; says how many."""
        failed = await self.get_failed_events(tenant, processor=processor, limit=1_000_000)
        for one in failed:
            await self._decide("retry", processor, one.aggregate, by, reason)
        return len(failed)

    async def _decide(
        self, decision: str, processor: str, aggregate: Aggregate, by: str, reason: str
    ) -> None:
        work = await self._known(processor)
        trouble = await self._trouble(work, aggregate)
        if trouble is None or trouble.status != "failed":
            raise CheckpointError(f"{work.name!r} has no failed event of this aggregate")
        made = Decision(
            processor=work.processor,
            aggregate_type=aggregate.type,
            version=trouble.version,
            decision="skip" if decision == "skip" else "retry",
            by=by,
            reason=reason,
            alone=await self._is_alone(work, aggregate, trouble.version),
        )
        key = f"{decision} {work.processor} {aggregate.type} {trouble.version} {trouble.last_at}"
        await self._decided.append(Decision.home(aggregate), [made.to_event()], idempotency_key=key)

    async def _is_alone(self, work: Work, aggregate: Aggregate, version: int) -> bool:
        """Whether an event has failed in a generation that readers left for one which has taken it."""
        if not isinstance(work, ProjectionWork):
            return False
        name, number = split_generation(work.processor)
        seen = await self._backend.generations.current(name)
        if number >= seen:
            return False
        found = await self._backend.find(generation_name(name, seen), aggregate)
        return found is not None and found.version >= version

    async def _trouble(self, work: Work, aggregate: Aggregate) -> Trouble | None:
        for partition in await self._backend.partitions():
            found = await self._backend.troubles(work.processor, partition, [aggregate.key])
            if aggregate.key in found:
                return found[aggregate.key]
        return None

    # ------------------------------------------------------------------ operation

    async def pause(self, processor: str) -> None:
        """Let a processor begin nothing more, in all workers, within a second or so."""
        await self._backend.pause(f"processor {(await self._known(processor)).processor}", on=True)

    async def resume(self, processor: str) -> None:
        """Let a paused processor go on."""
        await self._backend.pause(f"processor {(await self._known(processor)).processor}", on=False)

    async def retire(self, processor: str) -> bool:
        """Forget where a processor is, for good: it holds up no trimming. Stop its workers before."""
        return await self._backend.retire((await self._known(processor)).processor)

    async def standing(self, processor: str) -> ProcessorStanding:
        """How a processor stands: for people, and for metrics."""
        work = await self._known(processor)
        behind, oldest = 0, None
        statuses: Counter[str] = Counter()
        owners: Counter[str] = Counter()
        for partition in await self._backend.partitions():
            (position,) = await self._backend.positions(partition, [work.processor])
            at = position or START
            missing = await self._backend.tail(partition) - at.ordinal
            behind += missing
            if missing and (page := await self._backend.page(partition, at, 1)):
                recorded = page[0].recorded_at // 1_000_000
                oldest = recorded if oldest is None else min(oldest, recorded)
            troubles = await self._backend.troubles(work.processor, partition)
            statuses.update(trouble.status for trouble in troubles.values())
            owner = await self._backend.owner(work.processor, partition)
            if owner is not None:
                owners[owner] += 1
        return ProcessorStanding(
            name=work.name,
            kind="handler" if isinstance(work, HandlerWork) else "projection",
            behind=behind,
            retrying=statuses["retry"],
            failed=statuses["failed"],
            waiting=statuses["waits"] + statuses["paused"],
            paused=f"processor {work.processor}" in await self._backend.paused(),
            owners=dict(owners),
            oldest=oldest,
        )

    async def standings(self) -> list[ProcessorStanding]:
        """How all processors of the pipeline stand."""
        return [await self.standing(work.name) for work in await self._running()]

    async def _running(self) -> list[Work]:
        """All processors of the pipeline, but for generations that are retired."""
        retired = (await self.generations.learn()).retired
        return [work for work in self._definition.works.values() if work.processor not in retired]

    async def lag(self) -> list[Lag]:
        """How many events each processor is behind, by partition."""
        found = []
        works = await self._running()
        for partition in await self._backend.partitions():
            tail = await self._backend.tail(partition)
            positions = await self._backend.positions(partition, [work.processor for work in works])
            for work, position in zip(works, positions, strict=True):
                found.append(Lag(work.name, partition, tail - (position.ordinal if position else 0)))
        return found


def _failed(work: Work, aggregate: Aggregate, trouble: Trouble) -> FailedEvent:
    return FailedEvent(
        work.name,
        aggregate,
        trouble.version,
        trouble.event_id,
        trouble.event_type,
        trouble.error,
        trouble.attempts,
        trouble.first_at,
        trouble.last_at,
    )
