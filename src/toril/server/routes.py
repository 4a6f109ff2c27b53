"""Routes, and what is said of them: a route and its description are made in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

Handle = Callable[[Request], Awaitable[Response]]

MoreMetrics = Callable[[], Awaitable[Sequence[Metric]]]
"""Looks at something, and says how it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    handle: Handle
    operation: Mapping[str, Any]
    """As OpenAPI describes it: ``summary``, ``parameters``, ``responses`` …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteGroup:
    """Endpoints that belong together. An application is made of such groups."""

    name: str
    endpoints: Sequence[Endpoint] = ()
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """What their descriptions refer to, as ``#/components/schemas/…``."""
    pages: Sequence[BaseRoute] = ()
    """Routes for people: not described, not counted."""
    running: Callable[[], AbstractAsyncContextManager[None]] | None = None
    """Entered while the application runs."""
    metrics: MoreMetrics | None = None
    """What ``/metrics`` says of them besides."""


def routed(endpoints: Sequence[Endpoint]) -> list[BaseRoute]:
    """Routes for endpoints: one for each path, so that it can say which methods it knows."""
    paths: dict[str, dict[str, Handle]] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method] = one.handle
    return [Route(path, _by_method(known), methods=list(known)) for path, known in paths.items()]


def _by_method(known: Mapping[str, Handle]) -> Handle:
    async def handle(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await known[method](request)

    return handle


def answer(description: str, schema: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A response, as OpenAPI describes it."""
    content = {} if schema is None else {"content": {"application/json": {"schema": schema}}}
    return {"description": description, **content, **more}


def ref(name: str) -> dict[str, str]:
    """A reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def parameter(name: str, description: str, schema: Mapping[str, Any], *, where: str = "query") -> Any:
    """A parameter, as OpenAPI describes it."""
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": description,
        "schema": schema,
    }


WITH_KEY: list[dict[str, list[str]]] = [{"bearer": []}, {"token": []}, {"apiKey": []}]
"""What an operation that needs a key says of it."""

DENIED = {"401": answer("The API key is missing, unknown or revoked.", ref("Error"))}
UNAVAILABLE = {
    "503": answer(
        "It cannot be done now: try again after the time in `Retry-After`.",
        ref("Error"),
        headers={"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}},
    )
}
