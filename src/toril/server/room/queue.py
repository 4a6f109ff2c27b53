"""Joining, waiting, entering, leaving."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from toril.connection import Connection
from toril.keyspace import IdempotencyKeys
from toril.room import NoSuchRoom, Room, Session, Status, TicketOver, Token, UnknownTicket
from toril.server.room.described import KEY, TOKEN, Door, endpoint, key_of, operation, reply, token_in
from toril.server.room.options import RoomOptions
from toril.server.room.problems import Problem, answer_problem
from toril.server.room.rooms import Rooms
from toril.server.room.wire import (
    Entered,
    Heartbeat,
    Joined,
    JoinRequest,
    Left,
    QueueStatus,
    Redeemed,
    RedeemRequest,
    Shown,
    TicketRequest,
    body_of,
)
from toril.server.routes import Endpoint, answer

FIRST_POLL_MS = 1000
REMEMBERED = 86_400_000
"""For so long (ms) an idempotency key is known to be another event's. In its own event it is known for as
long as its ticket."""

LOOK_EVERY = 1.0
"""Seconds between two looks on behalf of somebody who listens: about, so that not all look at once."""
SILENCE = 15.0
"""Seconds after which something is sent, so that nobody between takes the connection for dead."""


class Queue:
    """The routes under ``/api/v1/queue``."""

    def __init__(self, rooms: Rooms, redis: Connection, options: RoomOptions, door: Door) -> None:
        self._rooms = rooms
        self._redis = redis
        self._options = options
        self._door = door
        self._streams = 0

    def endpoints(self) -> list[Endpoint]:
        """The routes."""
        base = "/api/v1/queue"
        return [
            endpoint("POST", f"{base}/join", self.join, JOIN),
            endpoint("GET", f"{base}/status", self.status, STATUS),
            endpoint("POST", f"{base}/heartbeat", self.heartbeat, HEARTBEAT),
            endpoint("GET", f"{base}/stream", self.stream, STREAM),
            endpoint("POST", f"{base}/enter", self.enter, ENTER),
            endpoint("POST", f"{base}/renew", self.renew, RENEW),
            endpoint("POST", f"{base}/redeem", self.redeem, REDEEM),
            endpoint("DELETE", f"{base}/leave", self.leave, LEAVE),
        ]

    async def join(self, request: Request) -> Response:
        """Take a place."""
        key = key_of(request)
        asked = await body_of(request, JoinRequest)
        if asked.lane != "main" and not self._door.is_operator(request):
            raise Problem(403, "FORBIDDEN", "only the operator may send somebody past the line")
        await self._door.limit(request)
        if key is not None:
            await self._remember(key, asked)
        room = await self._rooms.get_or_make(asked.event_id, self._door.caller(request))
        ticket = await room.join(user=asked.user_id or None, key=key, lane=asked.lane)
        if not ticket.live:
            # Its key is remembered, so that a late repeat does not wait anew. Who means to brings another.
            raise TicketOver(ticket.state)
        prequeue = ticket.state == "waiting" and not ticket.place
        joined = Joined(
            waiting_token=str(ticket.token),
            position_hint=0,
            status="prequeue" if prequeue else _shown(ticket.state),
            ticket=ticket.token.session,
            repeated=ticket.repeated,
            next_poll_ms=FIRST_POLL_MS,
        )
        return reply(joined, 202)

    async def status(self, request: Request) -> Response:
        """How far it is."""
        return reply(await self._status(token_in(request)))

    async def heartbeat(self, request: Request) -> Response:
        """Keep a place."""
        said = await self._status((await body_of(request, TicketRequest)).waiting_token)
        return reply(Heartbeat(said.status, said.ready_for_entry, said.next_poll_ms))

    async def enter(self, request: Request) -> Response:
        """Go in."""
        key_of(request)
        token = (await body_of(request, TicketRequest)).waiting_token
        await self._door.limit(request)
        room = await self._room_of(token)
        return reply(self._entered(await room.enter(token)))

    async def renew(self, request: Request) -> Response:
        """Stay longer."""
        token = (await body_of(request, TicketRequest)).waiting_token
        await self._door.limit(request)
        room = await self._room_of(token)
        return reply(self._entered(await room.renew(token)))

    async def redeem(self, request: Request) -> Response:
        """Use an admission, once."""
        asked = await body_of(request, RedeemRequest)
        await self._door.limit(request)
        admitted = self._options.tokens.verify(asked.reservation_token)
        room = await self._rooms.get(admitted.event)
        ticket = await room.redeem(admitted.session, asked.by, entered=admitted.issued)
        return reply(Redeemed("granted", admitted.event, admitted.user, admitted.session, ticket.used_by))

    async def leave(self, request: Request) -> Response:
        """Give a place up; also one that nobody knows."""
        token = token_in(request)
        with suppress(UnknownTicket, NoSuchRoom):
            await (await self._room_of(token)).leave(token)
        return reply(Left("left"))

    # ------------------------------------------------------------------ listening

    async def stream(self, request: Request) -> Response:
        """Say how far it is, whenever that changes."""
        token = token_in(request)
        said = await self._status(token)
        if self._streams >= self._options.streams:
            raise Problem(
                503, "TOO_MANY_STREAMS", "too many listen: ask for the status instead", retry_after=5
            )
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._tell(request, token, said), media_type="text/event-stream", headers=headers
        )

    async def _tell(self, request: Request, token: str, said: QueueStatus) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            yield b"retry: 3000\n\n" + _event("status", msgspec.json.encode(said))
            told, told_at = _gist(said), time.monotonic()
            while not _closing(request):
                await asyncio.sleep(LOOK_EVERY * random.uniform(0.8, 1.2))
                try:
                    said = await self._status(token)
                except Exception as problem:  # noqa: BLE001 - whatever it is, who listens is told
                    yield _event("gone", bytes(answer_problem(request, problem).body))
                    return
                if _gist(said) != told:
                    yield _event("status", msgspec.json.encode(said))
                    told, told_at = _gist(said), time.monotonic()
                elif time.monotonic() - told_at > SILENCE:
                    yield b": still here\n\n"
                    told_at = time.monotonic()
        finally:
            self._streams -= 1

    # ------------------------------------------------------------------ inside

    async def _remember(self, key: str, asked: JoinRequest) -> None:
        """A key is for one request; keys of an event are the room's, this tells events apart."""
        event = hashlib.sha256(asked.event_id.encode()).hexdigest()
        asked_key = IdempotencyKeys(key).asked
        args = ("SET", asked_key, event, "NX", "GET", "PX", REMEMBERED)
        before = await self._redis.command(*args, repeatable=True)
        if before is not None and before != event.encode():
            raise Problem(409, "IDEMPOTENCY_CONFLICT", "this idempotency key was used for another request")

    async def _room_of(self, token: str) -> Room:
        return await self._rooms.get(Token.parse(token).room)

    async def _status(self, token: str) -> QueueStatus:
        room = await self._room_of(token)
        status = await room.status(token)
        if not status.ticket.live:
            raise TicketOver(status.state)
        prequeue = status.state == "waiting" and status.phase == "gathering"
        starts = None
        if prequeue:
            opens = (await self._rooms.settings(room.name)).opens_ms
            now = status.ticket.joined_ms + status.waited_ms
            starts = None if opens is None else max(0, opens - now)
        return _shown_status(status, "prequeue" if prequeue else _shown(status.state), starts)

    def _entered(self, session: Session) -> Entered:
        token = self._options.tokens.issue(
            event=session.room,
            user=session.user,
            session=session.id,
            issued=session.entered_ms // 1000,
            expires=session.expires_ms // 1000,
        )
        return Entered("granted", token, max(0, session.ttl_ms // 1000), session.id, session.expires_ms)


def _shown(state: str) -> Shown:
    return "ready" if state == "ready" else "entered" if state == "inside" else "waiting"


def _shown_status(status: Status, shown: Shown, starts: int | None) -> QueueStatus:
    waiting = status.state == "waiting"
    return QueueStatus(
        status=shown,
        position=None if shown == "prequeue" else status.position if waiting else 0,
        position_exact=status.exact,
        eta_sec=None if status.eta_ms is None else round(status.eta_ms / 1000),
        eta_known=status.eta_known,
        waiting_time=max(0, status.waited_ms) // 1000,
        ready_for_entry=not waiting,
        next_poll_ms=status.next_poll_ms,
        ticket=status.ticket.token.session,
        total_waiting=status.waiting,
        paused=status.paused,
        starts_in_ms=starts,
    )


def _gist(said: QueueStatus) -> tuple[object, ...]:
    """What somebody who listens would want to hear of."""
    return said.status, said.position, said.eta_sec, said.paused


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _closing(request: Request) -> bool:
    gate = getattr(request.app.state, "gate", None)
    return gate is not None and bool(gate.closing)


JOIN = operation(
    *("join", "Take a place in line; asked again, the same place", Joined, 403, 404, 409, 429),
    status=202,
    body=JoinRequest,
    parameters=[KEY],
)
STATUS = operation(
    "status", "How far somebody is; asking keeps the place", QueueStatus, 404, parameters=[TOKEN]
)
HEARTBEAT = operation("heartbeat", "Keep a place", Heartbeat, 404, body=TicketRequest)
ENTER = operation(
    *("enter", "Go in, once it is one's turn; asked again, the same admission", Entered, 403, 404, 429),
    body=TicketRequest,
    parameters=[KEY],
)
RENEW = operation("renew", "Stay inside for longer", Entered, 403, 404, 429, body=TicketRequest)
REDEEM = operation(
    *("redeem", "Use an admission: it is good for one use", Redeemed, 401, 403, 404, 409, 429),
    body=RedeemRequest,
)
LEAVE = operation("leave", "Give a place up, whether it is known or not", Left, parameters=[TOKEN])
STREAM = operation(
    "stream", "How far somebody is, told when it changes", QueueStatus, 404, parameters=[TOKEN]
)
STREAM["responses"]["200"] = answer(
    "Server-sent events: `status` with a QueueStatus, and `gone` when the place is.",
    content={"text/event-stream": {"schema": {"type": "string"}}},
)
