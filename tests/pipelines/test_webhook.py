"""The webhook: what it posts, what it takes for an answer, and how a receiver tells who has posted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from toril import InvalidValue
from toril.aggregate import Aggregate
from toril.events import AnyEvent, HandlerContext, HandlerError, NewEvent
from toril.pipelines.webhook import SIGNATURE, Webhook, is_signed

SECRET = "hush"
CONTEXT = HandlerContext(tenant="acme", pipeline="trace_aggregation", processor="webhook")
EVENT: AnyEvent = NewEvent(type="settled", data={"cost": 0, "big": 2**60}, occurred_at=7).recorded(
    Aggregate("acme", "trace", "t1"), version=3, recorded_at=9
)


class Receiver:
    """Another side, which answers as it is told."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        body = await reader.readexactly(int(headers["Content-Length"]))
        self.posts.append((headers, body))
        answer = self.answers.pop(0) if self.answers else "204 No Content"
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


async def test_an_event_is_posted_signed_and_with_a_key_against_repetition() -> None:
    async with receiving() as receiver, Webhook(receiver.url, secret=SECRET) as webhook:
        await webhook.handle(EVENT, CONTEXT)
        await webhook.handle(EVENT, CONTEXT)
        (headers, body), (again, same) = receiver.posts
        assert headers["Idempotency-Key"] == again["Idempotency-Key"] == f"{EVENT.id}:webhook"
        assert body == same
        assert msgspec.json.decode(body) == {
            "id": EVENT.id,
            "type": "settled",
            "aggregate_type": "trace",
            "aggregate_id": "t1",
            "version": 3,
            "occurred_at": 7,
            "data": {"cost": 0, "big": 2**60},
        }
        signed, now = headers[SIGNATURE], time.time()
        assert is_signed(SECRET.encode(), body, signed, now=now)
        assert not is_signed(b"other", body, signed, now=now)
        assert not is_signed(SECRET.encode(), body + b" ", signed, now=now)
        assert not is_signed(SECRET.encode(), body, signed, now=now + 301)
        for nonsense in ("nonsense", "t=²,v1=0", f"t={'9' * 5000}", f"t={int(now)},v1=ä", "t=,v1=", ""):
            assert not is_signed(SECRET.encode(), body, nonsense, now=now)


async def test_what_is_played_again_is_not_posted() -> None:
    async with receiving() as receiver, Webhook(receiver.url, secret=SECRET) as webhook:
        await webhook.handle(EVENT, replaying())
        assert not receiver.posts


def replaying() -> HandlerContext:
    return HandlerContext(tenant="acme", pipeline="trace_aggregation", processor="webhook", is_replay=True)


@pytest.mark.parametrize(
    ("answer", "retryable", "after"),
    [
        ("500 Broken", True, None),
        ("503 Away\r\nRetry-After: 7", True, 7.0),
        ("429 Slowly\r\nRetry-After: 2", True, 2.0),
        ("429 Slowly\r\nRetry-After: 99999999", True, 3600.0),
        ("429 Slowly\r\nRetry-After: \u00b2", True, None),
        ("429 Slowly\r\nRetry-After: Wed, 21 Oct 2026 07:28:00 GMT", True, None),
        ("400 No", False, None),
        ("410 Gone", False, None),
        ("302 Elsewhere\r\nLocation: http://127.0.0.1:1/", False, None),
    ],
)
async def test_an_answer_says_whether_to_try_again(answer: str, retryable: bool, after: float | None) -> None:
    async with receiving() as receiver, Webhook(receiver.url, secret=SECRET) as webhook:
        receiver.answers = [answer]
        with pytest.raises(HandlerError, match=f"answered {answer[:3]}") as caught:
            await webhook.handle(EVENT, CONTEXT)
        assert caught.value.retryable is retryable
        assert caught.value.retry_after == after


async def test_one_that_is_away_is_tried_again() -> None:
    async with receiving() as receiver:
        url = receiver.url
    async with Webhook(url, secret=SECRET) as webhook:
        with pytest.raises(HandlerError, match="could not be reached: ConnectError") as caught:
            await webhook.handle(EVENT, CONTEXT)
        assert caught.value.retryable


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InvalidValue, match="webhook url 'ftp://x'"):
        Webhook("ftp://x", secret=SECRET)
    with pytest.raises(InvalidValue, match="webhook secret"):
        Webhook("http://127.0.0.1/", secret="")
