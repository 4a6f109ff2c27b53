"""Joining, waiting, entering, leaving: the wire, call by call."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from typing import Any

import httpx
import pytest

from tests.server.room.parts import ADMIN, AS_ADMIN, TOKENS, RoomServed, code, room_served
from tests.waiting import until
from toril.connection import Durability
from toril.room import LaneSettings, Room
from toril.room.tokens import TokenVerifier
from toril.server.room import USUAL, Rate
from toril.testing import Cluster, Server


async def ready(served: RoomServed, token: str) -> dict[str, Any]:
    said: dict[str, Any] = {}

    async def is_so() -> bool:
        reply = await served.status(token)
        assert reply.status_code == 200, reply.text
        said.update(reply.json())
        return bool(said["ready_for_entry"])

    await until(is_so)
    return said


async def test_the_whole_way_in(served: RoomServed) -> None:
    await served.room(rate=100)
    joined = await served.join(key="k-1", user_id="ana")
    assert joined.status_code == 202
    said = joined.json()
    assert (said["position_hint"], said["repeated"]) == (0, False)
    token = said["waiting_token"]
    status = await ready(served, token)
    assert (status["status"], status["position"], status["eta_known"]) == ("ready", 0, True)
    entered = await served.enter(token)
    assert entered.status_code == 200
    first = entered.json()
    assert first["admission"] == "granted"
    assert 590 <= first["ttl_sec"] <= 600
    # A lost answer can be asked for again, and a page that is loaded anew finds itself inside.
    assert (await served.enter(token)).json()["reservation_token"] == first["reservation_token"]
    assert (await served.status(token)).json()["status"] == "entered"
    # Anyone can check it, with nothing but the public keys.
    jwks = (await served.http.get("/.well-known/jwks.json")).json()
    admitted = TokenVerifier(jwks).verify(first["reservation_token"], event="evt", user="ana")
    assert admitted.session == first["session_id"] == said["ticket"]
    renewed = await served.http.post("/api/v1/queue/renew", json={"waiting_token": token})
    assert renewed.json()["expires_at_ms"] >= first["expires_at_ms"]
    left = await served.http.delete("/api/v1/queue/leave", params={"token": token})
    assert (left.status_code, left.json()) == (200, {"status": "left"})
    assert code(gone := await served.status(token)) == "TOKEN_EXPIRED"
    assert gone.status_code == 404


async def test_waiting_keeps_the_place_and_says_when_to_ask_again(served: RoomServed) -> None:
    await served.room(rate=0.001, burst=1)
    tokens = [await served.token() for _ in range(4)]
    await ready(served, tokens[0])

    async def moved() -> bool:
        said = (await served.status(tokens[3])).json()
        return bool(said["position"] == 3 and said["position_exact"])

    await until(moved)
    said = (await served.status(tokens[3])).json()
    assert (said["status"], said["position_exact"], said["ready_for_entry"]) == ("waiting", True, False)
    assert said["eta_sec"] > 1000
    assert 1000 <= said["next_poll_ms"] <= 90_000
    beats = {
        (await served.http.post("/api/v1/queue/heartbeat", json={"waiting_token": tokens[3]})).json()[
            "next_poll_ms"
        ]
        for _ in range(5)
    }
    assert len(beats) > 1, "all at the same time would be a stampede"
    refused = await served.enter(tokens[3])
    assert (refused.status_code, code(refused)) == (403, "NOT_READY")
    assert int(refused.headers["Retry-After"]) >= 1


async def test_a_join_is_idempotent(served: RoomServed) -> None:
    await served.room()
    first = await served.join(key="k", user_id="ana")
    again = await served.join(key="k", user_id="ana")
    assert again.json()["waiting_token"] == first.json()["waiting_token"]
    assert again.json()["repeated"]
    # Another key, but the same user: one place.
    assert (await served.join(key="l", user_id="ana")).json()["ticket"] == first.json()["ticket"]
    assert (await served.join(user_id="ana")).json()["ticket"] == first.json()["ticket"]
    # The same key for something else.
    for body in ({"user_id": "ben"}, {}, {"event": "other", "user_id": "ana"}):
        reply = await served.join(key="k", **body)
        assert (reply.status_code, code(reply)) == (409, "IDEMPOTENCY_CONFLICT"), body
    # Who does not say who they are is told apart by the key alone, and without one not at all.
    nobody = [
        (await served.join(key=key, **body)).json()["ticket"]
        for key, body in (
            ("m", {"user_id": "anonymous"}),
            ("n", {"user_id": "anonymous"}),
            ("o", {}),
            ("p", {"user_id": ""}),
            ("q", {"user_id": None}),
            (None, {}),
            (None, {}),
            (None, {"user_id": "anonymous"}),
        )
    ]
    assert len(set(nobody)) == len(nobody)
    assert (await served.join(key="m", user_id="anonymous")).json()["ticket"] == nobody[0]


async def test_no_crossslot_ten_events_at_once(
    server: Server | Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As the guide to hash tags tries it: with and without a key, for events that nobody has heard of."""
    caplog.set_level(logging.WARNING)
    async with room_served(server.url, new_rooms=USUAL) as served:
        replies = await asyncio.gather(
            *(served.join(f"evt_{n}", str(uuid.uuid4()), user_id=f"user_{n}") for n in range(10)),
            *(served.join("evt_2025_1001", key, user_id="anonymous") for key in (None, str(uuid.uuid4()))),
        )
        assert {reply.status_code for reply in replies} == {202}
        for reply in replies:
            await ready(served, reply.json()["waiting_token"])
            assert (await served.enter(reply.json()["waiting_token"])).status_code == 200
        errors = [kind for count in served.redis.script_counts.values() for kind in count.errors]
    assert set(errors) <= {"NOSCRIPT"}
    assert "CROSSSLOT" not in caplog.text


