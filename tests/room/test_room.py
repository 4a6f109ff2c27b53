"""A waiting room, step by step, on every kind of server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.room.clock import Clock
from toril import Connection, InvalidValue
from toril.keyspace import InvalidName
from toril.room import (
    AlreadyUsed,
    IdempotencyConflict,
    LaneSettings,
    NoSuchLane,
    NoSuchRoom,
    NotReady,
    Room,
    RoomClosed,
    RoomExists,
    RoomFull,
    Settings,
    TicketOver,
    UnknownTicket,
    check_room,
    room_names,
)
from toril.room.store import Scripts

FAST = LaneSettings(rate=1000)


@pytest.fixture
async def room(redis: Connection, clocked: Scripts) -> Room:
    """A room, and its clock at the start."""
    await Clock(redis, "evt_2025_1001").advance()
    return Room(redis, "evt_2025_1001", scripts=clocked)


async def test_room_fair_the_whole_way_of_one_person(room: Room) -> None:
    clock = Clock(room.redis, room.name)
    await room.create(Settings(main=LaneSettings(rate=1, burst=1, max_active=1)))
    ana, bo = await room.join(user="ana", key="a"), await room.join(user="bo", key="b")
    assert ((await room.status(str(ana.token))).position, (await room.status(str(bo.token))).position) == (
        None,
        None,
    )  # nothing was published yet
    await room.tick()
    status = await room.status(str(bo.token))
    assert (status.state, status.position, status.exact, status.waiting) == ("waiting", 1, True, 1)
    assert (status.eta_ms, status.eta_known) == (1000, False)
    with pytest.raises(NotReady) as refused:
        await room.enter(str(bo.token))
    assert refused.value.status.position == 1
    assert (await room.status(str(ana.token))).ready

    session = await room.enter(str(ana.token))
    await clock.advance(1500)
    again = await room.enter(str(ana.token))  # the answer was lost
    assert (again.id, again.entered_ms, again.expires_ms) == (
        session.id,
        session.entered_ms,
        session.expires_ms,
    )
    assert session.ttl_ms - again.ttl_ms == 1500
    await room.redeem(session.id, "order 1")
    await room.redeem(session.id, "order 1")
    with pytest.raises(AlreadyUsed):
        await room.redeem(session.id, "order 2")
    await room.tick()  # the rate would allow it, but there is one place inside
    assert not (await room.status(str(bo.token))).ready
    await room.leave(str(ana.token))
    with pytest.raises(TicketOver):
        await room.enter(str(ana.token))
    await room.tick()
    assert (await room.status(str(bo.token))).ready
    anew = await room.join(user="ana", key="another")
    assert (anew.token.ticket, anew.repeated) == (3, False)
    assert (await check_room(room)).ok


async def test_room_fair_who_was_heard_of_in_time_is_let_in(room: Room) -> None:
    clock = Clock(room.redis, room.name)
    await room.create(Settings(main=LaneSettings(rate=1, burst=1), patience=timedelta(seconds=10)))
    tickets = [await room.join(), await room.join()]
    await room.tick()
    await clock.advance(10_000)  # to the millisecond
    assert (await room.tick()).admitted == 1
    assert (await room.status(str(tickets[1].token))).ready


async def test_who_asks_again_has_the_same_ticket(room: Room) -> None:
    await room.create(Settings(main=FAST))
    first = await room.join(user="ana", key="k")
    for same in (
        await room.join(user="ana", key="k"),
        await room.join(user="ana", key="another key"),
        await room.join(user="ana"),
    ):
        assert (same.token, same.repeated) == (first.token, True)
    for other in ({"user": "bo", "key": "k"}, {"user": "ana", "key": "k", "lane": "vip"}, {"key": "k"}):
        with pytest.raises(IdempotencyConflict):
            await room.join(**other)  # type: ignore[arg-type]
    nobody = [
        await room.join(user="anonymous"),
        await room.join(),
        await room.join(user="anonymous", key="1"),
    ]
    assert len({ticket.token for ticket in nobody}) == 3
    assert (await room.join(user="anonymous", key="1")).token == nobody[2].token


async def test_keys_are_remembered_for_as_long_as_the_ticket_lives_and_then_for_a_while(room: Room) -> None:
    await room.create(Settings(main=FAST))
    ticket = await room.join(key="k")
    key = room.keys.asked("k")
    assert await room.redis.command("PTTL", key) == -1
    await room.leave(str(ticket.token))
    assert 299_000 < await room.redis.command("PTTL", key) <= 300_000
    assert (await room.join(key="k")).state == "left"


async def test_lanes_have_budgets_of_their_own(room: Room) -> None:
    await room.create(Settings(main=LaneSettings(rate=1, burst=2, max_active=2)))
    with pytest.raises(NoSuchLane):
        await room.join(user="v", lane="vip")
    await room.configure(vip=LaneSettings(rate=1, burst=3, max_active=3))
    people = [await room.join(user=f"u{i}") for i in range(5)]
    guests = [await room.join(user=f"v{i}", lane="vip") for i in range(5)]
    assert (await room.tick()).admitted == 5
    ready = [[(await room.status(str(one.token))).ready for one in line] for line in (people, guests)]
    assert ready == [[True] * 2 + [False] * 3, [True] * 3 + [False] * 2]
    assert (await check_room(room)).ok


async def test_modes(room: Room) -> None:
    await room.create(Settings(main=LaneSettings(rate=0), mode="passthrough", max_waiting=3))
    passing = [await room.join() for _ in range(5)]
    assert {ticket.state for ticket in passing} == {"ready"}
    assert (await room.enter(str(passing[0].token))).lane == "main"
    await room.configure(mode="fifo")
    waiting = [await room.join(user=f"u{i}") for i in range(3)]
    with pytest.raises(RoomFull) as full:
        await room.join()
    assert full.value.retry_after > 0
    await room.configure(mode="reject")
    with pytest.raises(RoomClosed):
        await room.join(user="new")
    assert (await room.join(user="u0")).token == waiting[0].token  # who is there keeps the place
    assert (await room.tick()).admitted == 0
    assert (await room.stats()).refused == 2
    await room.configure(mode="passthrough")
    assert (await room.tick()).admitted == 3
    assert (await check_room(room)).ok


async def test_pause_reset_and_names(room: Room) -> None:
    with pytest.raises(NoSuchRoom):
        await room.join()
    with pytest.raises(NoSuchRoom):
        await room.tick()
    await room.create(Settings(main=FAST))
    with pytest.raises(RoomExists):
        await room.create(Settings(main=FAST))
    assert await room_names(room.redis) == ["evt_2025_1001"]
    tickets = [await room.join(user=f"u{i}") for i in range(450)]
    await room.pause()
    assert (await room.tick()).admitted == 0
    await room.resume()
    assert (await room.tick()).admitted == 450
    more = [await room.join(user=f"w{i}") for i in range(20)]
    assert await room.reset() == 470
    assert {(await room.heartbeat(str(one.token))).state for one in (*tickets[::50], *more)} == {"revoked"}
    after = await room.join(user="u0")
    assert after.token.ticket == 471
    await Clock(room.redis, room.name).advance(1000)
    assert (await room.tick()).admitted == 1
    assert (await check_room(room)).ok


async def test_a_reset_that_was_cut_off_is_gone_on_with(room: Room) -> None:
    await room.create(Settings(main=FAST))
    for i in range(250):
        await room.join(user=f"u{i}")
    await room._reset_step()
    with pytest.raises(RoomClosed):
        await room.join(user="new")
    await room.tick()
    assert (await room.join(user="new")).token.ticket == 251
    assert (await room.stats()).lanes["main"].ended["revoked"] == 250


@pytest.mark.parametrize(
    ("call", "error", "field"),
    [
        (lambda: Settings(main=LaneSettings(rate=-1)), InvalidValue, "rate"),
        (lambda: LaneSettings(rate=1e-9), InvalidValue, "rate"),
        (lambda: LaneSettings(rate=1, burst=0), InvalidValue, "burst"),
        (lambda: LaneSettings(rate=1, max_active=True), InvalidValue, "max_active"),
        (lambda: Settings(main=FAST, mode="lifo"), InvalidValue, "mode"),  # type: ignore[arg-type]
        (lambda: Settings(main=FAST, patience=timedelta(0)), InvalidValue, "patience"),
        (lambda: Settings(main=FAST, remember=timedelta(seconds=299)), InvalidValue, "remember"),
        (lambda: Settings(main=FAST, shards=0), InvalidValue, "shards"),
        (lambda: Settings(main=FAST, opens_ms=1), InvalidValue, "opens_ms"),
        (lambda: Settings(main=FAST).but(shards=2), InvalidValue, "shards"),
        (lambda: Settings(main=FAST).but(speed=2), InvalidValue, "settings"),
        (lambda: Room(None, "a{b}"), InvalidName, "room name"),  # type: ignore[arg-type]
        (lambda: Room(None, "}"), InvalidName, "room name"),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_refused_by_name(call: Any, error: type[InvalidValue], field: str) -> None:
    with pytest.raises(error) as refused:
        call()
    assert refused.value.field == field


@pytest.mark.parametrize(
    "token", ["", "x", "evt.0.m1", "evt.0.m0.aaaaaaaaaaaaaaaaaaaaaa", "{}.0.m1." + "a" * 22]
)
async def test_no_token_is_no_ticket(token: str) -> None:
    with pytest.raises(UnknownTicket):
        await Room(None, "evt").status(token)  # type: ignore[arg-type]


async def test_a_secret_that_is_not_right_opens_nothing(room: Room) -> None:
    await room.create(Settings(main=FAST))
    ticket = await room.join(user="ana")
    wrong = str(ticket.token)[:-22] + "A" * 22
    for call in (room.status, room.heartbeat, room.enter, room.renew):
        with pytest.raises(UnknownTicket):
            await call(wrong)
    assert await room.leave(wrong) is None
    for user in ("", "x" * 257, "\ud800"):
        with pytest.raises(InvalidValue, match="user"):
            await room.join(user=user)
    assert (await room.status(str(ticket.token))).state == "waiting"


async def test_polls_at_once_go_together(room: Room) -> None:
    await room.create(Settings(main=LaneSettings(rate=0)))
    tickets = [await room.join() for _ in range(500)]
    await room.tick()
    calls = room.redis.script_counts["room/touch"]
    before = calls.calls
    statuses = await asyncio.gather(*(room.status(str(one.token)) for one in tickets))
    assert [status.position for status in statuses] == list(range(1, 501))
    assert calls.calls - before <= 5
