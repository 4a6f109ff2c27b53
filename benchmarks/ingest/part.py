"""``python -m benchmarks.ingest.part ROLE SAID``: one process of the set-up, told what to do line by line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toril import Connection, connect
from toril.connection.durability import Durability
from toril.connection.wire import ErrorReply
from toril.keyspace import Key
from toril.server.setup import Settings, Setup, collect_garbage_seldom

from .load import TENANT
from .profile import Sampler

LOOK = 0.25
"""Seconds between two looks at whether all is settled."""
LONGEST_WAIT = 240.0


class Role(ABC):
    """What a process is."""

    def __init__(self, stack: AsyncExitStack, said: Mapping[str, Any]) -> None:
        self.stack = stack
        self.said = said
        self._sampler: Sampler | None = None

    @abstractmethod
    async def begin(self) -> Any:
        """Be up; what is said of it."""

    async def profile(self) -> None:
        """From now on, note where time goes."""
        self._sampler = Sampler()
        self._sampler.start()

    async def profiled(self) -> dict[str, float]:
        """Where it went: seconds of processor time by row."""
        assert self._sampler is not None
        return self._sampler.stop()

    async def setup(self) -> Setup:
        """Toril, on the server that all share, with tables of its own."""
        settings = Settings(
            redis=self.said["redis"],
            home=Path(self.said["home"]),
            open_tenant=TENANT,
            quiet=timedelta(seconds=self.said["quiet"]),
        )
        setup = await self.stack.enter_async_context(Setup.open(settings))
        collect_garbage_seldom()
        return setup


class Collector(Role):
    """Takes spans."""

    async def begin(self) -> Any:
        setup = await self.setup()
        server = await self.stack.enter_async_context(setup.server(port=0))
        return {"port": server.port, "durability": setup.ingestion.durability}


class Worker(Role):
    """Makes summaries of them."""

    async def begin(self) -> Any:
        self._setup = await self.setup()
        self._working = AsyncExitStack()

    async def work(self) -> None:
        """From now on."""
        await self._working.enter_async_context(self._setup.worker())

    async def rest(self) -> None:
        """Until it is told to work again."""
        await self._working.aclose()

    async def settled(self, spans: int) -> float:
        """Wait until all these are in the summaries of the table; when that was, by the monotonic clock."""
        until = time.monotonic() + LONGEST_WAIT
        while (found := (await self.summed())["spans"]) < spans:
            if time.monotonic() > until:
                raise TimeoutError(f"{found} of {spans} spans are in a settled summary")
            await asyncio.sleep(LOOK)
        if found != spans:
            raise RuntimeError(f"{found} spans are in settled summaries, and {spans} were sent")
        return time.monotonic()

    async def summed(self) -> dict[str, int]:
        """What the table of summaries has."""
        ((traces, spans),) = await self._setup.database.query(
            "SELECT count(), sum(Spans) FROM {database}.trace_summaries FINAL"
            " WHERE TenantId = {tenant:String}",
            {"tenant": TENANT},
        )
        return {"traces": traces, "spans": spans}


class Bare(Role):
    """The ceiling: the same HTTP stack, the same decoder, one request to the server for each that comes."""

    async def begin(self) -> Any:
        self._redis = await self.stack.enter_async_context(connect(self.said["redis"]))
        app = Starlette(routes=[Route("/v1/traces", self._take, methods=["POST"])])
        config = uvicorn.Config(
            app, port=0, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
        )
        server = uvicorn.Server(config)
        await self.stack.enter_async_context(_serving(server))
        return {"port": server.servers[0].sockets[0].getsockname()[1]}

    async def _take(self, request: Request) -> Response:
        decoded = ExportTraceServiceRequest.FromString(await request.body())
        appends = [
            ("XADD", STREAM, "*", "b", span.SerializeToString())
            for resource in decoded.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        await append(self._redis, appends)
        return Response(b"", media_type="application/x-protobuf")


STREAM = Key("bare")


async def append(redis: Connection, appends: list[Any]) -> None:
    """All in one request, with one question whether they are on disk."""
    node = await redis._topology.primary(None)
    confirmation = Durability("fsync").confirmation(redis.facts.has_waitaof)
    assert confirmation is not None
    *replies, confirmed = await node.ask([*appends, confirmation])
    for reply in replies:
        if isinstance(reply, ErrorReply):
            raise reply
    Durability("fsync").check(confirmed, None)


@asynccontextmanager
async def _serving(server: uvicorn.Server) -> AsyncIterator[None]:
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield
    server.should_exit = True
    await task


ROLES: Mapping[str, type[Role]] = {"collector": Collector, "worker": Worker, "bare receiver": Bare}


async def main(role: str, said: Mapping[str, Any]) -> None:
    """Do what comes on the standard input, until it ends."""
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), os.fdopen(os.dup(0), "rb")
    )
    async with AsyncExitStack() as stack:
        part = ROLES[role](stack, said)
        print(json.dumps(await part.begin()), flush=True)
        async for line in commands:
            asked = json.loads(line)
            doing = asked.pop("do")
            print(json.dumps(await getattr(part, doing)(**asked)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
