"""What is said over HTTP: requests and answers, each a type. The OpenAPI schemas are made from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import ClientDisconnect, Request

from toril.keyspace import NAME_RULES
from toril.room import Lane, Mode
from toril.room.seats import MOST_AT_ONCE
from toril.room.ticket import LONGEST_ID
from toril.server.room.pages import LONGEST_TARGET, LONGEST_TITLE, TARGET
from toril.server.room.problems import Problem

LONGEST_BODY = 256 * 1024
"""Bytes of a request. Seats are added by the thousand; everything else is small."""

MOST_ADDED = 5000
LONGEST_TOKEN = 4096

_PART = r"[A-Za-z0-9_.\-]+"
EventId = Annotated[
    str, Meta(min_length=1, max_length=NAME_RULES["room"].longest, pattern=rf"^{_PART}(:{_PART})*$")
]
Token = Annotated[str, Meta(min_length=1, max_length=LONGEST_TOKEN)]
SeatName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:@+\-]{1,128}$")]
HoldId = Annotated[int, Meta(ge=1, lt=2**53)]
By = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
DaySeconds = Annotated[float, Meta(ge=1, le=86400)]
WeekSeconds = Annotated[float, Meta(ge=1, le=7 * 86400)]
MsTime = Annotated[int, Meta(ge=1, le=2**53)]
RateValue = Annotated[float, Meta(ge=0.001, le=1_000_000)]

# ---------------------------------------------------------------------------- requests


class JoinRequest(Struct, frozen=True):
    """To wait for an event."""

    event_id: EventId
    user_id: Annotated[str, Meta(max_length=LONGEST_ID)] | None = None
    """Who it is: the same user has one place. Nobody, `""` and `anonymous` are told apart by key alone."""
    lane: Lane = "main"
    """`vip` only with the operator's secret."""


class TicketRequest(Struct, frozen=True):
    """About somebody who waits."""

    waiting_token: Token


class RedeemRequest(Struct, frozen=True):
    """To use an admission."""

    reservation_token: Token
    by: By
    """Names the use, an order's number, say: asked again by the same, it is granted again."""


class HoldRequest(Struct, frozen=True):
    """To hold seats, all or none."""

    event_id: EventId
    seats: Annotated[list[SeatName], Meta(min_length=1, max_length=MOST_AT_ONCE)]


class HoldAction(Struct, frozen=True):
    """About seats that are held."""

    event_id: EventId
    hold_id: HoldId


class LaneBody(Struct, frozen=True):
    """How fast a lane lets people in, and how many of them can be inside at a time."""

    rate: RateValue
    """Admissions per second, to a thousandth."""
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Admissions that may come at once after a quiet time; null: those of one second."""
    max_active: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    """How many may be inside at a time; null: any number."""


class Prequeue(Struct, frozen=True):
    """People are gathered first; when it opens, their order is drawn by lot."""

    opens_ms: MsTime | None = None
    """When it opens, in milliseconds since 1970; null: when it is told to."""


class RoomBody(Struct, frozen=True):
    """What can be said of a room at any time; what is not named stays, or is as usual."""

    vip: LaneBody | UnsetType | None = UNSET
    """A lane with a budget of its own, for those who are sent past the line; null: there is none."""
    mode: Mode | UnsetType = UNSET
    patience_sec: DaySeconds | UnsetType = UNSET
    """After so long without a sign of life, somebody who waits is taken for gone."""
    enter_within_sec: DaySeconds | UnsetType = UNSET
    session_sec: WeekSeconds | UnsetType = UNSET
    max_waiting: Count | UnsetType | None = UNSET
    title: Annotated[str, Meta(max_length=LONGEST_TITLE)] | UnsetType = UNSET
    """What the waiting page calls it."""
    target: Annotated[str, Meta(max_length=LONGEST_TARGET, pattern=TARGET)] | UnsetType = UNSET
    """Where the waiting page goes on to: an address, or a path of this server; empty: nowhere."""


class RoomChanges(RoomBody, frozen=True, kw_only=True):
    """What is to be changed."""

    main: LaneBody | UnsetType = UNSET
    opens_ms: MsTime | UnsetType | None = UNSET
    """Only of a room that gathers people first."""


class NewRoom(RoomBody, frozen=True, kw_only=True):
    """A room to be made."""

    event_id: EventId
    main: LaneBody
    prequeue: Prequeue | None = None
    shards: Annotated[int, Meta(ge=1, le=64)] = 1
    """Over how many slots of a cluster it is spread. Not to be changed later."""


class SeatList(Struct, frozen=True):
    """Seats to be added."""

    seats: Annotated[list[SeatName], Meta(min_length=1, max_length=MOST_ADDED)]


class RevokeRequest(Struct, frozen=True):
    """Whom to send away."""

    who: Literal["session", "user"]
    id: Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]


# ---------------------------------------------------------------------------- answers


Shown = Literal["waiting", "prequeue", "ready", "entered"]


class Joined(Struct, frozen=True):
    """A place in line."""

    waiting_token: str
    """Keep it: it is the place."""
    position_hint: int
    """0: ask for the status."""
    status: Shown
    ticket: str
    """Names the place; no secret."""
    repeated: bool
    """Whether it was given before."""
    next_poll_ms: int


class QueueStatus(Struct, frozen=True):
    """How far somebody is."""

    status: Shown
    position: int | None
    """1 is next. It never grows. null where there is no order: before the start, or drawn by lot."""
    position_exact: bool
    eta_sec: int | None
    """How long it will take, about; null where nothing can be said."""
    eta_known: bool
    """Whether that rests on how fast people were let in lately."""
    waiting_time: int
    """Seconds waited so far."""
    ready_for_entry: bool
    next_poll_ms: int
    """When to ask again: farther from the front, less often. Asking keeps the place."""
    ticket: str
    total_waiting: int
    paused: bool
    starts_in_ms: int | None
    """Before the start: in how long it is; null where that is not fixed."""


class Heartbeat(Struct, frozen=True):
    """The place is kept."""

    status: Shown
    ready_for_entry: bool
    next_poll_ms: int


class Entered(Struct, frozen=True):
    """Somebody is in."""

    admission: Literal["granted"]
    reservation_token: str
    """A signed JWT: the proof, which `/.well-known/jwks.json` has the key for."""
    ttl_sec: int
    session_id: str
    expires_at_ms: int


class Left(Struct, frozen=True):
    """The place is given up."""

    status: Literal["left"]


class Redeemed(Struct, frozen=True):
    """The admission is used, by this use and no other."""

    status: Literal["granted"]
    event_id: str
    user_id: str
    session_id: str
    used_by: str


class SeatTotals(Struct, frozen=True):
    """How many seats there are: `available + held + sold = total`."""

    total: int
    available: int
    held: int
    sold: int


class SeatView(Struct, frozen=True):
    """The seats of an event."""

    event_id: str
    counts: SeatTotals
    seats: dict[str, Literal["available", "held", "sold"] | None]
    """Those that were asked for; null where there is no such seat."""


class Held(Struct, frozen=True):
    """Seats that are held."""

    hold_id: int
    """The hold's epoch: larger than that of any hold before."""
    seats: list[str]
    state: Literal["held", "sold"]
    expires_at_ms: int


