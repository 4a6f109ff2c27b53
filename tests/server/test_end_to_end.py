"""What is sent is found again in ClickHouse, as it was sent: by the stock SDK, and in the JSON of OTLP."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tests.server.test_up import home, up
from toril.client import Client
from toril.pipelines.spans.reading import TraceView
from toril.pipelines.spans.span import Span

__all__ = ["home"]

EXAMPLE = Path(__file__).parent.parent / "pipelines" / "data" / "otlp"

ATTRIBUTES: dict[str, Any] = {
    "text": "ünï ✓",
    "empty": "",
    "yes": True,
    "no": False,
    "zero": 0,
    "largest": 2**63 - 1,
    "smallest": -(2**63),
    "fraction": 0.1,
    "no fraction": 0.0,
    "texts": ["a", ""],
    "numbers": [0, -1, 2**62],
    "fractions": [0.0, 1.5],
    "booleans": [False, True],
    "nothing": [],
    "dots.in.a.name": "here",
    "gen_ai.usage.input_tokens": 0,
}


async def found(client: Client, trace_id: str, spans: int) -> TraceView:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        view = await client.trace(trace_id)
        if view is not None and view.version == len(view.spans) == spans:
            return view
        await asyncio.sleep(0.05)
    raise AssertionError(f"{trace_id} was not found with {spans} spans")


def send(url: str) -> list[ReadableSpan]:
    """A trace with everything that a span can have; the spans as the SDK has them."""
    kept = InMemorySpanExporter()
    exporter = OTLPSpanExporter(f"{url}/v1/traces", compression=Compression.Gzip)
    provider = TracerProvider(resource=Resource({"service.name": "shop", "zero": 0, "list": ["a", "b"]}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("scope", "1.2", attributes={"of": "scope", "n": 0})
    linked = SpanContext(0x1234, 0x99, is_remote=True, trace_flags=TraceFlags(1))
    start = 1_699_999_999_123_456_789
    root = tracer.start_span("root", kind=SpanKind.SERVER, attributes=ATTRIBUTES, start_time=start)
    with trace.use_span(root, end_on_exit=False):
        child = tracer.start_span(
            "child", kind=SpanKind.CLIENT, links=[Link(linked, {"why": "so", "n": 0})], start_time=start + 1
        )
        child.add_event("happened", {"n": 0, "text": ""}, timestamp=start + 2)
        child.set_status(Status(StatusCode.ERROR, "it broke"))
        child.end(start + 3)
    root.set_status(Status(StatusCode.OK))
    root.end(start + 4)
    provider.shutdown()
    return list(kept.get_finished_spans())


def agrees(stored: Span, sent: ReadableSpan) -> None:
    """Whether a stored span says all that the SDK's says."""
    context, parent = sent.context, sent.parent
    assert context is not None
    assert (stored.trace_id, stored.span_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert stored.parent_span_id == (None if parent is None else f"{parent.span_id:016x}")
    assert (stored.name, stored.start, stored.end) == (sent.name, sent.start_time, sent.end_time)
    assert stored.kind == {SpanKind.SERVER: 2, SpanKind.CLIENT: 3}[sent.kind]
    assert stored.status == sent.status.status_code.value
    assert stored.status_message == (sent.status.description or "")
    as_lists = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in (sent.attributes or {}).items()
    }
    assert stored.attributes == as_lists
    for name, value in as_lists.items():
        assert type(stored.attributes[name]) is type(value), name
    assert [(one.name, one.time, one.attributes) for one in stored.events] == [
        (one.name, one.timestamp, dict(one.attributes or {})) for one in sent.events
    ]
    assert [(one.trace_id, one.span_id, one.attributes) for one in stored.links] == [
        (f"{one.context.trace_id:032x}", f"{one.context.span_id:016x}", dict(one.attributes or {}))
        for one in sent.links
    ]
    assert stored.resource.attributes["zero"] == 0
    assert stored.resource.attributes["list"] == ["a", "b"]
    assert (stored.scope.name, stored.scope.version) == ("scope", "1.2")
    assert stored.scope.attributes == {"of": "scope", "n": 0}


async def test_what_is_sent_is_found_again_as_it_was_sent(home: Path) -> None:
    with up(home, "--open", "acme") as running:
        async with Client(running.url) as client:
            sent = await asyncio.to_thread(send, running.url)
            context = sent[0].context
            assert context is not None
            view = await found(client, f"{context.trace_id:032x}", 2)
            by_id = {seen.span.span_id: seen.span for seen in view.spans}
            for span in sent:
                assert span.context is not None
                agrees(by_id[f"{span.context.span_id:016x}"], span)
            assert view.summary is not None
            assert view.summary["duration"] == 4

            # The examples of the OTLP specification, as they stand there.
            for file in sorted(EXAMPLE.glob("*.json")):
                answer = await asyncio.to_thread(
                    httpx.post,
                    f"{running.url}/v1/traces",
                    content=file.read_bytes(),
                    headers={"Content-Type": "application/json"},
                )
                assert (answer.status_code, answer.json()) == (200, {}), file
            view = await found(client, "5b8efff798038103d269b633813fc60c", 1)
            (example,) = [seen.span for seen in view.spans]
            assert (example.span_id, example.parent_span_id) == ("eee19b7ec3c1b174", "eee19b7ec3c1b173")
            assert (example.start, example.end) == (1544712660000000000, 1544712661000000000)
            assert example.attributes["my.span.attr"] == "some value"
        running.end()
