"""For the operator: making rooms, changing them, looking at them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from toril.connection import Connection
from toril.keyspace import NAME_RULES
from toril.room import LaneSettings, LaneStats, Room, Settings, room_names
from toril.room.seats import Seats
from toril.server.room.described import EVENT, Door, endpoint, operation, reply
from toril.server.room.options import PATIENCE
from toril.server.room.pages import PageView
from toril.server.room.problems import Problem
from toril.server.room.rooms import Rooms
from toril.server.room.wire import (
    Changed,
    LaneBody,
    LaneView,
    NewRoom,
    RevokeRequest,
    RoomBody,
    RoomChanges,
    RoomList,
    RoomView,
    SeatList,
    body_of,
)
from toril.server.routes import Endpoint

AT_ONCE = 20
"""Rooms that are asked at a time."""

MOST_LISTED = 1000

_TIMES = {"patience_sec": "patience", "enter_within_sec": "enter_within", "session_sec": "session"}


class Admin:
    """The routes under ``/api/v1/admin``."""

    def __init__(self, rooms: Rooms, redis: Connection, door: Door) -> None:
        self._rooms = rooms
        self._redis = redis
        self._door = door

    def endpoints(self) -> list[Endpoint]:
        """The routes: all of them for the operator alone."""
        rooms, room = "/api/v1/admin/rooms", "/api/v1/admin/rooms/{event_id}"
        return [
            self._route("GET", rooms, self.list, LIST),
            self._route("POST", rooms, self.create, CREATE),
            self._route("GET", room, self.show, SHOW),
            self._route("PATCH", room, self.configure, CONFIGURE),
            self._route("POST", f"{room}/pause", self.pause, PAUSE),
            self._route("POST", f"{room}/resume", self.resume, RESUME),
            self._route("POST", f"{room}/start", self.start, START),
            self._route("POST", f"{room}/reset", self.reset, RESET),
            self._route("POST", f"{room}/revoke", self.revoke, REVOKE),
            self._route("POST", f"{room}/seats", self.add_seats, ADD_SEATS),
            self._route("DELETE", f"{room}/seats", self.reset_seats, RESET_SEATS),
        ]

    def _route(
        self,
        method: str,
        path: str,
        handle: Callable[[Request], Awaitable[Response]],
        described: dict[str, Any],
    ) -> Endpoint:
        async def checked(request: Request) -> Response:
            self._door.require_operator(request)
            return await handle(request)

        return endpoint(method, path, checked, described)

    async def list(self, request: Request) -> Response:  # noqa: ARG002 - a route's handle takes it
        """All rooms."""
        names = (await room_names(self._redis))[:MOST_LISTED]
        seen: list[RoomView] = []
        for first in range(0, len(names), AT_ONCE):
            seen += await asyncio.gather(*(self._view(name) for name in names[first : first + AT_ONCE]))
        return reply(RoomList(seen))

    async def create(self, request: Request) -> Response:
        """Make a room."""
        asked = await body_of(request, NewRoom)
        gather = asked.prequeue is not None
        opens = asked.prequeue.opens_ms if asked.prequeue is not None else None
        settings = Settings(
            **{"patience": PATIENCE} | _changes(asked),
            main=_lane(asked.main),
            gather=gather,
            opens_ms=opens,
            shards=asked.shards,
        )
        NAME_RULES["room"].check(asked.event_id)
        page = _page(PageView(), asked)
        await self._rooms.room(asked.event_id).create(settings)
        await self._rooms.show(asked.event_id, page)
        return reply(await self._view(asked.event_id), 201)

    async def show(self, request: Request) -> Response:
        """One room."""
        return reply(await self._view(_event(request)))

    async def configure(self, request: Request) -> Response:
        """Change a room."""
        asked = await body_of(request, RoomChanges)
        room = await self._room(request)
        changes = _changes(asked)
        if asked.main is not UNSET:
            changes["main"] = _lane(asked.main)
        if asked.opens_ms is not UNSET:
            if not (await room.settings()).gather:
                raise Problem(409, "NO_PREQUEUE", "only a room that gathers people first opens at a time")
            changes["opens_ms"] = asked.opens_ms
        await room.configure(**changes)
        before = await self._rooms.page(room.name)
        after = _page(before, asked)
        if after != before:
            await self._rooms.show(room.name, after)
        return reply(await self._view(room.name))

    async def pause(self, request: Request) -> Response:
        """Let nobody in."""
        room = await self._room(request)
        await room.pause()
        return reply(await self._view(room.name))

    async def resume(self, request: Request) -> Response:
        """Let people in again."""
        room = await self._room(request)
        await room.resume()
        return reply(await self._view(room.name))

    async def start(self, request: Request) -> Response:
        """Open a room that gathers people."""
        room = await self._room(request)
        await room.start()
        return reply(await self._view(room.name))

    async def reset(self, request: Request) -> Response:
        """Send everybody away, and begin anew."""
        return reply(Changed(await (await self._room(request)).reset()))

    async def revoke(self, request: Request) -> Response:
        """Send somebody away."""
        asked = await body_of(request, RevokeRequest)
        room = await self._room(request)
        if asked.who == "user":
            return reply(Changed(int(await room.revoke_user(asked.id) is not None)))
        return reply(Changed(int((await room.revoke(asked.id)).state == "revoked")))

    async def add_seats(self, request: Request) -> Response:
        """Add seats to an event."""
        asked = await body_of(request, SeatList)
        return reply(Changed(await Seats(self._redis, _event(request)).add(asked.seats)))

    async def reset_seats(self, request: Request) -> Response:
        """Remove the seats of an event, the sold ones too."""
        return reply(Changed(await Seats(self._redis, _event(request)).reset()))

    # ------------------------------------------------------------------ inside

    async def _room(self, request: Request) -> Room:
        return await self._rooms.get(_event(request))

    async def _view(self, event: str) -> RoomView:
        room = await self._rooms.get(event)
        stats, page = await room.stats(), await self._rooms.page(event)
        its = stats.settings
        return RoomView(
            event_id=event,
            mode=its.mode,
            phase=stats.phase,
            paused=stats.paused,
            refused=stats.refused,
            gather=its.gather,
            shards=its.shards,
            opens_ms=its.opens_ms,
            patience_sec=its.patience.total_seconds(),
            enter_within_sec=its.enter_within.total_seconds(),
            session_sec=its.session.total_seconds(),
            max_waiting=its.max_waiting,
            commitment=stats.commitment,
            seed=await room.seed(),
            title=page.title,
            target=page.target,
            lanes={
                name: _lane_view(own, lane) for name, lane in stats.lanes.items() if (own := its.lane(name))
            },
        )


def _event(request: Request) -> str:
    event: str = request.path_params["event_id"]
    return NAME_RULES["room"].check(event)


def _lane(body: LaneBody) -> LaneSettings:
    return LaneSettings(rate=body.rate, burst=body.burst, max_active=body.max_active)


def _changes(asked: RoomBody) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in ("mode", "max_waiting"):
        if (value := getattr(asked, name)) is not UNSET:
            changes[name] = value
    for name, own in _TIMES.items():
        if (value := getattr(asked, name)) is not UNSET:
            changes[own] = timedelta(seconds=value)
    if asked.vip is not UNSET:
        changes["vip"] = None if asked.vip is None else _lane(asked.vip)
    return changes


def _page(before: PageView, asked: RoomBody) -> PageView:
    changes = {name: value for name in ("title", "target") if (value := getattr(asked, name)) is not UNSET}
    return PageView.of(before, **changes)


def _lane_view(own: LaneSettings, its: LaneStats) -> LaneView:
    return LaneView(
        rate=own.rate,
        burst=own.most_at_once,
        max_active=own.max_active,
        joined=its.joined,
        waiting=its.waiting,
        active=its.active,
        admitted=its.admitted,
        ended=dict(its.ended),
        observed_rate=its.observed_rate,
    )


def _described(name: str, summary: str, ok: Any, *problems: int, **more: Any) -> dict[str, Any]:
    return operation(name, summary, ok, *problems, bearer=True, **more)


ONE: dict[str, Any] = {"parameters": [EVENT]}
LIST = _described("list_rooms", "All rooms, and how they stand", RoomList)
CREATE = _described("create_room", "Make a room", RoomView, 409, status=201, body=NewRoom)
SHOW = _described("show_room", "A room, and how it stands", RoomView, 404, **ONE)
CONFIGURE = _described("configure_room", "Change a room", RoomView, 404, 409, body=RoomChanges, **ONE)
PAUSE = _described("pause_room", "Let nobody in; places are kept", RoomView, 404, **ONE)
RESUME = _described("resume_room", "Let people in again", RoomView, 404, **ONE)
START = _described("start_room", "Open a room that gathers people first", RoomView, 404, **ONE)
RESET = _described("reset_room", "Send everybody in a room away, and begin anew", Changed, 404, **ONE)
REVOKE = _described("revoke", "Send somebody away", Changed, 404, body=RevokeRequest, **ONE)
ADD_SEATS = _described("add_seats", "Add seats; those there are stay", Changed, body=SeatList, **ONE)
RESET_SEATS = _described("reset_seats", "Remove all seats of an event, with holds and sales", Changed, **ONE)