class SeatsDone(Struct, frozen=True):
    """What became of seats."""

    status: Literal["sold", "released"]
    seats: list[str]


class LaneView(Struct, frozen=True):
    """A lane, and how it stands."""

    rate: float
    burst: int
    max_active: int | None
    joined: int
    waiting: int
    active: int
    admitted: int
    ended: dict[str, int]
    observed_rate: float


class RoomView(Struct, frozen=True):
    """A room, and how it stands."""

    event_id: str
    mode: Mode
    phase: Literal["gathering", "shuffling", "open"]
    paused: bool
    refused: int
    gather: bool
    shards: int
    opens_ms: int | None
    patience_sec: float
    enter_within_sec: float
    session_sec: float
    max_waiting: int | None
    commitment: str
    """SHA-256 of the seed that the order is drawn with."""
    seed: str | None
    """The seed, once it has opened."""
    title: str
    target: str
    lanes: dict[str, LaneView]


class RoomList(Struct, frozen=True):
    """All rooms."""

    rooms: list[RoomView]


class Changed(Struct, frozen=True):
    """How many were concerned."""

    count: int


class Keys(Struct, frozen=True):
    """A JSON Web Key Set."""

    keys: list[dict[str, str]]


TYPES = (
    *(JoinRequest, TicketRequest, RedeemRequest, HoldRequest, HoldAction, RoomChanges, NewRoom, SeatList),
    *(RevokeRequest, Joined, QueueStatus, Heartbeat, Entered, Left, Redeemed, SeatView, Held, SeatsDone),
    *(RoomView, RoomList, Changed, Keys),
)

T = TypeVar("T", bound=Struct)


def schemas(*more: type[Struct]) -> dict[str, Any]:
    """All types as OpenAPI has them."""
    _, made = msgspec.json.schema_components((*TYPES, *more), ref_template="#/components/schemas/{name}")
    return made


def _number(text: str) -> float:
    """In JSON, 5.0 is as whole a number as 5."""
    number = float(text)
    return int(number) if number.is_integer() else number


_DECODER = msgspec.json.Decoder(float_hook=_number)


async def body_of(request: Request, kind: type[T]) -> T:
    """A request's body; a :class:`Problem` says what is wrong with it."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Problem(415, "UNSUPPORTED_MEDIA_TYPE", "the body must be JSON, with its Content-Type")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_BODY:
                raise Problem(413, "TOO_LARGE", f"the body has more than {LONGEST_BODY:,} bytes")
    except ClientDisconnect:
        raise Problem(400, "INVALID_REQUEST", "the body was not sent to its end") from None
    try:
        return msgspec.convert(_DECODER.decode(body), kind)
    except msgspec.ValidationError as problem:
        text = str(problem)
        lacks = "required field `event_id`" in text or text.endswith("- at `$.event_id`")
        raise Problem(400, "MISSING_EVENT_ID" if lacks else "INVALID_REQUEST", text) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Problem(400, "INVALID_REQUEST", f"the body is not JSON: {problem}") from None
