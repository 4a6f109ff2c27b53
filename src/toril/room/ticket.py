"""What people hold: a token that names a ticket, and what a room says of it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import msgspec

from toril.errors import InvalidValue
from toril.keyspace import NAME_RULES
from toril.room.errors import UnknownTicket

Lane = Literal["main", "vip"]
"""Each lane has a line and a budget of its own."""

Mode = Literal["fifo", "random", "passthrough", "reject"]

Phase = Literal["gathering", "shuffling", "open"]

State = Literal["waiting", "ready", "inside", "left", "abandoned", "lapsed", "expired", "revoked"]
"""``ready``: let in, has not entered yet. ``lapsed``: did not enter in time."""

LIVE: frozenset[State] = frozenset({"waiting", "ready", "inside"})
"""The states of tickets that have not ended."""

LONGEST_ID = 256
"""Characters of a user's id, and of an idempotency key."""

_REST = re.compile(r"(\d{1,2})\.([mv])([1-9]\d{0,9})\.([A-Za-z0-9_-]{22})")
_LANES: dict[str, Lane] = {"m": "main", "v": "vip"}


class Token(msgspec.Struct, frozen=True):
    """What a waiter shows: which ticket of which room, and a secret that makes it theirs.

    Written ``<room>.<shard>.<lane and ticket>.<secret>``: ``evt_2025_1001.0.m17.Zk3…``.
    """

    room: str
    shard: int
    lane: Lane
    ticket: int
    secret: str

    def __str__(self) -> str:
        return f"{self.session}.{self.secret}"

    @property
    def session(self) -> str:
        """The same without the secret: an id that others may know."""
        return f"{self.room}.{self.shard}.{self.lane[0]}{self.ticket}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """From its text; :class:`UnknownTicket` for anything else."""
        parts = text.rsplit(".", 3) if isinstance(text, str) else []
        found = _REST.fullmatch(".".join(parts[1:])) if len(parts) == 4 else None
        if found is None or not NAME_RULES["room"].allowed.fullmatch(parts[0]):
            raise UnknownTicket("this is not a token of a waiting room")
        return cls(parts[0], int(found[1]), _LANES[found[2]], int(found[3]), found[4])


def parse_session(text: str) -> tuple[str, int, Lane, int]:
    """Room, shard, lane and ticket of a session's id."""
    token = Token.parse(f"{text}.{'-' * 22}")
    return token.room, token.shard, token.lane, token.ticket


def new_secret() -> str:
    """A secret for a new ticket: 128 bits."""
    return secrets.token_urlsafe(16)


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket as it is now. Times are milliseconds since 1970, by the server's clock; 0: not yet."""

    token: Token
    state: State
    place: int
    """Its number in the order of admission; 0 where that is not drawn yet."""
    user: str
    joined_ms: int
    let_in_ms: int
    ends_ms: int
    """Until when it must be entered, or until when the session lasts; when it ended, where it has."""
    entered_ms: int
    used_by: str
    now_ms: int
    """When this was so."""
    repeated: bool = False
    """Whether this ticket was given earlier, and has now been asked for again."""
    due: tuple[str, ...] = ()
    """In a room of several shards: idempotency keys of which it must be said again that they are taken."""

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.state in LIVE

    @classmethod
    def read(cls, room: str, shard: int, said: Sequence[Any], *, repeated: bool = False) -> Self:
        """From what a script says: texts, and numbers as such or as texts."""
        lane, number, state, secret, user, place, joined, let_in, ends, entered, used, now, *due = said
        return cls(
            token=Token(room, shard, "vip" if lane == b"vip" else "main", int(number), secret.decode()),
            state=_STATES[state],
            place=int(place),
            user=user.decode(),
            joined_ms=int(joined),
            let_in_ms=int(let_in),
            ends_ms=int(ends),
            entered_ms=int(entered),
            used_by=used.decode(),
            now_ms=int(now),
            repeated=repeated,
            due=tuple(key.decode() for key in due[0]) if due else (),
        )


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody who waits is told."""

    ticket: Ticket
    position: int | None
    """How many are let in up to this one: 1 is next. Never grows. None where there is no order (yet)."""
    exact: bool
    """Whether the position is exact; it may be too high by fewer than 1024 elsewhere, never too low."""
    waiting: int
    """How many wait in this lane, about."""
    eta_ms: int | None
    """How long it will take, about; None where nothing can be said."""
    eta_known: bool
    """Whether that rests on how fast people were let in lately, and not on the settings alone."""
    waited_ms: int
    next_poll_ms: int
    """When to ask again."""
    mode: Mode
    phase: Phase
    paused: bool

    @property
    def state(self) -> State:
        """The ticket's."""
        return self.ticket.state

    @property
    def ready(self) -> bool:
        """Whether it may enter now."""
        return self.ticket.state == "ready"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who has entered. It is the same session, however often one asks to enter."""

    id: str
    """Names the admission; no secret. Admission tokens carry it."""
    room: str
    user: str
    lane: Lane
    entered_ms: int
    expires_ms: int
    ttl_ms: int
    """What is left of it."""
    used_by: str


def check_lane(lane: str) -> Lane:
    """A lane's name."""
    if lane not in get_args(Lane):
        raise InvalidValue("lane", lane, " or ".join(get_args(Lane)))
    return "vip" if lane == "vip" else "main"


def check_id(what: str, value: str | None) -> str:
    """A user's id or an idempotency key; empty where there is none."""
    if value is None:
        return ""
    if not isinstance(value, str) or not value or len(value) > LONGEST_ID:
        raise InvalidValue(what, value, f"a text of 1 to {LONGEST_ID} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(what, value, "it must be text that UTF-8 can encode") from None
    return value


_STATES: dict[bytes, State] = {state.encode(): state for state in get_args(State)}