@pytest.mark.parametrize(
    ("body", "headers", "status", "wanted"),
    [
        (b"{", {}, 400, "INVALID_REQUEST"),
        (b"[]", {}, 400, "INVALID_REQUEST"),
        (b"{}", {}, 400, "MISSING_EVENT_ID"),
        (b'{"event_id": ""}', {}, 400, "MISSING_EVENT_ID"),
        (b'{"event_id": "{evt}"}', {}, 400, "MISSING_EVENT_ID"),
        (b'{"event_id": "evt\\n"}', {}, 400, "INVALID_REQUEST"),
        (b'{"event_id": "nobody-knows"}', {}, 404, "EVENT_NOT_FOUND"),
        (b'{"event_id": "evt", "user_id": 7}', {}, 400, "INVALID_REQUEST"),
        (b'{"event_id": "evt", "user_id": "%s"}' % (b"x" * 300), {}, 400, "INVALID_REQUEST"),
        (b'{"event_id": "evt", "lane": "vip"}', {}, 403, "FORBIDDEN"),
        (b'{"event_id": "evt"}', {"Idempotency-Key": ""}, 400, "INVALID_IDEMPOTENCY_KEY"),
        (b'{"event_id": "evt"}', {"Idempotency-Key": "x" * 200}, 400, "INVALID_IDEMPOTENCY_KEY"),
        (b'{"event_id": "evt"}', {"Idempotency-Key": "a b"}, 400, "INVALID_IDEMPOTENCY_KEY"),
        (b'{"event_id": "evt"}', {"Content-Type": "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b" " * 300_000, {}, 413, "TOO_LARGE"),
    ],
)
async def test_bad_joins_are_refused(
    served: RoomServed, body: bytes, headers: dict[str, str], status: int, wanted: str
) -> None:
    await served.room()
    how = {"Content-Type": "application/json"} | headers
    reply = await served.http.post("/api/v1/queue/join", content=body, headers=how)
    assert (reply.status_code, code(reply)) == (status, wanted)


async def test_tokens_that_are_none(served: RoomServed) -> None:
    room = await served.room()
    token = await served.token()
    for bad in (
        "x",
        "evt.0.m1",
        "evt.0.m1." + "A" * 22,
        "nobody.0.m1." + "A" * 22,
        token[:-1] + "!",
        "{evt}.0.m1.x",
    ):
        for reply in (await served.status(bad), await served.enter(bad)):
            assert reply.status_code == 404, bad
            assert code(reply) in ("TOKEN_NOT_FOUND", "EVENT_NOT_FOUND")
        left = await served.http.delete("/api/v1/queue/leave", params={"token": bad})
        assert (left.status_code, left.json()) == (200, {"status": "left"})
    assert (await room.stats()).lanes["main"].waiting == 1
    for reply in (
        await served.http.get("/api/v1/queue/status"),
        await served.http.get("/api/v1/queue/stream"),
        await served.http.delete("/api/v1/queue/leave"),
    ):
        assert (reply.status_code, code(reply)) == (400, "MISSING_TOKEN")


async def test_a_room_that_is_closed_or_full_says_when_to_come_again(served: RoomServed) -> None:
    room = await served.room(max_waiting=1)
    await served.token()
    full = await served.join()
    assert (full.status_code, code(full), full.headers["Retry-After"]) == (429, "ROOM_FULL", "5")
    await room.configure(mode="reject")
    closed = await served.join()
    assert (closed.status_code, code(closed), closed.headers["Retry-After"]) == (403, "ROOM_CLOSED", "30")


async def test_a_join_that_is_not_as_safe_as_was_promised_is_not_answered_as_one(redis_url: str) -> None:
    """The server has no replica. The ticket is there, and who asks again with the same key may get it."""
    async with room_served(redis_url, durability=Durability("replicated", timeout=0.05)) as served:
        await served.room()
        for _ in range(2):
            reply = await served.join(key="k-1")
            assert (reply.status_code, code(reply)) == (503, "QUEUE_ERROR")
            assert int(reply.headers["retry-after"]) > 0
        assert (await Room(served.redis, "evt").stats()).lanes["main"].waiting == 1


async def test_who_calls_too_often_is_told_to_wait(server: Server | Cluster) -> None:
    limits = {"calls": Rate(rate=1, seconds=60, burst=3), "trusted": ["127.0.0.1"]}
    async with room_served(server.url, **limits) as served:
        await served.room()
        served.http.headers["X-Forwarded-For"] = "1.2.3.4"
        replies = [await served.join() for _ in range(4)]
        assert [reply.status_code for reply in replies] == [202, 202, 202, 429]
        assert code(replies[3]) == "RATE_LIMITED"
        assert 50 < int(replies[3].headers["Retry-After"]) <= 60
        # Asking how far one is costs nothing, and others are not in the way.
        token = replies[0].json()["waiting_token"]
        assert {(await served.status(token)).status_code for _ in range(10)} == {200}
        served.http.headers["X-Forwarded-For"] = "1.2.3.4, 4.3.2.1"
        assert (await served.join()).status_code == 202


async def test_an_admission_is_used_once(served: RoomServed) -> None:
    await served.room(rate=100)
    token = await served.token(user_id="ana")
    await ready(served, token)
    admission = (await served.enter(token)).json()["reservation_token"]

    async def redeem(admission: str, by: str) -> httpx.Response:
        body = {"reservation_token": admission, "by": by}
        return await served.http.post("/api/v1/queue/redeem", json=body)

    used = await redeem(admission, "order-1")
    assert used.json() == {
        "status": "granted",
        "event_id": "evt",
        "user_id": "ana",
        "session_id": "evt.0.m1",
        "used_by": "order-1",
    }
    assert (await redeem(admission, "order-1")).status_code == 200  # the answer was lost
    assert (again := await redeem(admission, "order-2")).status_code == 409
    assert code(again) == "ALREADY_USED"
    forged = TOKENS.issue(event="evt", user="ana", session="evt.0.m1", issued=1, expires=2)
    assert code(await redeem(forged, "order-3")) == "INVALID_TOKEN"
    assert code(await redeem("nonsense", "order-3")) == "INVALID_TOKEN"
    body = {"who": "session", "id": "evt.0.m1"}
    revoked = await served.http.post("/api/v1/admin/rooms/evt/revoke", json=body, headers=AS_ADMIN)
    assert revoked.json() == {"count": 1}
    assert code(await redeem(admission, "order-1")) == "TOKEN_EXPIRED"


async def test_the_operator_sends_somebody_past_the_line(served: RoomServed) -> None:
    await served.room(vip=LaneSettings(rate=100))
    await served.token()
    body = {"event_id": "evt", "user_id": "ana", "lane": "vip"}
    joined = await served.http.post("/api/v1/queue/join", json=body, headers=AS_ADMIN)
    assert joined.status_code == 202
    await ready(served, joined.json()["waiting_token"])


async def test_an_error_carries_the_trace_of_the_request(served: RoomServed) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    reply = await served.http.get("/api/v1/queue/status", params={"token": "x"}, headers=headers)
    assert reply.json()["error"]["trace_id"] == trace


async def test_before_the_start_all_wait_for_it(served: RoomServed) -> None:
    soon = 2**52
    await served.room(rate=100, gather=True, opens_ms=soon)
    token = await served.token()
    said = (await served.status(token)).json()
    assert (said["status"], said["position"]) == ("prequeue", None)
    assert said["starts_in_ms"] > 10**12
    started = await served.http.post("/api/v1/admin/rooms/evt/start", headers=AS_ADMIN)
    assert started.status_code == 200
    await ready(served, token)


async def test_who_listens_is_told(served: RoomServed) -> None:
    room = await served.room()
    token = await served.token()
    heard: list[tuple[str, dict[str, Any]]] = []

    async def listen() -> None:
        # The transport of tests hands an answer over when it has ended; that is when the place is gone.
        reply = await served.http.get("/api/v1/queue/stream", params={"token": token})
        assert reply.headers["content-type"].startswith("text/event-stream")
        for block in reply.text.split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "event" in lines:
                heard.append((lines["event"], json.loads(lines["data"])))

    listening = asyncio.create_task(listen())
    await room.configure(main=LaneSettings(rate=100))
    await ready(served, token)
    looks = served.redis.script_counts["room/touch"]
    now = looks.calls
    await until(lambda: looks.calls >= now + 2)  # nobody else looks any more
    await room.leave(token)
    await listening
    kinds = [kind for kind, _ in heard]
    assert kinds == ["status", "status", "gone"]
    assert [said.get("status") for _, said in heard] == ["waiting", "ready", None]
    assert heard[-1][1]["error"]["code"] == "TOKEN_EXPIRED"


async def test_nobody_but_the_operator_changes_rooms(served: RoomServed) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {ADMIN}"}):
        reply = await served.http.post(
            "/api/v1/admin/rooms", json={"event_id": "evt", "main": {"rate": 1}}, headers=headers
        )
        assert (reply.status_code, code(reply)) == (401, "UNAUTHORIZED")
        assert "Bearer" in reply.headers["WWW-Authenticate"]
