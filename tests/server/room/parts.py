"""A waiting room over HTTP, as tests need it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.applications import Starlette

from toril import Connection, connect
from toril.room import LaneSettings, Room, Settings
from toril.room.tokens import AdmissionTokens, SigningKey
from toril.server.room import Rate, RoomOptions, create_room_app
from toril.server.room.options import PATIENCE

ADMIN = "a-secret-of-the-operator"
TOKENS = AdmissionTokens([SigningKey.generate()])
AS_ADMIN = {"Authorization": f"Bearer {ADMIN}"}


@dataclass
class RoomServed:
    """A running application, and what is behind it."""

    app: Starlette
    http: httpx.AsyncClient
    redis: Connection

    async def join(self, event: str = "evt", key: str | None = None, **body: Any) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.http.post("/api/v1/queue/join", json={"event_id": event, **body}, headers=headers)

    async def token(self, event: str = "evt", **body: Any) -> str:
        reply = await self.join(event, str(uuid.uuid4()), **body)
        assert reply.status_code == 202, reply.text
        token: str = reply.json()["waiting_token"]
        return token

    async def status(self, token: str) -> httpx.Response:
        return await self.http.get("/api/v1/queue/status", params={"token": token})

    async def enter(self, token: str) -> httpx.Response:
        return await self.http.post("/api/v1/queue/enter", json={"waiting_token": token})

    async def room(self, event: str = "evt", **settings: Any) -> Room:
        """A room that exists; nobody is let in where nothing is said."""
        made = Room(self.redis, event)
        rate = settings.pop("rate", 0)
        lane = LaneSettings(rate=rate, burst=settings.pop("burst", None), max_active=None if rate else 0)
        said: dict[str, Any] = {"main": lane, "patience": PATIENCE}
        await made.create(Settings(**said | settings))
        return made


@asynccontextmanager
async def room_served(url: str, **changed: Any) -> AsyncIterator[RoomServed]:
    """An application without a socket."""
    options: dict[str, Any] = {"tokens": TOKENS, "admin": ADMIN, "calls": Rate(rate=10_000, burst=10_000)}
    async with connect(url) as redis:
        app = create_room_app(redis, RoomOptions(**options | changed))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://room", timeout=30) as http,
        ):
            yield RoomServed(app, http, redis)


def code(reply: httpx.Response) -> str:
    """The code of an error, which must be said in full."""
    error = reply.json()["error"]
    assert set(error) == {"code", "message", "trace_id"}
    assert error["message"]
    assert len(error["trace_id"]) == 32
    assert reply.headers["content-type"] == "application/json"
    found: str = error["code"]
    return found
