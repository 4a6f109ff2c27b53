"""Traces: the producer's, the consumer's, and the link between them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.queue.test_worker import until_counts
from toril import Connection
from toril.queue import AddJob, Job, JobOptions, Queue, Worker
from toril.queue.telemetry import Telemetry

NAME = "{traced}"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.clear()


def telemetry(spans: InMemorySpanExporter) -> Telemetry:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Telemetry(provider.get_tracer("test"), {"team": "bulls"})


def by_kind(spans: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.kind is kind]


async def test_a_run_is_linked_to_what_added_it(redis: Connection, spans: InMemorySpanExporter) -> None:
    traces = telemetry(spans)
    queue = Queue(NAME, redis, telemetry=traces)
    worker = Worker(NAME, redis, telemetry=traces)

    @worker.handler()
    async def handle(job: Job) -> str:
        if job.name == "bad":
            raise ValueError("broken")
        return "ok"

    async with worker:
        job = await queue.add("good", {})
        await queue.add("bad", {})
        await queue.add_bulk([AddJob("good", n) for n in range(3)])
        await until_counts(queue, completed=4, failed=1)
    sent, worked = by_kind(spans, SpanKind.PRODUCER), by_kind(spans, SpanKind.CONSUMER)
    assert [span.name for span in sent] == ["send {traced}"] * 3
    assert len(worked) == 5
    first, run = sent[0], worked[0]
    assert first.attributes is not None
    assert run.attributes is not None
    assert dict(first.attributes) == {
        "messaging.system": "bullmq",
        "messaging.destination.name": NAME,
        "messaging.operation.name": "add",
        "messaging.operation.type": "send",
        "messaging.message.id": job.id,
        "queue.name": NAME,
        "queue.job_name": "good",
        "queue.job_id": job.id,
        "team": "bulls",
    }
    assert run.attributes["queue.job_id"] == job.id
    assert run.attributes["messaging.operation.type"] == "process"
    assert run.context is not None
    assert first.context is not None
    assert run.context.trace_id != first.context.trace_id, "a trace of its own"
    assert [link.context.span_id for link in run.links] == [first.context.span_id]
    bad = next(span for span in worked if span.attributes and span.attributes["queue.job_name"] == "bad")
    assert bad.status.status_code is StatusCode.ERROR
    assert bad.events[0].name == "exception"
    assert sent[2].attributes is not None
    assert sent[2].attributes["messaging.batch.message_count"] == 3


async def test_a_strange_context_is_no_obstacle(redis: Connection, spans: InMemorySpanExporter) -> None:
    queue = Queue(NAME, redis)
    worker = Worker(NAME, redis, telemetry=telemetry(spans))
    worker.handler()(lambda job: None)  # noqa: ARG005
    async with worker:
        await queue.add("j", {}, JobOptions(telemetry="not a carrier"))
        await queue.add("j", {}, JobOptions(telemetry='{"traceparent": "nonsense"}'))
        await queue.add("j", {})
        await until_counts(queue, completed=3)
    assert [list(span.links) for span in by_kind(spans, SpanKind.CONSUMER)] == [[], [], []]
