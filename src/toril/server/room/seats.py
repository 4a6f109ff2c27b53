"""Seats, for those who were let in."""

from __future__ import annotations

import hashlib
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from toril.connection import Connection
from toril.errors import InvalidValue
from toril.room.seats import Seats
from toril.server.room.described import (
    EVENT_ID,
    KEY,
    Door,
    bearer_of,
    endpoint,
    key_of,
    operation,
    reply,
)
from toril.server.room.options import RoomOptions
from toril.server.room.problems import Problem
from toril.server.room.rooms import Rooms
from toril.server.room.wire import (
    Held,
    HoldAction,
    HoldRequest,
    SeatsDone,
    SeatTotals,
    SeatView,
    body_of,
)
from toril.server.routes import Endpoint, parameter

MOST_SHOWN = 500
BY = "seats"
"""What the admission of whoever acts on seats is used by."""


class SeatRoutes:
    """The routes under ``/api/v1/seats``.

    Who holds seats must have been let in: the admission is used by the first hold, so that it is good for
    nothing else, and it must still last.
    """

    def __init__(self, rooms: Rooms, redis: Connection, options: RoomOptions, door: Door) -> None:
        self._rooms = rooms
        self._redis = redis
        self._options = options
        self._door = door

    def endpoints(self) -> list[Endpoint]:
        """The routes."""
        base = "/api/v1/seats"
        return [
            endpoint("GET", base, self.show, SHOW),
            endpoint("POST", f"{base}/hold", self.hold, HOLD),
            endpoint("POST", f"{base}/confirm", self.confirm, CONFIRM),
            endpoint("POST", f"{base}/release", self.release, RELEASE),
        ]

    def seats(self, event: str) -> Seats:
        """The seats of an event."""
        return Seats(
            self._redis,
            event,
            hold_for=self._options.hold_for,
            per_owner=self._options.seats_per_owner,
            durability=self._options.durability,
        )

    async def show(self, request: Request) -> Response:
        """How many there are, and how some of them stand."""
        event = request.query_params.get("event_id", "")
        if not event:
            raise Problem(400, "MISSING_EVENT_ID", "the parameter event_id is missing")
        names = request.query_params.getlist("seat")
        if len(names) > MOST_SHOWN:
            raise InvalidValue("seat", f"({len(names)} of them)", f"at most {MOST_SHOWN}")
        seats = self.seats(event)
        found = await seats.look(names)
        counts = await seats.counts()
        totals = SeatTotals(counts.total, counts.available, counts.held, counts.sold)
        return reply(SeatView(event, totals, found))

    async def hold(self, request: Request) -> Response:
        """Hold seats, all or none."""
        key = key_of(request)
        asked = await body_of(request, HoldRequest)
        owner = await self._owner(request, asked.event_id)
        # A key is its owner's: nobody else's request can be in its way.
        own = None if key is None else hashlib.sha256(f"{owner} {key}".encode()).hexdigest()
        hold = await self.seats(asked.event_id).hold(owner, asked.seats, key=own)
        state: Literal["held", "sold"] = "sold" if hold.state == "sold" else "held"
        return reply(Held(hold.epoch, list(hold.seats), state, hold.ends), 201)

    async def confirm(self, request: Request) -> Response:
        """Buy what is held."""
        asked = await body_of(request, HoldAction)
        owner = await self._owner(request, asked.event_id)
        sold = await self.seats(asked.event_id).confirm(owner, asked.hold_id)
        return reply(SeatsDone("sold", list(sold)))

    async def release(self, request: Request) -> Response:
        """Give back what is held."""
        asked = await body_of(request, HoldAction)
        owner = await self._owner(request, asked.event_id)
        back = await self.seats(asked.event_id).release(owner, asked.hold_id)
        return reply(SeatsDone("released", list(back)))

    async def _owner(self, request: Request, event: str) -> str:
        """The session of whoever asks: let in, not sent away, and its time not over."""
        await self._door.limit(request)
        token = bearer_of(request)
        if token is None:
            headers = {"WWW-Authenticate": 'Bearer realm="toril"'}
            rule = "seats are for those who were let in: send the reservation token as a bearer"
            raise Problem(401, "ADMISSION_REQUIRED", rule, headers=headers)
        admitted = self._options.tokens.verify(token, event=event)
        await (await self._rooms.get(event)).redeem(admitted.session, BY, entered=admitted.issued)
        return admitted.session


SHOW = operation(
    *("show_seats", "How many seats there are, and how some of them stand", SeatView),
    parameters=[
        {
            **parameter("event_id", "The event.", EVENT_ID),
            "required": True,
        },
        parameter(
            "seat",
            "A seat; several times for several.",
            {
                "type": "array",
                "maxItems": MOST_SHOWN,
                "items": {"type": "string", "pattern": r"^[A-Za-z0-9_.:@+\-]{1,128}$"},
            },
        ),
    ],
)
HOLD = operation(
    *("hold_seats", "Hold seats, all or none", Held, 403, 404, 409, 429),
    status=201,
    body=HoldRequest,
    parameters=[KEY],
    bearer=True,
)
CONFIRM = operation(
    *("confirm_seats", "Buy the seats that are held; asked again, the same", SeatsDone, 403, 404, 409, 429),
    body=HoldAction,
    bearer=True,
)
RELEASE = operation(
    *("release_seats", "Give back the seats that are held", SeatsDone, 403, 404, 409, 429),
    body=HoldAction,
    bearer=True,
)
