"""The application: what it serves, put together from groups of routes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from toril.pipelines.spans.tables import SpanTable, TraceTable
from toril.runtime import EventSourcing
from toril.server.access import Access
from toril.server.collector import Collector, Gate, Recorder
from toril.server.flight import Flight
from toril.server.keys import ApiKeys
from toril.server.limits import Limits
from toril.server.meters import Meters
from toril.server.openapi import describe
from toril.server.operations import Check, Operations, describing
from toril.server.refusals import Refused, json_refusal, refusal_of
from toril.server.routes import Endpoint, Handle, RouteGroup, routed
from toril.server.traces import Traces

METRICS_FRESH = 10.0
"""Seconds for which metrics are remembered: a storm of scrapes costs as much as one."""

OTHER = "(other)"
"""Stands for all paths that are no route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an application serves."""

    recorder: Recorder
    """Where spans go."""
    keys: ApiKeys
    spans: SpanTable
    traces: TraceTable
    sourcings: Sequence[EventSourcing] = ()
    """Whose queues, logs and processors the metrics show; opened already."""
    limits: Limits = Limits()  # noqa: RUF009 - it is frozen
    open_tenant: str | None = None
    """For development: requests from this machine that bring no key are this tenant's."""
    operator: str | None = None
    """A secret of the operator's, with which requests are for the tenant that they name."""
    checks: Mapping[str, Check] = field(default_factory=dict)
    """What must be ready besides Redis, by name; each returns, or raises what is wrong."""
    groups: Sequence[RouteGroup] = ()
    """Further routes."""
    metrics_fresh: float = METRICS_FRESH


def create_app(parts: Parts) -> Starlette:
    """The ASGI application. ``app.state.gate.closing = True`` lets it refuse what comes, with 503."""
    gate = Gate()
    flight = Flight(parts.limits.in_flight)
    meters = Meters(flight)
    access = Access(parts.keys, parts.open_tenant, parts.operator)
    further = [group.metrics for group in parts.groups if group.metrics is not None]
    operations = Operations(meters, gate, parts.sourcings, parts.checks, parts.metrics_fresh, further)
    groups = [
        Collector(parts.recorder, access, parts.limits, flight, meters, gate).group(),
        Traces(parts.spans, parts.traces, access, parts.limits).group(),
        operations.group(),
        *parts.groups,
    ]
    document: dict[str, object] = {}
    groups.append(RouteGroup(name="description", endpoints=[describing(document)]))
    document |= describe(groups)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:  # noqa: ARG001 - Starlette's
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(parts.keys.noting())
            for group in groups:
                if group.running is not None:
                    await stack.enter_async_context(group.running())
            yield

    async def no_route(request: Request, problem: Exception) -> Response:  # noqa: ARG001 - Starlette's
        assert isinstance(problem, HTTPException)
        meters.requests.labels(OTHER, str(problem.status_code)).inc()
        refused = Refused(problem.status_code, problem.detail, headers=problem.headers)
        return json_refusal(refused)

    app = Starlette(
        routes=_routes(groups, meters), lifespan=lifespan, exception_handlers={HTTPException: no_route}
    )
    app.state.gate = gate
    return app


def _routes(groups: Sequence[RouteGroup], meters: Meters) -> list[BaseRoute]:
    routes: list[BaseRoute] = []
    for group in groups:
        routes += routed([replace(one, handle=_measured(one, meters)) for one in group.endpoints])
        routes += group.pages
    return routes


def _measured(endpoint: Endpoint, meters: Meters) -> Handle:
    seconds = meters.seconds.labels(endpoint.path)

    async def handle(request: Request) -> Response:
        began = time.perf_counter()
        try:
            response = await endpoint.handle(request)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it has an answer
            response = json_refusal(refusal_of(problem))
        seconds.observe(time.perf_counter() - began)
        meters.requests.labels(endpoint.path, str(response.status_code)).inc()
        return response

    return handle
