"""For those who run the server: ``/metrics``, ``/healthz``, ``/readyz``, ``/openapi.json``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as PrometheusCollector
from starlette.requests import Request
from starlette.responses import Response

from toril.runtime import EventSourcing
from toril.server.collector import Gate
from toril.server.meters import Meters
from toril.server.refusals import json_response
from toril.server.remembered import Remembered
from toril.server.routes import Endpoint, MoreMetrics, RouteGroup, answer, ref
from toril.server.standing import Families, look
from toril.server.streams import StreamWatch

logger = logging.getLogger("toril.server")

Check = Callable[[], Awaitable[object]]
"""Returns where a part is ready, and raises what is wrong with it."""

LOOK_SECONDS = 10.0
"""Seconds that a look at queues, logs and processors may take."""

CHECK_SECONDS = 3.0
"""Seconds in which a part must say that it is ready."""

READY_FRESH = 1.0

TICK, TICKS = 0.25, 40
"""How often the event loop is looked at, and how many looks are remembered: ten seconds."""

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Operations:
    """Says how the server is."""

    def __init__(
        self,
        meters: Meters,
        gate: Gate,
        sourcings: Sequence[EventSourcing],
        checks: Mapping[str, Check],
        fresh: float,
        more: Sequence[MoreMetrics] = (),
    ) -> None:
        self._meters = meters
        self._gate = gate
        self._sourcings = sourcings
        self._more = more
        self._checks = {**redis_checks(sourcings), **checks}
        self._streams = StreamWatch()
        self._text = Remembered(self._collect, fresh)
        self._ready = Remembered(self._ask_all, READY_FRESH)

    def group(self) -> RouteGroup:
        """Its routes."""
        return RouteGroup(
            name="operations",
            endpoints=[
                Endpoint(method="GET", path="/metrics", handle=self.metrics, operation=METRICS),
                Endpoint(method="GET", path="/healthz", handle=self.healthy, operation=HEALTHZ),
                Endpoint(method="GET", path="/readyz", handle=self.ready, operation=READYZ),
            ],
            schemas=SCHEMAS,
            running=self._running,
        )

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            await self._text.close()
            await self._ready.close()
            await self._streams.close()

    # ------------------------------------------------------------------ metrics

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002 - a route's handle takes it
        """All metrics, collected a few seconds ago at most."""
        return Response(await self._text.get(), media_type=PROMETHEUS)

    async def _collect(self) -> bytes:
        began = time.monotonic()
        found, ok, further = Families(), True, list[Metric]()
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                found = await look(self._sourcings)
                connections = [each.redis for each in self._sourcings if each.redis is not None]
                await self._streams.look(connections, found)
                for ask in self._more:
                    further += await ask()
        except Exception as problem:  # noqa: BLE001 - what this process knows of itself is told all the same
            logger.warning("metrics: queues and logs could not be looked at: %s", problem)
            ok = False
        found.gauge("toril_look_ok", "1 where queues, logs and processors could be looked at.", ok)
        text = "How long it took to look at queues, logs and processors."
        found.gauge("toril_look_seconds", text, time.monotonic() - began)
        others = CollectorRegistry(auto_describe=False)
        others.register(Made([*found, *further]))
        return generate_latest(self._meters.registry) + generate_latest(others)

    # ------------------------------------------------------------------ health

    async def healthy(self, request: Request) -> Response:  # noqa: ARG002
        """The process lives, and its event loop answers."""
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """Whether all parts work; if not, which do not, and why."""
        parts = dict(await self._ready.get())
        if self._gate.closing:
            parts["server"] = "it is shutting down"
        wrong = any(said != "ok" for said in parts.values())
        return json_response({"ready": not wrong, "parts": parts}, 503 if wrong else 200)

    async def _ask_all(self) -> dict[str, str]:
        said = await asyncio.gather(*(_ask(check) for check in self._checks.values()))
        return dict(zip(self._checks, said, strict=True))

    async def _tick(self) -> None:
        lags: deque[float] = deque(maxlen=TICKS)
        while True:
            began = time.monotonic()
            await asyncio.sleep(TICK)
            lags.append(max(0.0, time.monotonic() - began - TICK))
            self._meters.loop_lag.set(max(lags))


class Made(PrometheusCollector):
    """Metrics that were made before they are asked for."""

    def __init__(self, made: Iterable[Metric]) -> None:
        self._made = made

    def collect(self) -> Iterable[Metric]:
        return self._made


async def _ask(check: Check) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check()
    except TimeoutError:
        return f"no answer within {CHECK_SECONDS:g} seconds"
    except Exception as problem:  # noqa: BLE001 - whatever it is, the part is not ready
        return f"{type(problem).__name__}: {problem}"
    return "ok"


def redis_checks(sourcings: Sequence[EventSourcing]) -> dict[str, Check]:
    """A check for the Redis of each event sourcing: all its primaries answer."""

    def check_of(sourcing: EventSourcing) -> Check:
        async def check() -> None:
            assert sourcing.redis is not None, "it is closed"
            await sourcing.redis.each_primary("PING")

        return check

    checks: dict[str, Check] = {}
    for sourcing in sourcings:
        if not sourcing.in_memory:
            name = "redis" if not checks else f"redis {len(checks) + 1}"
            checks[name] = check_of(sourcing)
    return checks


def describing(document: Mapping[str, Any]) -> Endpoint:
    """The route of the API's own description."""

    async def show(request: Request) -> Response:  # noqa: ARG001
        return json_response(document)

    return Endpoint(method="GET", path="/openapi.json", handle=show, operation=OPENAPI)


METRICS = {
    "operationId": "metrics",
    "summary": "Metrics for Prometheus",
    "responses": {"200": answer("Metrics.", content={"text/plain": {"schema": {"type": "string"}}})},
}
HEALTHZ = {
    "operationId": "healthy",
    "summary": "Whether the process lives",
    "responses": {"200": answer("It does.", ref("Health"))},
}
READYZ = {
    "operationId": "ready",
    "summary": "Whether all parts of the server work",
    "responses": {
        "200": answer("They do.", ref("Readiness")),
        "503": answer("Some do not; `parts` says which, and why.", ref("Readiness")),
    },
}
OPENAPI = {
    "operationId": "openapi",
    "summary": "This description",
    "responses": {"200": answer("OpenAPI 3.1.", {"type": "object"})},
}
SCHEMAS = {
    "Health": {"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}},
    "Readiness": {
        "type": "object",
        "required": ["ready", "parts"],
        "properties": {
            "ready": {"type": "boolean"},
            "parts": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "`ok`, or what is wrong, by part.",
            },
        },
    },
}
