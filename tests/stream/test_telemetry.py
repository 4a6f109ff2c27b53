"""Traces of stream jobs: the producer's, the consumer's, and the link between them."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.stream.parts import NAME, make_queue, until_dead
from toril import Connection
from toril.stream import StreamJob, StreamQueue, StreamWorker, UnrecoverableError
from toril.stream.telemetry import Telemetry


async def test_a_run_is_linked_to_what_added_it(redis: Connection) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    traces = Telemetry(provider.get_tracer("test"), {"team": "bulls"})
    await make_queue(redis)
    queue = StreamQueue(NAME, redis, schema=None, telemetry=traces)
    worker = StreamWorker(NAME, redis, telemetry=traces)

    @worker.handler()
    async def handle(job: StreamJob) -> str:
        if job.data == "bad":
            raise UnrecoverableError("broken")
        return "ok"

    async with worker:
        good = await queue.add("good", name="good", key="k", result_ttl=10)
        assert await good.result(10) == "ok"
        await queue.add("bad")
        await until_dead(queue, 1)
    sent = [span for span in spans.get_finished_spans() if span.kind is SpanKind.PRODUCER]
    worked = [span for span in spans.get_finished_spans() if span.kind is SpanKind.CONSUMER]
    assert [span.name for span in sent] == [f"send {NAME}"] * 2
    first, run = sent[0], worked[0]
    assert first.attributes is not None
    assert run.attributes is not None
    assert first.context is not None
    assert run.attributes["messaging.system"] == first.attributes["messaging.system"] == "redis_streams"
    assert run.attributes["queue.job_id"] == first.attributes["queue.job_id"] == good.id
    assert [link.context.span_id for link in run.links] == [first.context.span_id]
    assert worked[1].status.status_code is StatusCode.ERROR
