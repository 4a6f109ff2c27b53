"""A server with all its parts, as tests need it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import msgspec

from toril.pipelines.spans.ingestion import Ingestion, Recorded
from toril.pipelines.spans.memory import MemorySpanTable, MemoryTraceTable
from toril.pipelines.spans.span import Span
from toril.runtime import EventSourcing
from toril.server.app import Parts
from toril.server.keys import ApiKeys
from toril.server.running import Server

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}
GZIP = {"Content-Encoding": "gzip"}

TRACE = "5b8efff798038103d269b633813fc60c"


def span(number: int = 1, **changed: Any) -> Span:
    made = Span(
        trace_id=TRACE,
        span_id=f"{number:016x}",
        name="step",
        kind=1,
        start=1_700_000_000_000_000_001,
        end=1_700_000_000_000_000_002,
        status=0,
    )
    return msgspec.structs.replace(made, **changed)


class SlowRecorder:
    """Records when it is let."""

    def __init__(self, inner: Ingestion) -> None:
        self._inner = inner
        self.go = asyncio.Event()
        self.begun = 0

    async def record(self, tenant: str, spans: Sequence[Span]) -> Recorded:
        self.begun += 1
        await self.go.wait()
        return await self._inner.record(tenant, spans)


@dataclass
class Served:
    """A running server, and what is behind it."""

    server: Server
    parts: Parts
    sourcing: EventSourcing
    key: str
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return self.server.url

    async def stored(self) -> int:
        """Entries in the log."""
        assert self.sourcing.log is not None
        return sum(standing.length for standing in await self.sourcing.log.standings())

    async def post(self, body: bytes, headers: dict[str, str], **how: Any) -> httpx.Response:
        return await self.http.post("/v1/traces", content=body, headers=headers, **how)


@asynccontextmanager
async def serving(
    url: str, *, recorder: Callable[[Ingestion], Any] | None = None, **changed: Any
) -> AsyncIterator[Served]:
    """A server on a Redis, for the tenant ``acme``."""
    grace = changed.pop("grace", 10.0)
    sourcing = EventSourcing(url, partitions=4, most_entries=changed.pop("most_entries", None))
    sourcing._log_settings["patience"] = 0.1
    spans, traces = MemorySpanTable(), MemoryTraceTable()
    ingestion = Ingestion(sourcing, spans=spans, traces=traces, durability=changed.pop("durability", None))
    async with sourcing:
        assert sourcing.redis is not None
        keys = ApiKeys(sourcing.redis)
        key, _ = await keys.add("acme")
        parts = Parts(
            recorder=ingestion if recorder is None else recorder(ingestion),
            keys=keys,
            spans=spans,
            traces=traces,
            sourcings=[sourcing],
            metrics_fresh=0.0,
        )
        parts = replace(parts, **changed)
        async with (
            Server(parts, port=0, grace=grace) as server,
            httpx.AsyncClient(
                base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=30
            ) as http,
        ):
            yield Served(server, parts, sourcing, key, http)
