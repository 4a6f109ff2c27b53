"""Traces of event sourcing: what was stored, what handled it, linked and not inherited."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.conftest import Servers, emptied
from tests.runtime.parts import QUICK, Recorder, Total
from tests.runtime.test_pipelines import PlaceOrder
from tests.waiting import until
from toril.events import AnyEvent, HandlerContext, HandlerError
from toril.runtime import EventSourcing
from toril.runtime.telemetry import RuntimeTelemetry


@pytest.mark.parametrize("kind", ["inline", "valkey-standalone"])
async def test_an_event_links_what_handles_it_to_what_stored_it(kind: str, servers: Servers) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    async def act(_: AnyEvent, context: HandlerContext) -> None:
        if context.attempt == 1:
            raise HandlerError("not yet")

    recorder = Recorder(act)
    url = "memory://" if kind == "inline" else emptied(servers.get(kind)).url
    sourcing = EventSourcing(url, telemetry=RuntimeTelemetry(tracer))
    pipeline = (
        sourcing.register_pipeline()
        .with_name("orders")
        .with_aggregate_type("order")
        .with_command_handler(PlaceOrder)
        .with_event_handler("mail", recorder, retry=QUICK)
        .with_projection("total", None, Total)
        .build()
    )
    async with sourcing.worker():
        with tracer.start_as_current_span("request") as request:
            await pipeline.commands.place_order.execute({"order_id": "1", "amount": 5}, tenant="acme")
        await until(lambda: len(recorder.seen) == 1)
        await until(lambda: bool(named(exporter, "ProjectionUpdater.update")))
        await pipeline.commands.place_order.send({"order_id": "2", "amount": 5}, tenant="acme")
        await until(lambda: len(recorder.seen) == 2)
    await sourcing.close()
    stored = named(exporter, "EventSourcingService.store_events")[0]
    assert stored.context.trace_id == request.get_span_context().trace_id
    assert stored.attributes is not None
    assert stored.attributes["event.types"] == ("placed",)
    first, second = named(exporter, "EventHandlerDispatcher.handle_event")[:2]
    for span, attempt in ((first, 1), (second, 2)):
        assert span.attributes is not None
        assert span.attributes["handler.name"] == "mail"
        assert span.attributes["handler.attempt"] == attempt
        assert span.context.trace_id != stored.context.trace_id
        assert [link.context.span_id for link in span.links] == [stored.context.span_id]
    assert first.status.status_code is StatusCode.ERROR
    assert len(named(exporter, "EventSourcingService.store_events")) == 2


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]
