"""``POST /v1/traces``: OTLP over HTTP, as SDKs and collectors send it.

A request is answered with 200 when its spans are recorded as durably as the log promises, and never before.
Whatever else happens, the sender is told: 429 and 503 mean "again", with ``Retry-After``. To send spans twice
is harmless, so a sender that was not answered sends again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from toril.pipelines.spans import otlp
from toril.pipelines.spans.span import Span
from toril.server.access import Access
from toril.server.bodies import receive
from toril.server.flight import Flight
from toril.server.limits import Limits
from toril.server.meters import Meters
from toril.server.refusals import Refused, refusal_of
from toril.server.routes import WITH_KEY, Endpoint, RouteGroup, answer

PROTOBUF, JSON = "application/x-protobuf", "application/json"

THREADS = 2
"""Large requests that are decoded at a time: more would only take turns."""

AT_ONCE, AT_ONCE_BYTES = 256, 512 * 1024
"""Spans that are recorded at a time, and about how many bytes of a request: between two parts of a large one,
others have their turn. Redaction reads a few megabytes a second."""

GONE = 499
"""The status that is counted where the sender has gone before it could be answered."""

CODES = {400: 3, 401: 16, 408: 4, 413: 8, 415: 3, 429: 8, 500: 13, 503: 14}
"""The code of a ``google.rpc.Status`` for each HTTP status."""


class Recorded(Protocol):
    """What became of spans."""

    @property
    def accepted(self) -> int:
        """Recorded, now or before."""
        ...

    @property
    def repeated(self) -> int:
        """Of those, the ones that were recorded before."""
        ...

    @property
    def refused(self) -> Sequence[str]:
        """Why spans were not recorded, one text each."""
        ...


class Recorder(Protocol):
    """Who records spans: :class:`toril.pipelines.spans.ingestion.Ingestion`."""

    async def record(self, tenant: str, spans: Sequence[Span]) -> Recorded:
        """Record them durably. Raises where that cannot be said of all of them."""
        ...


class Gate:
    """Whether requests are taken."""

    def __init__(self) -> None:
        self.closing = False


class Collector:
    """Takes spans."""

    def __init__(
        self,
        recorder: Recorder,
        access: Access,
        limits: Limits,
        flight: Flight,
        meters: Meters,
        gate: Gate,
    ) -> None:
        self._recorder = recorder
        self._access = access
        self._limits = limits
        self._flight = flight
        self._meters = meters
        self._gate = gate
        self._threads = ThreadPoolExecutor(THREADS, "toril-decode")

    def group(self) -> RouteGroup:
        """Its route."""
        traces = Endpoint(method="POST", path="/v1/traces", handle=self.handle, operation=OPERATION)
        return RouteGroup(name="collector", endpoints=[traces], running=self._running)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def handle(self, request: Request) -> Response:
        """Take a request."""
        media = _media_type(request)
        as_json = media != PROTOBUF  # also where it is neither: people can read that
        try:
            refused = await self._take(request, media)
            status, headers, body = 200, {}, otlp.encode_response(refused, json=as_json)
        except ClientDisconnect:  # nothing was recorded, and there is nobody to tell
            return Response(status_code=GONE)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the sender is told
            wrong = refusal_of(problem)
            status, headers = wrong.status, wrong.headers
            body = otlp.encode_status(CODES.get(status, 2), str(wrong), json=as_json)
        return Response(body, status, headers, media_type=JSON if as_json else PROTOBUF)

    async def _take(self, request: Request, media: str) -> list[str]:
        """Record the spans of a request; why some of them were refused."""
        if self._gate.closing:
            raise Refused(503, "this server is shutting down: send it again, to another", retry_after=1)
        tenant = await self._access.tenant_of(request)
        if media not in (PROTOBUF, JSON):
            raise Refused(415, f"content type {media!r} is not taken: send {PROTOBUF} or {JSON}")
        gzip = _is_gzip(request)
        with self._flight.hold(tenant) as hold:
            body, received = await receive(request, self._limits, hold, gzip=gzip)
            self._meters.received.inc(received)
            self._meters.inflated.inc(len(body))
            decoded = await self._decode(body, as_json=media == JSON)
            at_once = min(AT_ONCE, max(1, len(decoded.spans) * AT_ONCE_BYTES // max(1, len(body))))
            del body
            self._meters.refused.inc(len(decoded.refused))
            return decoded.refused + await self._record(tenant, decoded.spans, at_once)

    async def _record(self, tenant: str, spans: Sequence[Span], at_once: int) -> list[str]:
        refused: list[str] = []
        for first in range(0, len(spans), at_once):
            done = await self._recorder.record(tenant, spans[first : first + at_once])
            refused += done.refused
            self._meters.recorded.inc(done.accepted - done.repeated)
            self._meters.repeated.inc(done.repeated)
            self._meters.refused.inc(len(done.refused))
        return refused

    async def _decode(self, body: bytes, *, as_json: bool) -> otlp.Decoded:
        decode, limits = otlp.decode_json if as_json else otlp.decode_protobuf, self._limits.decoding
        try:
            if len(body) <= self._limits.in_thread:
                return decode(body, limits)
            return await asyncio.get_running_loop().run_in_executor(self._threads, decode, body, limits)
        except otlp.TooManySpans as problem:
            raise Refused(413, str(problem)) from None
        except otlp.BadRequest as problem:
            raise Refused(400, str(problem)) from None


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_gzip(request: Request) -> bool:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("gzip", "identity", ""):
        return encoding == "gzip"
    raise Refused(
        415,
        f"content encoding {encoding!r} is not taken: send gzip, or do not compress",
        headers={"Accept-Encoding": "gzip, identity"},
    )


_RETRY = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait before that."}}
_STATUS = {
    PROTOBUF: {"schema": {"type": "string", "contentEncoding": "binary"}},
    JSON: {
        "schema": {
            "type": "object",
            "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
        }
    },
}

OPERATION = {
    "operationId": "recordTraces",
    "summary": "Record spans (OTLP/HTTP)",
    "description": "Takes an ExportTraceServiceRequest, as protobuf or JSON, plain or compressed with gzip. "
    "The answer has the form of the request.",
    "security": WITH_KEY,
    "requestBody": {
        "required": True,
        "content": {
            PROTOBUF: {"schema": {"type": "string", "contentEncoding": "binary"}},
            JSON: {"schema": {"type": "object"}},
        },
    },
    "responses": {
        "200": answer(
            "The spans are recorded; where some are not, `partialSuccess` says how many, and why.",
            content={
                PROTOBUF: {"schema": {"type": "string", "contentEncoding": "binary"}},
                JSON: {"schema": {"type": "object"}},
            },
        ),
        "400": answer("It cannot be decoded; nothing was recorded.", content=_STATUS),
        "401": answer("The API key is missing, unknown or revoked.", content=_STATUS),
        "408": answer("It took too long to receive it.", content=_STATUS),
        "413": answer("It is too large: send fewer spans at a time.", content=_STATUS),
        "415": answer("A content type or encoding that is not taken.", content=_STATUS),
        "429": answer("Too much of this tenant is in flight: again.", content=_STATUS, headers=_RETRY),
        "503": answer("It cannot be recorded now: again.", content=_STATUS, headers=_RETRY),
    },
}
