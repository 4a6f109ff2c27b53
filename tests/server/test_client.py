"""The Python client, against a real server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import toril.client
from tests.server.parts import Served, serving, span
from tests.waiting import until
from toril import InvalidValue
from toril.client import Client, KeyRefused, RequestRefused, Sent, ServerAway
from toril.pipelines.spans.tables import SpanRow, TraceRow
from toril.server.limits import Limits


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toril.client, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(toril.client, "LONGEST_PAUSE", 0.02)


async def test_spans_are_sent_and_sent_again(served: Served) -> None:
    async with Client(served.url, served.key) as client:
        assert await client.record([]) == Sent(0, 0, [])
        assert await client.record([span(1), span(2)]) == Sent(2, 0, [])
        assert await client.record([span(2), span(3)]) == Sent(2, 0, [])
        assert await served.stored() == 3
        sent = await client.record([span(4), span(5, attributes={"large": "x" * 300_000})])
        assert sent[:2] == (1, 1)
        assert "large" in sent.reasons[0]
        with pytest.raises(InvalidValue, match="trace_id"):
            await client.record([span(6, trace_id="no id")])
        assert await served.stored() == 4


async def test_many_spans_are_sent_in_parts(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toril.client, "SPANS", 4)
    async with Client(served.url, served.key) as client:
        assert await client.record([span(number) for number in range(1, 11)]) == Sent(10, 0, [])
    text = (await served.http.get("/metrics")).text
    assert 'toril_http_requests_total{route="/v1/traces",status="200"} 3.0' in text
    assert await served.stored() == 10


async def test_what_is_too_large_for_a_server_is_split(redis_url: str) -> None:
    limits = Limits(inflated=8192, body=8192, in_flight=10**6)
    async with serving(redis_url, limits=limits) as served, Client(served.url, served.key) as client:
        spans = [span(number, attributes={"x": "y" * 3000}) for number in range(1, 8)]
        too_large = span(8, attributes={"x": "y" * 9000})
        sent = await client.record([*spans, too_large])
        assert sent[:2] == (7, 1)
        assert too_large.span_id in sent.reasons[0]
        assert "8,192 bytes" in sent.reasons[0]
        assert await served.stored() == 7


async def test_traces_are_typed(served: Served) -> None:
    summary = {"started_at": 5, "ended_at": 2**63 - 1, "duration": 1}
    await served.parts.traces.insert(
        [TraceRow(tenant="acme", trace_id=span().trace_id, version=2, summary=summary)]
    )
    await served.parts.spans.insert(
        [SpanRow(tenant="acme", record_id="r", version=1, recorded_at=7, span=span(attributes={"n": 2**62}))]
    )
    async with Client(served.url + "/", served.key) as client:
        (found,) = await client.traces(order="slowest", since=0, until=2**62, limit=5)
        assert (found.trace_id, found.version, found.summary) == (span().trace_id, 2, summary)
        shown = await client.trace(span().trace_id, limit=1)
        assert shown is not None
        assert shown.spans[0].span == span(attributes={"n": 2**62})
        assert not shown.truncated
        assert await client.trace("f" * 32) is None
        with pytest.raises(RequestRefused, match="400: limit"):
            await client.traces(limit=10**6)
        with pytest.raises(RequestRefused, match="trace_id"):
            await client.trace("no id")


async def test_refusals_are_clear(served: Served) -> None:
    for key in (None, "trl_" + "x" * 43):
        async with Client(served.url, key) as client:
            with pytest.raises(KeyRefused, match="401: .*API key"):
                await client.record([span()])
            with pytest.raises(KeyRefused, match="401: .*API key"):
                await client.traces()
    with pytest.raises(InvalidValue, match="url"):
        Client("localhost:8000", "x")
    with pytest.raises(InvalidValue, match="attempts"):
        Client("http://localhost:8000", attempts=0)


async def test_a_busy_server_is_asked_again(redis_url: str, impatient: None) -> None:  # noqa: ARG001
    async with serving(redis_url) as served, Client(served.url, served.key, attempts=10_000) as client:
        gate = served.server.app.state.gate
        gate.closing = True
        sending = asyncio.create_task(client.record([span()]))

        async def refused_twice() -> bool:
            said = (await client._http.get("/metrics")).text
            counted = re.search(r'toril_http_requests_total{route="/v1/traces",status="503"} (\d+)', said)
            return counted is not None and int(counted[1]) >= 2

        await until(refused_twice)
        assert not sending.done()
        gate.closing = False
        assert await sending == Sent(1, 0, [])


@asynccontextmanager
async def answering(
    reply: Callable[[int], bytes],
) -> AsyncIterator[tuple[str, list[float]]]:
    """A listener that says what it is told to, for each connection in turn; and when each one came."""
    came: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(asyncio.get_running_loop().time())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(len(came)))
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", came
    finally:
        listening.close()


async def test_attempts_are_bounded_and_the_server_may_ask_for_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toril.client, "FIRST_PAUSE", 0.01)

    def busy(_: int) -> bytes:
        return b"HTTP/1.1 503 x\r\nRetry-After: 1\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"

    async with answering(busy) as (url, came), Client(url, attempts=2) as client:
        with pytest.raises(ServerAway, match="2 times.*503: busy"):
            await client.traces()
        assert len(came) == 2
        assert came[1] - came[0] >= 1.0


async def test_a_broken_connection_is_tried_again(impatient: None) -> None:  # noqa: ARG001
    def breaks_once(number: int) -> bytes:
        good = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\nConnection: close\r\n\r\n{"traces":[]}'
        return b"" if number == 1 else good

    async with answering(breaks_once) as (url, came), Client(url) as client:
        assert await client.traces() == []
        assert len(came) == 2
    async with Client(url, attempts=2) as client:
        with pytest.raises(ServerAway, match="2 times.*ConnectError"):
            await client.traces()


async def test_an_answer_from_something_else_is_an_error() -> None:
    def strange(_: int) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"

    async with answering(strange) as (url, _), Client(url) as client:
        with pytest.raises(toril.client.ClientError, match="cannot be understood"):
            await client.traces()
