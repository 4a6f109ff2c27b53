"""How the routes of the room are described, and what is common to their handling."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from toril.errors import InvalidValue
from toril.server.refusals import json_response
from toril.server.room.callers import Callers
from toril.server.room.options import RoomOptions
from toril.server.room.problems import Problem, answer_problem
from toril.server.room.rates import Rates
from toril.server.room.wire import LONGEST_TOKEN
from toril.server.routes import Endpoint, Handle, answer, parameter, ref

LONGEST_KEY = 128

KEY = parameter(
    "Idempotency-Key",
    "With the same key and the same request, the same answer comes back.",
    {"type": "string", "pattern": r"^[\x21-\x7e]+$", "minLength": 1, "maxLength": LONGEST_KEY},
    where="header",
)
TOKEN = {
    **parameter("token", "A waiting token.", {"type": "string", "minLength": 1, "maxLength": LONGEST_TOKEN}),
    "required": True,
}
EVENT_ID = {"type": "string", "maxLength": 128, "pattern": r"^[A-Za-z0-9_.\-]+(:[A-Za-z0-9_.\-]+)*$"}
EVENT = parameter("event_id", "The event.", EVENT_ID, where="path")

PROBLEMS = {
    400: "Something in the request is wrong; the message says what.",
    401: "The token, or the operator's secret, is missing or not good.",
    403: "Not now, or not for whoever asks.",
    404: "It is not known, or has ended.",
    409: "It does not go together with what was done before.",
    413: "The request is too large.",
    415: "The body must be JSON.",
    429: "Too many calls from one address: try again after `Retry-After`.",
    500: "Something is wrong in the server.",
    503: "Not now: try again after `Retry-After`.",
}
ALWAYS = (400, 500, 503)
BODY = (413, 415)
WAIT = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
BEARER: list[dict[str, list[str]]] = [{"bearer": []}]


def operation(
    name: str,
    summary: str,
    ok: type[Struct],
    *problems: int,
    status: int = 200,
    body: type[Struct] | None = None,
    parameters: Sequence[Mapping[str, Any]] = (),
    bearer: bool = False,
) -> dict[str, Any]:
    """A route, as OpenAPI describes it."""
    codes = sorted({*ALWAYS, *problems, *(BODY if body else ()), *((401,) if bearer else ())})
    made: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            str(status): answer((ok.__doc__ or "").split("\n")[0], ref(ok.__name__)),
            **{str(code): _problem(code) for code in codes},
        },
    }
    if body is not None:
        content = {"application/json": {"schema": ref(body.__name__)}}
        made["requestBody"] = {"required": True, "content": content}
    if bearer:
        made["security"] = BEARER
    return made


def _problem(code: int) -> dict[str, Any]:
    headers = {"headers": WAIT} if code in (403, 429, 503) else {}
    return answer(PROBLEMS[code], ref("RoomProblem"), **headers)


def endpoint(method: str, path: str, handle: Handle, described: Mapping[str, Any]) -> Endpoint:
    """A route whose errors are said as the room says them."""

    async def answered(request: Request) -> Response:
        try:
            return await handle(request)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it has an answer
            return answer_problem(request, problem)

    return Endpoint(method=method, path=path, handle=answered, operation=described)


def reply(value: Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that nobody keeps for later."""
    return json_response(value, status, {"Cache-Control": "no-store", **(headers or {})})


class Door:
    """Who may come in, and how often."""

    def __init__(self, options: RoomOptions, rates: Rates) -> None:
        self._options = options
        self._rates = rates
        self._callers = Callers(options.trusted)

    def caller(self, request: Request) -> str:
        """Where a request comes from."""
        return self._callers.of(request)

    async def limit(self, request: Request) -> None:
        """Raises where one address calls too often."""
        taken = await self._rates.take("room", self.caller(request), self._options.calls)
        if not taken.allowed:
            wait = taken.wait_ms / 1000
            raise Problem(429, "RATE_LIMITED", "too many calls from one address", retry_after=wait)

    def is_operator(self, request: Request) -> bool:
        """Whether a request brings the operator's secret."""
        given = bearer_of(request)
        wanted = self._options.admin
        return (
            wanted is not None
            and given is not None
            and secrets.compare_digest(given.encode(), wanted.encode())
        )

    def require_operator(self, request: Request) -> None:
        """Raises where it does not."""
        if not self.is_operator(request):
            headers = {"WWW-Authenticate": 'Bearer realm="toril"'}
            raise Problem(401, "UNAUTHORIZED", "this needs the operator's secret", headers=headers)


def bearer_of(request: Request) -> str | None:
    """What stands in ``Authorization: Bearer …``."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" and given.strip() else None


def key_of(request: Request) -> str | None:
    """The idempotency key of a request."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= LONGEST_KEY or not all("!" <= char <= "~" for char in key):
        rule = f"1 to {LONGEST_KEY} characters that can be printed, without spaces"
        raise Problem(400, "INVALID_IDEMPOTENCY_KEY", f"the Idempotency-Key must have {rule}")
    return key


def token_in(request: Request) -> str:
    """The waiting token in the address of a request."""
    token = request.query_params.get("token", "")
    if not token:
        raise Problem(400, "MISSING_TOKEN", "the parameter token is missing")
    if len(token) > LONGEST_TOKEN:
        raise InvalidValue("token", token, f"at most {LONGEST_TOKEN} characters")
    return token
