"""``GET /api/traces``: the traces of the key's tenant, and of no other."""

from __future__ import annotations

import re
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from toril.errors import InvalidValue
from toril.pipelines.spans.reading import SpanSeen, TraceList, TraceSeen, TraceView
from toril.pipelines.spans.tables import SpanTable, TraceOrder, TraceTable
from toril.server.access import Access
from toril.server.limits import Limits
from toril.server.refusals import Refused, json_response
from toril.server.routes import (
    DENIED,
    UNAVAILABLE,
    WITH_KEY,
    Endpoint,
    RouteGroup,
    answer,
    parameter,
    ref,
)

ORDERS: tuple[TraceOrder, ...] = get_args(TraceOrder)
LATEST = 2**63 - 1
"""The last nanosecond that can be asked for."""
SHOWN = 50
"""Traces in a list, where nothing else is said."""
SPANS_SHOWN = 1000

_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_WHOLE = re.compile(r"[0-9]{1,19}")


class Traces:
    """Shows traces."""

    def __init__(self, spans: SpanTable, traces: TraceTable, access: Access, limits: Limits) -> None:
        self._spans = spans
        self._traces = traces
        self._access = access
        self._limits = limits

    def group(self) -> RouteGroup:
        """Its routes."""
        return RouteGroup(
            name="traces",
            endpoints=[
                Endpoint(method="GET", path="/api/traces", handle=self.find, operation=self._finding()),
                Endpoint(
                    method="GET", path="/api/traces/{trace_id}", handle=self.show, operation=self._showing()
                ),
            ],
            schemas=SCHEMAS,
        )

    async def find(self, request: Request) -> Response:
        """List traces."""
        tenant = await self._access.tenant_of(request)
        _check_names(request, "order", "since", "until", "limit")
        order = request.query_params.get("order", "latest")
        if order not in ORDERS:
            raise InvalidValue("order", order, f"one of {', '.join(ORDERS)}")
        since = _whole(request, "since", 0, LATEST)
        until = _whole(request, "until", 0, LATEST)
        limit = _whole(request, "limit", 1, self._limits.traces) or min(SHOWN, self._limits.traces)
        if since is not None and until is not None and since > until:
            raise InvalidValue("since", since, f"not after until ({until})")
        rows = await self._traces.find(tenant, order=order, since=since, until=until, limit=limit)
        return json_response(TraceList(traces=[TraceSeen.of(row) for row in rows]))

    async def show(self, request: Request) -> Response:
        """Show one trace with its spans."""
        tenant = await self._access.tenant_of(request)
        _check_names(request, "limit")
        trace_id = request.path_params["trace_id"].lower()
        if not _TRACE_ID.fullmatch(trace_id):
            raise InvalidValue("trace_id", request.path_params["trace_id"], "32 hexadecimal digits")
        most = self._limits.trace_spans
        limit = _whole(request, "limit", 1, most) or min(SPANS_SHOWN, most)
        row = await self._traces.get(tenant, trace_id)
        spans = await self._spans.of_trace(tenant, trace_id, limit=limit + 1)
        if row is None and not spans:
            raise Refused(404, f"there is no trace {trace_id}")
        return json_response(
            TraceView(
                trace_id=trace_id,
                version=None if row is None else row.version,
                summary=None if row is None else row.summary,
                spans=[SpanSeen.of(span) for span in spans[:limit]],
                truncated=len(spans) > limit,
            )
        )

    def _finding(self) -> dict[str, Any]:
        time = {"type": "integer", "minimum": 0, "maximum": LATEST}
        limit = {"type": "integer", "minimum": 1, "maximum": self._limits.traces, "default": SHOWN}
        return {
            "operationId": "findTraces",
            "summary": "List traces",
            "security": WITH_KEY,
            "parameters": [
                parameter(
                    "order",
                    "The last begun first, the longest, the most expensive, or those with the most errors.",
                    {"type": "string", "enum": list(ORDERS), "default": "latest"},
                ),
                parameter("since", "Traces that began then or later (ns since 1970).", time),
                parameter("until", "Traces that began before (ns since 1970).", time),
                parameter("limit", "How many at most.", limit),
            ],
            "responses": {
                "200": answer("The traces.", ref("TraceList")),
                "400": answer("A parameter that breaks a rule.", ref("Error")),
                **DENIED,
                **UNAVAILABLE,
            },
        }

    def _showing(self) -> dict[str, Any]:
        most = self._limits.trace_spans
        limit = {"type": "integer", "minimum": 1, "maximum": most, "default": SPANS_SHOWN}
        return {
            "operationId": "showTrace",
            "summary": "Show a trace with its spans",
            "security": WITH_KEY,
            "parameters": [
                parameter(
                    "trace_id",
                    "Which trace.",
                    {"type": "string", "pattern": "^[0-9a-fA-F]{32}$"},
                    where="path",
                ),
                parameter("limit", "How many spans at most.", limit),
            ],
            "responses": {
                "200": answer("The trace.", ref("TraceView")),
                "400": answer("A parameter that breaks a rule.", ref("Error")),
                "404": answer("There is no such trace.", ref("Error")),
                **DENIED,
                **UNAVAILABLE,
            },
        }


def _check_names(request: Request, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            raise InvalidValue("parameter", name, f"one of {', '.join(known)}")


def _whole(request: Request, name: str, lowest: int, highest: int) -> int | None:
    said = request.query_params.get(name)
    if said is None:
        return None
    if not _WHOLE.fullmatch(said) or not lowest <= int(said) <= highest:
        raise InvalidValue(name, said, f"a whole number from {lowest} to {highest}")
    return int(said)


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


_TEXT, _INTEGER, _ANY = {"type": "string"}, {"type": "integer"}, {"type": "object"}

SCHEMAS = {
    "TraceSeen": _object(["trace_id", "version", "summary"], trace_id=_TEXT, version=_INTEGER, summary=_ANY),
    "TraceList": _object(["traces"], traces={"type": "array", "items": ref("TraceSeen")}),
    "SpanSeen": _object(
        ["record_id", "version", "recorded_at", "span"],
        record_id=_TEXT,
        version=_INTEGER,
        recorded_at=_INTEGER,
        span=_ANY,
    ),
    "TraceView": _object(
        ["trace_id", "version", "summary", "spans", "truncated"],
        trace_id=_TEXT,
        version={"type": ["integer", "null"]},
        summary={"type": ["object", "null"]},
        spans={"type": "array", "items": ref("SpanSeen")},
        truncated={"type": "boolean"},
    ),
}
