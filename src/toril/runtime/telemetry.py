"""OpenTelemetry traces of event sourcing: who stored events, what handled them, what was folded.

An event carries the trace in which it was stored. Handling it is a trace of its own, *linked* to that one: a
handler may run much later, and many times. Needs ``toril[telemetry]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Tracer
from opentelemetry.util.types import AttributeValue

from toril.aggregate import Aggregate
from toril.events.event import AnyEvent, AnyNewEvent
from toril.handler.telemetry import under_way
from toril.queue.telemetry import Telemetry


class RuntimeTelemetry:
    """Traces for pipelines: ``EventSourcing(…, telemetry=RuntimeTelemetry())``."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer("toril")
        self.jobs = Telemetry(self._tracer)
        """For the queues of sent commands."""

    @contextmanager
    def storing(
        self, pipeline: str, aggregate: Aggregate, events: Sequence[AnyNewEvent]
    ) -> Iterator[list[AnyNewEvent]]:
        """A span for storing events, and the events with its context; one that they have stays."""
        attributes: dict[str, AttributeValue] = {
            "pipeline.name": pipeline,
            "aggregate.type": aggregate.type,
            "aggregate.id": aggregate.id,
            "tenant.id": aggregate.tenant,
            "event.count": len(events),
            "event.types": sorted({event.type for event in events}),
        }
        with self._tracer.start_as_current_span(
            "EventSourcingService.store_events", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            yield [msgspec.structs.replace(event, metadata={**carrier, **event.metadata}) for event in events]

    @contextmanager
    def handling(
        self, pipeline: str, handler: str, event: AnyEvent, attempt: int, is_replay: bool, count: int = 1
    ) -> Iterator[Span]:
        """A span for a handler's run, in a trace of its own; what it raises is recorded in it.

        Of ``count`` events that it takes together, ``event`` is the last.
        """
        attributes: dict[str, AttributeValue] = {
            "pipeline.name": pipeline,
            "handler.name": handler,
            "handler.attempt": attempt,
            "handler.is_replay": is_replay,
            "event.count": count,
            "event.id": event.id,
            "event.type": event.type,
            "event.version": event.version,
            "event.aggregate_id": event.aggregate_id,
            "event.timestamp": event.occurred_at,
            "event.tenant_id": event.tenant,
        }
        span = self._tracer.start_span(
            "EventHandlerDispatcher.handle_event",
            context=trace.set_span_in_context(trace.INVALID_SPAN),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(event),
        )
        with under_way(span):
            yield span

    @contextmanager
    def projecting(self, pipeline: str, projection: str, version: int, aggregates: int) -> Iterator[Span]:
        """A span for folding the events of some aggregates."""
        attributes: dict[str, AttributeValue] = {
            "pipeline.name": pipeline,
            "projection.name": projection,
            "projection.version": version,
            "projection.count": aggregates,
        }
        with self._tracer.start_as_current_span(
            "ProjectionUpdater.update",
            context=trace.set_span_in_context(trace.INVALID_SPAN),
            attributes=attributes,
        ) as span:
            yield span


def _links(event: AnyEvent) -> list[Link]:
    """To the trace in which the event was stored, where it says so."""
    if event.traceparent is None:
        return []
    names = ("traceparent", "tracestate")
    carrier = {name: str(event.metadata[name]) for name in names if name in event.metadata}
    context = trace.get_current_span(propagate.extract(carrier)).get_span_context()
    return [Link(context)] if context.is_valid else []
