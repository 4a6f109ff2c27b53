"""Plans become spans of the OpenTelemetry SDK, as an application's own would be."""

from __future__ import annotations

from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from toril.simulate.facts import SERVICES
from toril.simulate.plans import SpanPlan, TracePlan

_KINDS: Final = {kind.name.lower(): kind for kind in SpanKind}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NOWHERE = Context()


class _PlannedIds(IdGenerator):
    """Says the ids that are next in the plan."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class SpanMaker:
    """Makes spans through a tracer provider for each service, all of whose times and ids are planned.

    ``base``: the moment (ns since 1970) at which the run begins. Not for several threads at once.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        self._ids = _PlannedIds()
        self._providers: dict[str, TracerProvider] = {}
        self._tracers: dict[tuple[str, str], Tracer] = {}

    def spans(self, trace: TracePlan) -> list[ReadableSpan]:
        """The spans of a trace, in the order of the plan."""
        return [self._span(trace.trace_id, planned) for planned in trace.spans]

    def _span(self, trace_id: int, planned: SpanPlan) -> ReadableSpan:
        self._ids.trace_id, self._ids.span_id = trace_id, planned.span_id
        context = _NOWHERE
        if planned.parent is not None:
            above = SpanContext(trace_id, planned.parent, planned.remote, _SAMPLED)
            context = set_span_in_context(NonRecordingSpan(above), _NOWHERE)
        span = self._tracer(planned).start_span(
            planned.name,
            context,
            _KINDS[planned.kind],
            planned.attributes,
            [Link(SpanContext(trace, one, True, _SAMPLED)) for trace, one in planned.links],
            self.base + planned.start,
        )
        assert isinstance(span, Span)  # every span is sampled
        for event in planned.events:
            span.add_event(event.name, event.attributes, self.base + event.time)
        if planned.error is not None:
            span.set_status(Status(StatusCode.ERROR, planned.error))
        elif planned.ok:
            span.set_status(Status(StatusCode.OK))
        span.end(self.base + planned.end)
        return span

    def _tracer(self, planned: SpanPlan) -> Tracer:
        key = planned.service, planned.scope
        if key not in self._tracers:
            self._tracers[key] = self._provider(planned.service).get_tracer(planned.scope, "1.0.0")
        return self._tracers[key]

    def _provider(self, service: str) -> TracerProvider:
        if service not in self._providers:
            language, version = SERVICES[service]
            about = {
                "service.name": service,
                "service.version": version,
                "deployment.environment.name": "simulation",
                "telemetry.sdk.language": language,
                "telemetry.sdk.name": "opentelemetry",
            }
            # All is said, so that no variable of the environment changes what a seed gives.
            none = SpanLimits.UNSET
            self._providers[service] = TracerProvider(
                sampler=ALWAYS_ON,
                resource=Resource(about),
                shutdown_on_exit=False,
                id_generator=self._ids,
                span_limits=SpanLimits(none, none, none, none, none, none, none, none),
            )
        return self._providers[service]
