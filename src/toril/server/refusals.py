"""Why a request is not carried out, as HTTP says it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from toril.connection.errors import (
    ConnectionFailed,
    DurabilityNotReached,
    DurabilityRefused,
    OutcomeUnknown,
    OutOfMemory,
    ScriptBusy,
)
from toril.errors import InvalidValue, TorilError
from toril.events.errors import StoreError

logger = logging.getLogger("toril.server")

AWAY = (ConnectionFailed, DurabilityRefused, OutcomeUnknown, OutOfMemory, ScriptBusy)
"""What may pass when a server is away, full, or set up otherwise than it was."""

LONGEST_MESSAGE = 2000
LOG_EVERY = 1.0
"""Seconds between two lines in the log about what is away: each request would write one."""


class Refused(TorilError):
    """A request that is not carried out, and the status to answer with."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message[:LONGEST_MESSAGE])
        self.status = status
        self.field = field
        """The parameter that is wrong, where one is."""
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))


class _Seldom:
    """Lets one of many lines through."""

    def __init__(self) -> None:
        self._next = 0.0

    def now(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + LOG_EVERY
        return True


_seldom = _Seldom()


def refusal_of(problem: Exception) -> Refused:
    """What to answer when something went wrong. What outsiders need not know goes to the log instead."""
    if isinstance(problem, Refused):
        return problem
    if isinstance(problem, DurabilityNotReached):
        _log(problem)
        return Refused(
            503,
            "it is recorded, but not yet as safely as it must be: send it again, it is kept once",
            retry_after=1,
        )
    if isinstance(problem, StoreError):
        # Also where trying again cannot help: once a person has, what is sent again is not lost.
        _log(problem)
        wait = 1.0 if problem.retry_after is None else problem.retry_after
        return Refused(503, "it cannot be done now: send it again", retry_after=wait)
    if isinstance(problem, AWAY):
        _log(problem)
        return Refused(503, "the server's store cannot take it now: send it again", retry_after=1)
    if isinstance(problem, InvalidValue):
        return Refused(400, str(problem), field=problem.field)
    logger.error("a request failed", exc_info=problem)
    return Refused(500, "something is wrong here: the server's log says what")


def _log(problem: Exception) -> None:
    if _seldom.now():
        logger.warning("requests are answered with 503: %s: %s", type(problem).__name__, problem)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer as JSON; whole numbers of any size are written in full."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def json_refusal(refused: Refused) -> Response:
    """A refusal as JSON."""
    body: dict[str, Any] = {"error": str(refused)}
    if refused.field is not None:
        body["field"] = refused.field
    return json_response(body, refused.status, refused.headers)
