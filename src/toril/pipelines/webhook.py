"""A webhook: events are posted to a URL, signed, and so that the other side can tell a repetition.

The example of a handler with an effect outside. What it sends::

    POST <url>
    Content-Type: application/json
    Idempotency-Key: <event id>:<handler>
    Toril-Signature: t=<seconds since 1970>,v1=<hex HMAC-SHA256 of "<t>.<body>" under the secret>

    {"id": …, "type": …, "aggregate_type": …, "aggregate_id": …, "version": …, "occurred_at": …, "data": …}
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from toril.errors import InvalidValue
from toril.events import AnyEvent, EventHandler, HandlerContext, HandlerError

SIGNATURE = "Toril-Signature"
RETRYABLE = frozenset({408, 425, 429})
"""Answers below 500 after which it is worth trying again."""
LONGEST_WAIT = 3600.0
"""Seconds that the other side can ask for before the next attempt."""

_SECONDS = re.compile(r"[0-9]{1,12}")


class Webhook(EventHandler[Any]):
    """Posts events to a URL. Done is what the other side has answered with 2xx.

    5xx, 408, 425, 429 and a server that is away are tried again, no sooner than ``Retry-After`` says; any
    other answer is final, and the event waits for a person.
    """

    def __init__(self, url: str, *, secret: str, timeout: float = 10.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidValue("webhook url", url, "it must begin with http:// or https://")
        if not secret:
            raise InvalidValue("webhook secret", "", "it must not be empty")
        self._url = url
        self._secret = secret.encode()
        self._client = httpx.AsyncClient(timeout=timeout, follow_redirects=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def handle(self, event: AnyEvent, context: HandlerContext) -> None:
        if context.is_replay:
            return
        body = body_of(event)
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": context.idempotency_key(event),
            SIGNATURE: signature(self._secret, body, int(time.time())),
        }
        try:
            answer = await self._client.post(self._url, content=body, headers=headers)
        except httpx.TransportError as problem:
            raise HandlerError(f"the webhook could not be reached: {type(problem).__name__}") from problem
        if answer.is_success:
            return
        retryable = answer.status_code >= 500 or answer.status_code in RETRYABLE
        raise HandlerError(
            f"the webhook answered {answer.status_code}",
            retryable=retryable,
            retry_after=_seconds(answer.headers.get("Retry-After")) if retryable else None,
        )


def body_of(event: AnyEvent) -> bytes:
    """What is posted of an event. The tenant is not part of it: it is the receiver's own."""
    return msgspec.json.encode(
        {
            "id": event.id,
            "type": event.type,
            "aggregate_type": event.aggregate_type,
            "aggregate_id": event.aggregate_id,
            "version": event.version,
            "occurred_at": event.occurred_at,
            "data": event.data,
        }
    )


def signature(secret: bytes, body: bytes, at: int) -> str:
    """What the receiver checks, so that nobody else can post, and nothing can be posted again later."""
    made = hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={made}"


def is_signed(secret: bytes, body: bytes, signed: str, *, now: float, tolerance: float = 300.0) -> bool:
    """Whether a post is from who knows the secret, and not older than ``tolerance`` seconds."""
    parts = dict(part.split("=", 1) for part in signed.split(",") if "=" in part)
    at = parts.get("t", "")
    if not _SECONDS.fullmatch(at) or abs(now - int(at)) > tolerance:
        return False
    return hmac.compare_digest(signature(secret, body, int(at)).encode(), signed.encode(errors="replace"))


def _seconds(text: str | None) -> float | None:
    """``Retry-After`` in seconds; as a date it is left to the usual waiting times."""
    return min(float(text), LONGEST_WAIT) if text is not None and _SECONDS.fullmatch(text) else None
