"""``POST /v1/traces``, over real connections, into a real log."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import msgspec
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult

import toril.runtime.sourcing
from tests.conftest import MATRIX, Servers, emptied
from tests.server.parts import GZIP, JSON, PROTOBUF, TRACE, Served, SlowRecorder, serving, span
from tests.waiting import until
from toril.aggregate import Aggregate
from toril.connection import Durability, connect
from toril.pipelines.spans import otlp
from toril.pipelines.spans.ingestion import Ingestion, Recorded
from toril.pipelines.spans.recording import span_of
from toril.pipelines.spans.span import Span
from toril.server.keys import ApiKeys
from toril.server.limits import Limits
from toril.server.running import Server, ServerFailed
from toril.stores.log import LogEventStore
from toril.testing import standalone

GOOD = otlp.encode_protobuf([span()])
KB, MB = 1024, 1024 * 1024


async def recorded(served: Served, trace: str = TRACE) -> list[Span]:
    """The spans of a trace, from the log, as they were sent."""
    assert served.sourcing.log is not None
    stream = await LogEventStore(served.sourcing.log).read(Aggregate("acme", "span", trace))
    spans = [span_of(event.data) for event in stream.events]
    return [msgspec.structs.replace(one, ai=None, rules=[]) for one in spans]


def message(answer: httpx.Response) -> str:
    """What an OTLP error says, in either form."""
    if answer.headers["content-type"] == "application/json":
        return str(answer.json()["message"])
    assert answer.headers["content-type"] == "application/x-protobuf"
    return str(ExportTracePartialSuccess.FromString(answer.content).error_message)  # of the same form


# ------------------------------------------------------------------------- what is taken


async def test_the_stock_exporter_is_taken(served: Served) -> None:
    exporter = OTLPSpanExporter(
        endpoint=f"{served.url}/v1/traces",
        headers={"api-key": served.key},
        compression=Compression.Gzip,
    )
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def work() -> int:
        with provider.get_tracer("tests", "1.0").start_as_current_span("step") as made:
            made.set_attributes({"zero": 0, "large": 2**62, "half": 0.5, "list": ["a", "b"], "no": False})
        provider.shutdown()
        return made.get_span_context().trace_id

    trace = await asyncio.to_thread(work)
    (found,) = await recorded(served, f"{trace:032x}")
    assert found.attributes == {"zero": 0, "large": 2**62, "half": 0.5, "list": ["a", "b"], "no": False}
    assert found.resource.attributes["service.name"] == "shop"
    assert found.scope.name == "tests"


async def test_the_stock_exporter_sees_a_refusal(served: Served) -> None:
    provider = TracerProvider()
    exporter = OTLPSpanExporter(endpoint=f"{served.url}/v1/traces", headers={"api-key": "wrong"})

    def work() -> SpanExportResult:
        made = provider.get_tracer("tests").start_span("step")
        made.end()
        return exporter.export([made])  # type: ignore[list-item]

    assert await asyncio.to_thread(work) is SpanExportResult.FAILURE
    assert await served.stored() == 0


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["protobuf", "json"])
async def test_both_forms_are_taken_packed_or_not(served: Served, form: str, packed: bool) -> None:
    body = otlp.encode_protobuf([span(7)]) if form == "protobuf" else otlp.encode_json([span(7)])
    headers = (PROTOBUF if form == "protobuf" else JSON) | (GZIP if packed else {})
    answer = await served.post(gzip.compress(body) if packed else body, headers)
    assert answer.status_code == 200, answer.content
    assert answer.headers["content-type"] == headers["Content-Type"]
    assert answer.content == (b"" if form == "protobuf" else b"{}")
    assert await recorded(served) == [span(7)]


@pytest.mark.parametrize("where", MATRIX)
async def test_spans_are_recorded_on_every_kind_of_server(servers: Servers, where: str) -> None:
    async with serving(emptied(servers.get(where)).url) as served:
        body = otlp.encode_protobuf([span(number) for number in range(1, 21)])
        for _ in range(2):
            assert (await served.post(body, PROTOBUF)).status_code == 200
        assert await recorded(served) == [span(number) for number in range(1, 21)]  # sent twice, there once
        text = (await served.http.get("/metrics")).text
        assert 'toril_collector_spans_total{outcome="recorded"} 20.0' in text
        assert 'toril_collector_spans_total{outcome="repeated"} 20.0' in text


@pytest.mark.parametrize("name", ["Authorization", "X-Auth-Token", "api-key", "authorization"])
async def test_a_key_can_be_in_several_headers(served: Served, name: str) -> None:
    value = f"Bearer {served.key}" if name.lower() == "authorization" else served.key
    async with httpx.AsyncClient(base_url=served.url) as http:
        answer = await http.post("/v1/traces", content=GOOD, headers=PROTOBUF | {name: value})
    assert answer.status_code == 200


async def test_nothing_is_a_request_too(served: Served) -> None:
    for body, headers in ((b"", PROTOBUF), (b"{}", JSON), (gzip.compress(b""), PROTOBUF | GZIP)):
        answer = await served.post(body, headers)
        assert answer.status_code == 200, answer.content
    assert await served.stored() == 0


async def test_partial_success_says_how_many_and_why(served: Served) -> None:
    mixed = ExportTraceServiceRequest.FromString(otlp.encode_protobuf([span(n) for n in range(1, 5)]))
    sent = mixed.resource_spans[0].scope_spans[0].spans
    sent[1].trace_id, sent[3].span_id = bytes(16), bytes(8)
    answer = await served.post(mixed.SerializeToString(), PROTOBUF)
    assert answer.status_code == 200
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert partial.rejected_spans == 2
    assert "trace" in partial.error_message
    as_json = json.loads(otlp.encode_json([span(n) for n in range(1, 5)]))
    listed = as_json["resourceSpans"][0]["scopeSpans"][0]["spans"]
    listed[1]["traceId"], listed[3]["spanId"] = "0" * 32, ""
    answer = await served.post(json.dumps(as_json).encode(), JSON)
    assert int(answer.json()["partialSuccess"]["rejectedSpans"]) == 2
    assert [one.span_id for one in await recorded(served)] == [span(1).span_id, span(3).span_id]


# ------------------------------------------------------------------------- what is not

ZEROS = gzip.compress(bytes(16 * MB))
BOMB = ZEROS * (10 * MB // len(ZEROS))
"""10 MB that become 10 GB."""

BAD = {
    "no content type": ({"Content-Type": ""}, GOOD, 415, "application/x-protobuf"),
    "wrong content type": ({"Content-Type": "text/plain"}, GOOD, 415, "'text/plain'"),
    "wrong encoding": (PROTOBUF | {"Content-Encoding": "br"}, GOOD, 415, "'br'"),
    "truncated protobuf": (PROTOBUF, GOOD[:-3], 400, ""),
    "no protobuf": (PROTOBUF, b"\xff" * 100, 400, ""),
    "JSON as protobuf": (PROTOBUF, otlp.encode_json([span()]), 400, ""),
    "protobuf as JSON": (JSON, GOOD, 400, ""),
    "truncated JSON": (JSON, otlp.encode_json([span()])[:-3], 400, ""),
    "invalid gzip": (PROTOBUF | GZIP, b"no gzip", 400, "not valid gzip"),
    "truncated gzip": (PROTOBUF | GZIP, gzip.compress(GOOD)[:-3], 400, "its end is missing"),
    "gzip with garbage after it": (PROTOBUF | GZIP, gzip.compress(GOOD) + b"!", 400, "gzip"),
    "gzip that nobody announced": (PROTOBUF, gzip.compress(GOOD), 400, ""),
    "gzip bomb": (PROTOBUF | GZIP, BOMB, 413, "when it is not compressed"),
    "too large": (PROTOBUF, bytes(17 * MB), 413, "as it is sent"),
    "no key": (PROTOBUF | {"Authorization": ""}, GOOD, 401, "missing"),
    "unknown key": (PROTOBUF | {"Authorization": "Bearer trl_" + "x" * 43}, GOOD, 401, "not known"),
    "odd key": (PROTOBUF | {"Authorization": "Bearer {trl}"}, GOOD, 401, "not known"),
    "another scheme": (PROTOBUF | {"Authorization": "Basic YTpi"}, GOOD, 401, "missing"),
}


@pytest.mark.parametrize("what", BAD)
async def test_bad_requests_are_told_why_and_nothing_is_stored(served: Served, what: str) -> None:
    headers, body, status, text = BAD[what]
    answer = await served.post(body, headers)
    assert answer.status_code == status, answer.content
    assert answer.headers["content-type"] == (
        "application/x-protobuf"
        if headers["Content-Type"] == "application/x-protobuf"
        else "application/json"
    )
    assert message(answer)
    assert text in message(answer)
    assert "acme" not in message(answer)
    if status == 401:
        assert answer.headers["www-authenticate"].startswith('Bearer realm="toril"')
    assert await served.stored() == 0
    assert (await served.post(GOOD, PROTOBUF)).status_code == 200  # and the server goes on


BAD_SPANS: dict[str, dict[str, Any]] = {
    "no trace id": {"trace_id": b""},
    "zero trace id": {"trace_id": bytes(16)},
    "short trace id": {"trace_id": b"abc"},
    "zero span id": {"span_id": bytes(8)},
    "a time beyond all": {"start_time_unix_nano": 2**64 - 1},  # -1, as one may come to send it
    "10 MB attribute": {"attributes": [KeyValue(key="x", value=AnyValue(string_value="y" * 10_000_000))]},
}


@pytest.mark.parametrize("what", BAD_SPANS)
async def test_bad_spans_are_told_why_and_nothing_is_stored(served: Served, what: str) -> None:
    good = {"trace_id": bytes.fromhex(TRACE), "span_id": b"12345678", "name": "step"}
    sent = SentSpan(**(good | BAD_SPANS[what]))
    request = ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[sent])])]
    )
    answer = await served.post(request.SerializeToString(), PROTOBUF)
    assert answer.status_code == 200
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert partial.rejected_spans == 1
    assert partial.error_message
    assert len(partial.error_message) < 4200
    assert await served.stored() == 0


@pytest.mark.parametrize(("field", "value"), [("startTimeUnixNano", "-1"), ("traceId", "abc"), ("kind", 9)])
async def test_bad_fields_in_json_are_told(served: Served, field: str, value: object) -> None:
    sent = json.loads(otlp.encode_json([span()]))
    sent["resourceSpans"][0]["scopeSpans"][0]["spans"][0][field] = value
    answer = await served.post(json.dumps(sent).encode(), JSON)
    assert answer.status_code in (200, 400), answer.content
    assert answer.status_code == 400 or answer.json()["partialSuccess"]["rejectedSpans"] == "1"
    assert await served.stored() == 0


async def test_too_many_spans_are_refused_before_they_are_made(served: Served) -> None:
    tiny = otlp.encode_protobuf([span()])
    answer = await served.post(tiny * 60_000, PROTOBUF)
    assert answer.status_code == 413
    assert "60000 spans" in message(answer)
    assert await served.stored() == 0


async def test_a_bomb_is_never_inflated_as_a_whole(redis_url: str) -> None:
    limits = Limits(inflated=16 * MB, in_flight=64 * MB)
    async with serving(redis_url, limits=limits) as served:
        tracemalloc.start()
        try:
            answer = await served.post(BOMB, PROTOBUF | GZIP)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert answer.status_code == 413
        assert peak < 40 * MB


async def in_parts(body: bytes, size: int = 64 * KB) -> AsyncIterator[bytes]:
    for first in range(0, len(body), size):
        yield body[first : first + size]


async def test_the_length_is_looked_at_first_and_counted_where_it_is_not_said(redis_url: str) -> None:
    limits = Limits(body=256 * KB, inflated=MB, in_flight=4 * MB)
    async with serving(redis_url, limits=limits) as served:
        chunked = PROTOBUF | {"Transfer-Encoding": "chunked"}
        answer = await served.http.post("/v1/traces", content=in_parts(bytes(300 * KB)), headers=chunked)
        assert answer.status_code == 413
        assert "262,144 bytes as it is sent" in message(answer)
        answer = await served.http.post("/v1/traces", content=in_parts(GOOD, 10), headers=chunked)
        assert answer.status_code == 200
        reader, writer = await asyncio.open_connection(served.server.host, served.server.port)
        writer.write(
            f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
            "Content-Type: application/x-protobuf\r\nContent-Length: 99999999999\r\n\r\n".encode()
        )
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 5)  # nothing of it was sent
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("length", ["said", "not said"])
async def test_what_is_just_as_large_as_it_may_be_is_taken(redis_url: str, length: str) -> None:
    plain = otlp.encode_protobuf([span(attributes={"text": "x" * 1000})])
    packed = gzip.compress(plain)
    for sent, headers, body, inflated, status in (
        (plain, PROTOBUF, len(plain), len(plain), 200),
        (plain, PROTOBUF, len(plain) - 1, len(plain), 413),
        (packed, PROTOBUF | GZIP, len(packed), len(plain), 200),
        (packed, PROTOBUF | GZIP, len(packed) - 1, len(plain), 413),
        (packed, PROTOBUF | GZIP, len(packed), len(plain) - 1, 413),
    ):
        async with serving(redis_url, limits=Limits(body=body, inflated=inflated, in_flight=MB)) as served:
            content = sent if length == "said" else in_parts(sent, 100)
            answer = await served.http.post("/v1/traces", content=content, headers=headers)
            assert answer.status_code == status, (len(sent), body, inflated)


HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\n"
ENDLESS = {
    "a header": (HEAD + b"X: ", b"y" * 1000),
    "headers": (HEAD, b"X: y\r\n" * 200),
    "a path": (b"GET /", b"y" * 1000),
    "a trailer": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"y" * 1000),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_a_head_that_does_not_end_is_cut_off(served: Served, what: str) -> None:
    begin, more = ENDLESS[what]
    _, writer = await asyncio.open_connection(served.server.host, served.server.port)
    writer.write(begin)
    with pytest.raises(ConnectionError):  # noqa: PT012 - one of many is the one
        for _ in range(2000):
            writer.write(more * 10)
            await writer.drain()
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    large = PROTOBUF | {"X": "y" * 60_000}
    assert (await served.post(GOOD, large)).status_code == 200


async def test_a_sender_that_goes_away_or_sleeps_leaves_nothing_behind(redis_url: str) -> None:
    async with serving(redis_url, limits=Limits(receive=0.3)) as served:
        head = (
            f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n"
            f"Content-Type: application/x-protobuf\r\nContent-Length: {len(GOOD) + 1}\r\n\r\n"
        ).encode()
        _, gone = await asyncio.open_connection(served.server.host, served.server.port)
        gone.write(head + GOOD)
        await gone.drain()
        gone.close()
        await gone.wait_closed()
        reader, sleepy = await asyncio.open_connection(served.server.host, served.server.port)
        sleepy.write(head + GOOD)
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
        sleepy.close()
        await sleepy.wait_closed()

        async def counted() -> bool:
            text = (await served.http.get("/metrics")).text
            return 'status="499"' in text and "toril_collector_in_flight_bytes 0.0" in text

        await until(counted)
        assert await served.stored() == 0


# ------------------------------------------------------------------------- when there is too much


async def test_a_tenant_with_too_much_in_flight_waits_and_others_do_not(redis_url: str) -> None:
    limits = Limits(inflated=100 * KB, in_flight=400 * KB, body=100 * KB)
    slow: list[SlowRecorder] = []

    def slowed(inner: Ingestion) -> SlowRecorder:
        slow.append(SlowRecorder(inner))
        return slow[0]

    async with serving(redis_url, limits=limits, recorder=slowed) as served:
        large = otlp.encode_protobuf([span(attributes={"x": "y" * 60_000})])
        first = [asyncio.create_task(served.post(large, PROTOBUF)) for _ in range(3)]
        await until(lambda: slow[0].begun == 3)
        refused = await served.post(large, PROTOBUF)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "yours" in message(refused)
        other, _ = await served.parts.keys.add("globex")
        theirs = asyncio.create_task(served.post(large, PROTOBUF | {"Authorization": f"Bearer {other}"}))
        await until(lambda: slow[0].begun == 4)
        slow[0].go.set()
        assert {(await one).status_code for one in (*first, theirs)} == {200}
        assert (await served.post(large, PROTOBUF)).status_code == 200


async def test_a_full_log_is_503_with_the_time_to_wait(redis_url: str) -> None:
    async with serving(redis_url, most_entries=2) as served:
        for number in (1, 2):
            assert (await served.post(otlp.encode_protobuf([span(number)]), PROTOBUF)).status_code == 200
        answer = await served.post(otlp.encode_protobuf([span(3)]), PROTOBUF)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert "send it again" in message(answer)
        assert await served.stored() == 2


async def test_what_is_not_as_safe_as_was_asked_for_is_never_acknowledged(redis_url: str) -> None:
    for durability in (Durability("replicated", timeout=0.05), Durability("fsync")):
        async with serving(redis_url, durability=durability) as served:  # it has no replica, and no disk
            answer = await served.post(GOOD, PROTOBUF)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    async with serving(redis_url) as served:
        assert (await served.post(GOOD, PROTOBUF)).status_code == 200
        assert await served.stored() == 1


async def test_a_tenant_that_is_being_erased_is_told_to_come_again(served: Served) -> None:
    log = served.sourcing.log
    assert log is not None
    partitions = (await log.layout()).partitions()
    await log.each(lambda store: store.wall("acme", up=True), partitions)
    answer = await served.post(GOOD, PROTOBUF)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "acme" not in message(answer)
    await log.each(lambda store: store.wall("acme", up=False), partitions)
    assert (await served.post(GOOD, PROTOBUF)).status_code == 200


async def test_a_large_request_that_was_cut_short_is_completed_by_sending_it_again(redis_url: str) -> None:
    body = otlp.encode_protobuf([span(number) for number in range(1, 601)])
    async with serving(redis_url, most_entries=300) as served:
        assert (await served.post(body, PROTOBUF)).status_code == 503
        begun = await served.stored()
        assert 0 < begun < 600
    async with serving(redis_url) as served:
        assert (await served.post(body, PROTOBUF)).status_code == 200
        assert await recorded(served) == [span(number) for number in range(1, 601)]
        text = (await served.http.get("/metrics")).text
        assert f'toril_collector_spans_total{{outcome="repeated"}} {begun}.0' in text


async def test_large_spans_are_recorded_few_at_a_time(redis_url: str) -> None:
    """Redaction takes as long as a text is, and nobody else has a turn meanwhile."""
    parts: list[int] = []

    class Counting(SlowRecorder):
        async def record(self, tenant: str, spans: Sequence[Span]) -> Recorded:
            parts.append(len(spans))
            return await super().record(tenant, spans)

    def made(ingestion: Ingestion) -> Counting:
        recorder = Counting(ingestion)
        recorder.go.set()
        return recorder

    async with serving(redis_url, recorder=made) as served:
        large = [span(number, attributes={"text": "x" * 100_000}) for number in range(1, 11)]
        assert (await served.post(otlp.encode_protobuf(large), PROTOBUF)).status_code == 200
        assert parts == [5, 5]
        parts.clear()
        small = [span(number) for number in range(11, 311)]
        assert (await served.post(otlp.encode_protobuf(small), PROTOBUF)).status_code == 200
        assert parts == [256, 44]


async def test_redis_away_is_503_and_back_is_200(monkeypatch: pytest.MonkeyPatch) -> None:
    with standalone({"appendonly": "yes", "appendfsync": "always"}) as server:
        monkeypatch.setattr(toril.runtime.sourcing, "connect", lambda url: connect(url, patience=0.3))
        async with serving(server.url) as served:
            assert (await served.post(GOOD, PROTOBUF)).status_code == 200
            server.kill()
            for _ in range(2):
                answer = await served.post(otlp.encode_protobuf([span(2)]), PROTOBUF)
                assert answer.status_code == 503, answer.content
                assert "retry-after" in answer.headers
                assert "127.0.0.1" not in message(answer)
            ready = await served.http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["ready"] is False
            assert ready.json()["parts"]["redis"] != "ok"
            assert (await served.http.get("/healthz")).status_code == 200
            metrics = await served.http.get("/metrics")
            assert metrics.status_code == 200
            assert "toril_look_ok 0.0" in metrics.text
            server.start()
            answer = await served.post(otlp.encode_protobuf([span(2)]), PROTOBUF)
            assert answer.status_code == 200, answer.content
            assert await recorded(served) == [span(1), span(2)]


# ------------------------------------------------------------------------- beginning and ending


async def test_what_comes_while_it_ends_is_told_to_come_again(served: Served) -> None:
    served.server.app.state.gate.closing = True  # as close() does, some moments before it listens no more
    answer = await served.post(GOOD, PROTOBUF)
    assert answer.status_code == 503
    assert "shutting down" in message(answer)
    assert "retry-after" in answer.headers
    ready = await served.http.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["parts"]["server"] == "it is shutting down"
    assert await served.stored() == 0


async def test_requests_in_flight_end_before_the_server_does(redis_url: str) -> None:
    slow: list[SlowRecorder] = []

    def slowed(inner: Ingestion) -> SlowRecorder:
        slow.append(SlowRecorder(inner))
        return slow[0]

    async with serving(redis_url, recorder=slowed) as served:
        under_way = asyncio.create_task(served.post(GOOD, PROTOBUF))
        await until(lambda: slow[0].begun == 1)
        closing = asyncio.create_task(served.server.close())

        async def refused() -> bool:
            try:
                _, writer = await asyncio.open_connection(served.server.host, served.server.port)
            except OSError:
                return True
            writer.close()
            await writer.wait_closed()
            return False

        await until(refused)
        assert not closing.done()
        slow[0].go.set()
        assert (await under_way).status_code == 200
        await closing
        await served.server.wait()
        assert await recorded(served) == [span()]


async def test_what_does_not_end_within_the_grace_is_cut_off_and_not_acknowledged(redis_url: str) -> None:
    async with serving(redis_url, recorder=SlowRecorder, grace=1) as served:
        under_way = asyncio.create_task(served.post(GOOD, PROTOBUF))
        recorder = served.parts.recorder
        assert isinstance(recorder, SlowRecorder)
        await until(lambda: recorder.begun == 1)
        await asyncio.wait_for(served.server.close(), 5)
        (end,) = await asyncio.gather(under_way, return_exceptions=True)
        assert isinstance(end, httpx.TransportError | httpx.Response)
        assert isinstance(end, httpx.TransportError) or end.status_code != 200
        assert await served.stored() == 0


async def test_a_port_that_is_taken_is_said(served: Served) -> None:
    with pytest.raises(ServerFailed, match=f":{served.server.port}"):
        async with Server(served.parts, port=served.server.port):
            raise AssertionError


async def test_without_a_key_only_from_this_machine_and_only_when_told(redis_url: str) -> None:
    async with serving(redis_url, open_tenant="acme") as served, httpx.AsyncClient() as http:
        url = f"{served.url}/v1/traces"
        assert (await http.post(url, content=GOOD, headers=PROTOBUF)).status_code == 200
        assert await recorded(served) == [span()]
        wrong = {"api-key": "trl_" + "x" * 43}
        assert (await http.post(url, content=GOOD, headers=PROTOBUF | wrong)).status_code == 401
        for name in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::1", ""):
            answer = await http.post(url, content=GOOD, headers=PROTOBUF | {"Host": name})
            assert answer.status_code == 401, name
        for name in ("localhost:8000", "localhost", "[::1]:8000", "127.0.0.1"):
            answer = await http.post(url, content=GOOD, headers=PROTOBUF | {"Host": name})
            assert answer.status_code == 200, name
        for host in ("0.0.0.0", "192.168.1.5", "toril.example", "::"):
            with pytest.raises(ValueError, match="only this machine"):
                Server(served.parts, host=host)
        for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
            Server(served.parts, host=host)


async def test_a_key_revoked_elsewhere_is_refused_soon(served: Served) -> None:
    assert served.sourcing.redis is not None
    elsewhere = ApiKeys(served.sourcing.redis)
    served.parts.keys.fresh = 0.2
    secret, made = await elsewhere.add("acme")
    mine = PROTOBUF | {"Authorization": f"Bearer {secret}"}
    assert (await served.post(GOOD, mine)).status_code == 200
    await elsewhere.revoke(made.prefix)

    async def refused() -> bool:
        return (await served.post(GOOD, mine)).status_code == 401

    await until(refused, seconds=5)
