"""A client of Toril's server: sends spans, and asks for traces.

Needs ``toril[client]``.
"""

from __future__ import annotations

import asyncio
import gzip
import random
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from toril.errors import InvalidValue, TorilError
from toril.pipelines.spans import otlp
from toril.pipelines.spans.reading import TraceList, TraceSeen, TraceView
from toril.pipelines.spans.span import Span
from toril.pipelines.spans.tables import TraceOrder

T = TypeVar("T")

AGAIN = frozenset({429, 502, 503, 504})
"""The answers after which OTLP has a sender send again."""

SPANS, BYTES = 5_000, 4 * 1024 * 1024
"""Spans in one request, and their bytes before they are compressed; passed by one span at most."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between tries: doubled each time, some of it by chance; the server can ask for longer ones."""


class ClientError(TorilError):
    """The server did not do what it was asked."""


class ServerAway(ClientError):
    """The server could not be reached, or had no time, for as many attempts as were allowed."""


class RequestRefused(ClientError):
    """The server refuses the request: trying again would not help."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"the server answered {status}: {message}")


class KeyRefused(RequestRefused):
    """The API key is missing, unknown or revoked."""


class Sent(NamedTuple):
    """What became of spans."""

    accepted: int
    """Recorded, now or before."""
    refused: int
    reasons: list[str]
    """Why spans were refused, as the server says it."""


class Client:
    """A client of a server.

    ::

        async with Client("http://127.0.0.1:8000", key) as client:
            await client.record(spans)
            for trace in await client.traces(order="dearest"):
                print(trace.trace_id, trace.summary)

    ``attempts``: how often a request is sent at most, where the server has no time for it or is away. To
    send spans twice is harmless. ``tenant``: for whom it asks, where the key is the operator's.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        tenant: str | None = None,
        attempts: int = 6,
        timeout: float = 30.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidValue("url", url, "it begins with http:// or https://")
        if type(attempts) is not int or attempts < 1:
            raise InvalidValue("attempts", attempts, "a whole number from 1")
        self._attempts = attempts
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        if tenant is not None:
            headers["X-Toril-Tenant"] = tenant
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect."""
        await self._http.aclose()

    async def record(self, spans: Sequence[Span]) -> Sent:
        """Send spans. Returned from, those that were not refused are recorded.

        Many are sent in parts. Where it raises, parts may have been recorded: send all again.
        """
        accepted, refused = 0, 0
        reasons: list[str] = []
        parts = deque(_parts(spans))
        while parts:
            part = parts.popleft()
            try:
                rejected, message = await self._send(part)
            except RequestRefused as problem:
                if problem.status != 413:
                    raise
                if len(part) > 1:
                    half = len(part) // 2
                    parts.extendleft((part[half:], part[:half]))
                    continue
                rejected, message = 1, f"span {part[0].span_id}: {problem}"
            accepted += len(part) - rejected
            refused += rejected
            if message:
                reasons.append(message)
        return Sent(accepted, refused, reasons)

    async def traces(
        self,
        *,
        order: TraceOrder = "latest",
        since: int | None = None,
        until: int | None = None,
        limit: int | None = None,
    ) -> list[TraceSeen]:
        """Traces that began from ``since`` (ns) to before ``until``."""
        asked: dict[str, str | int] = {"order": order}
        asked |= {
            name: value
            for name, value in (("since", since), ("until", until), ("limit", limit))
            if value is not None
        }
        answer = await self._ask("GET", "/api/traces", params=asked)
        return _decoded(answer, TraceList).traces

    async def trace(self, trace_id: str, *, limit: int | None = None) -> TraceView | None:
        """One trace with its spans; None where there is none."""
        asked = {} if limit is None else {"limit": limit}
        try:
            answer = await self._ask("GET", f"/api/traces/{quote(trace_id, safe='')}", params=asked)
        except RequestRefused as problem:
            if problem.status == 404:
                return None
            raise
        return _decoded(answer, TraceView)

    async def erase(self, tenant: str) -> dict[str, Any]:
        """Erase a tenant, for good; says what was removed. Only with the operator's key."""
        answer = await self._ask("DELETE", f"/api/tenants/{quote(tenant, safe='')}", timeout=None)
        return _decoded(answer, dict[str, Any])

    async def _send(self, spans: Sequence[Span]) -> tuple[int, str]:
        """Send one request; how many of its spans were refused, and why."""
        body = await asyncio.to_thread(_packed, spans)
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        answer = await self._ask("POST", "/v1/traces", content=body, headers=headers)
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        return partial.rejected_spans, partial.error_message

    async def _ask(self, method: str, path: str, **what: Any) -> httpx.Response:
        """Send a request, as often as it takes and is allowed."""
        pause, wait = FIRST_PAUSE, 0.0
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(max(wait, pause) * (1 + random.random() / 4))
                pause = min(2 * pause, LONGEST_PAUSE)
            try:
                answer = await self._http.request(method, path, **what)
            except httpx.TransportError as broken:
                problem, wait = f"{type(broken).__name__}: {broken}", 0.0
                continue
            if answer.is_success:
                return answer
            message = _message(answer)
            if answer.status_code not in AGAIN:
                kind = KeyRefused if answer.status_code == 401 else RequestRefused
                raise kind(answer.status_code, message)
            problem, wait = f"it answered {answer.status_code}: {message}", _retry_after(answer)
        raise ServerAway(f"the server had no time for this {self._attempts} times; the last time {problem}")


def _packed(spans: Sequence[Span]) -> bytes:
    return gzip.compress(otlp.encode_protobuf(spans), compresslevel=3, mtime=0)


def _parts(spans: Sequence[Span]) -> list[Sequence[Span]]:
    """Spans in parts that a server takes."""
    parts: list[Sequence[Span]] = []
    first, size = 0, 0
    for place, span in enumerate(spans):
        size += len(msgspec.json.encode(span))  # near enough to what will be sent
        if size >= BYTES or place + 1 - first >= SPANS:
            parts.append(spans[first : place + 1])
            first, size = place + 1, 0
    if first < len(spans):
        parts.append(spans[first:])
    return parts


def _decoded(answer: httpx.Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except msgspec.MsgspecError as problem:
        raise ClientError(f"the server's answer cannot be understood: {problem}") from None


def _retry_after(answer: httpx.Response) -> float:
    said = answer.headers.get("retry-after", "")
    return min(float(said), LONGEST_PAUSE) if said.isascii() and said.isdigit() else 0.0


def _message(answer: httpx.Response) -> str:
    """What the server says is wrong, in whichever of its forms."""
    kind = answer.headers.get("content-type", "")
    if kind.startswith("application/x-protobuf"):
        # A google.rpc.Status is a number and a text, and so is this: its class need not be there.
        return str(ExportTracePartialSuccess.FromString(answer.content).error_message)
    try:
        value = answer.json()
    except ValueError:
        return answer.text[:500]
    if isinstance(value, dict):
        return str(value.get("error") or value.get("message") or answer.text[:500])
    return answer.text[:500]
