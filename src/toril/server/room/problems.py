"""What the room's API says when something is not done: ``{"error": {"code", "message", "trace_id"}}``."""

from __future__ import annotations

import logging
import math
import re
import secrets
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toril.connection import DurabilityNotReached
from toril.errors import InvalidValue
from toril.room import (
    AlreadyUsed,
    IdempotencyConflict,
    NoSuchLane,
    NoSuchRoom,
    NotInside,
    NotReady,
    RoomClosed,
    RoomExists,
    RoomFull,
    TicketOver,
    UnknownTicket,
)
from toril.room.seats import HoldConflict, HoldGone, SeatsTaken, TooManySeats, UnknownSeats
from toril.room.tokens import TokenRefused
from toril.server.refusals import AWAY, json_response

logger = logging.getLogger("toril.server")

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
CLOSED_WAIT = 30.0
"""Seconds after which it is worth while to try a closed room again."""


class Said(msgspec.Struct, frozen=True):
    """What is wrong."""

    code: str
    """For programs."""
    message: str
    """For people."""
    trace_id: str
    """That of the request's ``traceparent``, or one of this answer's own; it is in the server's log."""


class RoomProblem(msgspec.Struct, frozen=True):
    """An answer that says what is wrong."""

    error: Said


class Problem(Exception):
    """A request that is not carried out, and what to say of it."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))


_KNOWN: tuple[tuple[type[Exception], int, str], ...] = (
    (NoSuchRoom, 404, "EVENT_NOT_FOUND"),
    (NoSuchLane, 404, "LANE_NOT_FOUND"),
    (RoomExists, 409, "ROOM_EXISTS"),
    (RoomClosed, 403, "ROOM_CLOSED"),
    (RoomFull, 429, "ROOM_FULL"),
    (IdempotencyConflict, 409, "IDEMPOTENCY_CONFLICT"),
    (UnknownTicket, 404, "TOKEN_NOT_FOUND"),
    (TicketOver, 404, "TOKEN_EXPIRED"),
    (NotReady, 403, "NOT_READY"),
    (NotInside, 403, "NOT_INSIDE"),
    (AlreadyUsed, 409, "ALREADY_USED"),
    (TokenRefused, 401, "INVALID_TOKEN"),
    (UnknownSeats, 404, "SEAT_NOT_FOUND"),
    (SeatsTaken, 409, "SEAT_UNAVAILABLE"),
    (TooManySeats, 409, "TOO_MANY_SEATS"),
    (HoldGone, 409, "HOLD_GONE"),
    (HoldConflict, 409, "IDEMPOTENCY_CONFLICT"),
    (InvalidValue, 400, "INVALID_REQUEST"),
)
"""The first that fits: some are of several kinds."""


def problem_of(found: Exception) -> Problem:
    """What to say when something went wrong. What outsiders need not know goes to the log instead."""
    if isinstance(found, Problem):
        return found
    for kind, status, code in _KNOWN:
        if isinstance(found, kind):
            return Problem(status, code, _text(found), retry_after=_wait(found))
    if isinstance(found, (*AWAY, DurabilityNotReached)):  # all of it may be asked for again
        return Problem(503, "QUEUE_ERROR", "it cannot be done now: try again", retry_after=1)
    return Problem(500, "QUEUE_ERROR", "something is wrong here: the server's log says what")


def answer_problem(request: Request, found: Exception) -> Response:
    """The answer to a request that was not carried out."""
    problem, trace = problem_of(found), trace_of(request)
    if problem.code == "QUEUE_ERROR":
        logger.error("request %s of the waiting room failed", trace, exc_info=found)
    said = RoomProblem(Said(problem.code, str(problem), trace))
    return json_response(said, problem.status, {"Cache-Control": "no-store", **problem.headers})


def trace_of(request: Request) -> str:
    """The trace that a request belongs to; a new one where it names none."""
    found = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    return found[1] if found else secrets.token_hex(16)


def _text(found: Exception) -> str:
    """Without the code that a script's error begins with."""
    text = str(found)
    code = getattr(found, "code", "")
    return text.removeprefix(f"{code} ") if isinstance(code, str) and code else text


def _wait(found: Exception) -> float | None:
    if isinstance(found, RoomFull):
        return found.retry_after
    if isinstance(found, RoomClosed):
        return CLOSED_WAIT
    if isinstance(found, NotReady):
        return found.status.next_poll_ms / 1000
    return None
