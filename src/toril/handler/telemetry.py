"""OpenTelemetry traces of jobs: who added them, and what became of them.

A job carries the context of the trace that added it. Its processing is a trace of its own, *linked* to that
one: a job may run hours later, and many times. Needs ``toril[telemetry]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from toril import codec
from toril.handler.run import Known


class JobTelemetry:
    """Traces for a queue or a worker, of one kind of queue."""

    system: ClassVar[str]
    """What OpenTelemetry calls the kind of queue."""

    def __init__(self, tracer: Tracer | None = None, attributes: Mapping[str, str] | None = None) -> None:
        self._tracer = tracer or trace.get_tracer("toril")
        self._own = dict(attributes or {})

    def _attributes(self, queue: str, operation: str, kind: str) -> dict[str, Any]:
        return {
            "messaging.system": self.system,
            "messaging.destination.name": queue,
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "queue.name": queue,
            **self._own,
        }

    @contextmanager
    def adding(self, queue: str, names: list[str]) -> Iterator[tuple[Span, str]]:
        """A span for adding jobs, and the context that they carry."""
        attributes = self._attributes(queue, "add", "send")
        if len(names) == 1:
            attributes["queue.job_name"] = names[0]
        else:
            attributes["messaging.batch.message_count"] = len(names)
        with self._tracer.start_as_current_span(
            f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            yield span, codec.encode("trace context", carrier).decode()

    @staticmethod
    def added(span: Span, job_id: str) -> None:
        """Note the id that a job was given."""
        span.set_attribute("messaging.message.id", job_id)
        span.set_attribute("queue.job_id", job_id)

    @staticmethod
    def note(attributes: Mapping[str, str | int | float | bool]) -> None:
        """Say more about what the current span is about."""
        trace.get_current_span().set_attributes(dict(attributes))

    @contextmanager
    def processing(self, queue: str, job: Known) -> Iterator[Span]:
        """A span for a run of a job; what its handler raises is recorded in it."""
        attributes = self._attributes(queue, "process", "process") | {
            "messaging.message.id": job.id,
            "queue.job_id": job.id,
            "queue.job_name": job.name,
            "queue.job_attempt": job.attempts_made + 1,
        }
        span = self._tracer.start_span(
            f"process {queue}",
            context=trace.set_span_in_context(trace.INVALID_SPAN),  # a trace of its own
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(job),
        )
        with under_way(span):
            yield span


@contextmanager
def under_way(span: Span) -> Iterator[None]:
    """Make a span the current one until this ends; what is raised meanwhile is recorded in it."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as problem:
            span.record_exception(problem)
            span.set_status(Status(StatusCode.ERROR, str(problem)))
            raise


def _links(job: Known) -> list[Link]:
    carried = job.trace_context
    if carried is None:
        return []
    try:
        carrier = codec.decode(carried.encode())
    except ValueError:
        return []
    context = trace.get_current_span(propagate.extract(carrier)).get_span_context()
    return [Link(context)] if context.is_valid else []
