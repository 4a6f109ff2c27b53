"""The operator's routes, the seats, and what metrics say of it all."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.room.parts import AS_ADMIN, RoomServed, code, room_served
from tests.server.room.test_queue import ready
from tests.waiting import until
from toril import connect
from toril.room import LaneSettings, Room, Settings
from toril.room.seat_check import check_seats
from toril.testing import Cluster, Server


class Operator:
    """Whoever brings the secret."""

    def __init__(self, served: RoomServed) -> None:
        self._served = served

    async def __call__(self, method: str, path: str = "", body: Any = None) -> httpx.Response:
        url = f"/api/v1/admin/rooms{path}"
        return await self._served.http.request(method, url, json=body, headers=AS_ADMIN)


@pytest.fixture
def operator(served: RoomServed) -> Operator:
    return Operator(served)


async def test_a_room_is_made_changed_and_looked_at(served: RoomServed, operator: Operator) -> None:
    body = {
        "event_id": "evt",
        "main": {"rate": 2.5, "burst": 3, "max_active": 10},
        "title": "Autumn Nights",
        "target": "https://tickets.example/buy?x=1",
        "max_waiting": 1000,
    }
    made = await operator("POST", "", body)
    assert made.status_code == 201, made.text
    said = made.json()
    assert (said["title"], said["max_waiting"], said["patience_sec"]) == ("Autumn Nights", 1000, 300)
    assert said["lanes"]["main"]["rate"] == 2.5
    assert "vip" not in said["lanes"]
    again = await operator("POST", "", body)
    assert (again.status_code, code(again)) == (409, "ROOM_EXISTS")

    changed = await operator("PATCH", "/evt", {"vip": {"rate": 1}, "session_sec": 60, "target": "/inside"})
    assert changed.status_code == 200, changed.text
    said = changed.json()
    assert (said["session_sec"], said["target"], said["title"]) == (60, "/inside", "Autumn Nights")
    assert said["lanes"]["vip"]["rate"] == 1
    assert said["lanes"]["main"]["burst"] == 3
    assert (await operator("PATCH", "/evt", {"max_waiting": None})).json()["max_waiting"] is None
    refused = await operator("PATCH", "/evt", {"opens_ms": 5})
    assert (refused.status_code, code(refused)) == (409, "NO_PREQUEUE")

    assert (await operator("POST", "/evt/pause")).json()["paused"]
    token = await served.token()
    assert (await served.status(token)).json()["status"] == "waiting"
    assert not (await operator("POST", "/evt/resume")).json()["paused"]
    await ready(served, token)
    listed = (await operator("GET")).json()["rooms"]
    assert [(room["event_id"], room["lanes"]["main"]["admitted"]) for room in listed] == [("evt", 1)]
    assert (await operator("POST", "/evt/reset")).json() == {"count": 1}
    assert code(await served.status(token)) in ("TOKEN_EXPIRED", "TOKEN_NOT_FOUND")
    assert (await operator("GET", "/evt")).json()["lanes"]["main"]["waiting"] == 0


async def test_what_was_drawn_can_be_checked_by_anyone(served: RoomServed, operator: Operator) -> None:
    body = {"event_id": "evt", "main": {"rate": 50}, "prequeue": {"opens_ms": None}}
    before = (await operator("POST", "", body)).json()
    assert (before["phase"], before["seed"], len(before["commitment"])) == ("gathering", None, 64)
    await served.token()
    assert (await operator("POST", "/evt/start")).status_code == 200
    after = (await operator("GET", "/evt")).json()
    import hashlib

    assert hashlib.sha256(bytes.fromhex(after["seed"])).hexdigest() == before["commitment"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "event_id"),
        ({"event_id": "evt"}, "main"),
        ({"event_id": "evt", "main": {"rate": -1}}, "rate"),
        ({"event_id": "evt", "main": {"rate": 1}, "mode": "lottery"}, "mode"),
        ({"event_id": "evt", "main": {"rate": 1}, "patience_sec": 0}, "patience_sec"),
        ({"event_id": "evt", "main": {"rate": 1}, "shards": 65}, "shards"),
        ({"event_id": "evt", "main": {"rate": 1}, "target": "javascript:alert(1)"}, "target"),
        ({"event_id": "evt", "main": {"rate": 1}, "target": "//elsewhere.example"}, "target"),
        ({"event_id": "evt{x}", "main": {"rate": 1}}, "event_id"),
    ],
)
async def test_a_bad_room_is_refused_by_name(operator: Operator, body: dict[str, Any], named: str) -> None:
    reply = await operator("POST", "", body)
    assert reply.status_code == 400
    assert code(reply) in ("INVALID_REQUEST", "MISSING_EVENT_ID")
    assert named in reply.json()["error"]["message"]
    assert (await operator("GET")).json() == {"rooms": []}


async def test_seats_are_for_those_who_were_let_in(served: RoomServed, operator: Operator) -> None:
    await served.room(rate=100)
    assert (await operator("POST", "/evt/seats", {"seats": ["A-1", "A-2", "A-3"]})).json() == {"count": 3}

    async def act(
        what: str, body: dict[str, Any], bearer: str | None, key: str | None = None
    ) -> httpx.Response:
        headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
        headers |= {} if key is None else {"Idempotency-Key": key}
        return await served.http.post(
            f"/api/v1/seats/{what}", json={"event_id": "evt"} | body, headers=headers
        )

    async def admitted(user: str) -> str:
        token = await served.token(user_id=user)
        await ready(served, token)
        found: str = (await served.enter(token)).json()["reservation_token"]
        return found

    ana, ben = await admitted("ana"), await admitted("ben")
    assert code(await act("hold", {"seats": ["A-1"]}, None)) == "ADMISSION_REQUIRED"
    assert code(await act("hold", {"seats": ["A-1"]}, "forged")) == "INVALID_TOKEN"
    held = await act("hold", {"seats": ["A-2", "A-1"]}, ana, "k")
    assert held.status_code == 201, held.text
    assert held.json()["seats"] == ["A-1", "A-2"]
    assert (await act("hold", {"seats": ["A-1", "A-2"]}, ana, "k")).json() == held.json()
    assert code(await act("hold", {"seats": ["A-1"]}, ana, "k")) == "IDEMPOTENCY_CONFLICT"
    taken = await act("hold", {"seats": ["A-2", "A-3"]}, ben, "k")
    assert (taken.status_code, code(taken)) == (409, "SEAT_UNAVAILABLE")
    assert code(await act("hold", {"seats": ["Z-9"]}, ben)) == "SEAT_NOT_FOUND"
    hold = {"hold_id": held.json()["hold_id"]}
    assert code(await act("confirm", hold, ben)) == "HOLD_GONE"
    assert (await act("confirm", hold, ana)).json() == {"status": "sold", "seats": ["A-1", "A-2"]}
    other = (await act("hold", {"seats": ["A-3"]}, ben)).json()
    assert (await act("release", {"hold_id": other["hold_id"]}, ben)).json()["seats"] == ["A-3"]
    shown = await served.http.get("/api/v1/seats", params={"event_id": "evt", "seat": ["A-1", "A-3", "Z"]})
    assert shown.json() == {
        "event_id": "evt",
        "counts": {"total": 3, "available": 1, "held": 0, "sold": 2},
        "seats": {"A-1": "sold", "A-3": "available", "Z": None},
    }
    # Who was sent away has no business here any more, though the token itself is still good.
    await operator("POST", "/evt/revoke", {"who": "user", "id": "ben"})
    assert code(await act("hold", {"seats": ["A-3"]}, ben)) == "TOKEN_EXPIRED"
    # And an admission that was used for something else is no good either.
    cyd = await admitted("cyd")
    await served.http.post("/api/v1/queue/redeem", json={"reservation_token": cyd, "by": "shop"})
    assert code(await act("hold", {"seats": ["A-3"]}, cyd)) == "ALREADY_USED"
    assert (await check_seats(served.redis, "evt")).ok
    assert (await operator("DELETE", "/evt/seats")).json() == {"count": 3}


async def test_metrics_say_how_rooms_stand(served: RoomServed, operator: Operator) -> None:
    await served.room(rate=100, max_waiting=2)
    token = await served.token()
    await ready(served, token)
    await operator("POST", "/evt/pause")
    for _ in range(2):
        await served.token()
    assert code(await served.join()) == "ROOM_FULL"
    text = (await served.http.get("/metrics")).text
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    main = (("lane", "main"), ("room", "evt"))
    assert found["toril_room_joined_total", main] == 3
    assert found["toril_room_admitted_total", main] == 1
    assert found["toril_room_waiting", main] == 2
    assert found["toril_room_active", main] == 1
    assert found["toril_room_ended_total", (("how", "abandoned"), *main)] == 0
    assert found["toril_room_refused_total", (("room", "evt"),)] == 1
    assert found["toril_room_paused", (("room", "evt"),)] == 1
    assert found["toril_room_wait_seconds_count", main] == 1
    assert found["toril_room_wait_seconds_bucket", (("lane", "main"), ("le", "5.0"), ("room", "evt"))] == 1
    assert not any("vip" in str(labels) for _, labels in found)


async def test_people_are_let_in_to_rooms_that_nobody_has_asked_this_server_for(
    server: Server | Cluster,
) -> None:
    async with connect(server.url) as redis:
        room = Room(redis, "evt")
        await room.create(Settings(main=LaneSettings(rate=100)))
        ticket = await room.join()
        async with room_served(server.url):

            async def is_ready() -> bool:
                return (await room.status(str(ticket.token))).ready

            await until(is_ready)
