"""The checker finds what is wrong: each promise is broken by hand once, and nothing else is reported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from tests.room.clock import Clock
from toril import Connection
from toril.keyspace import RoomKeys
from toril.room import LaneSettings, Room, Settings, check_room
from toril.room.audit import read_audit
from toril.room.store import Scripts

Breaking = Callable[[Connection, RoomKeys], Awaitable[object]]


async def _forge(redis: Connection, keys: RoomKeys, **changes: str) -> None:
    """Write an admission into the audit that was not made, like the last one but for some of its words."""
    last = [entry for entry in await read_audit(redis, keys) if entry.what == "admitted"][-1]
    said = {**last.said, **changes}
    await redis.command("XADD", keys.audit, "*", *(part for pair in said.items() for part in pair))


async def _ghost(redis: Connection, keys: RoomKeys) -> None:
    await redis.command("ZADD", keys.seen("main"), 1, 6)


async def _dropped(redis: Connection, keys: RoomKeys) -> None:
    us = (await read_audit(redis, keys))[-1].us
    words = ("us", us, "what", "abandoned", "lane", "main", "patience", 60000, "tickets", f"6:{us // 1000}")
    await redis.command("XADD", keys.audit, "*", *words)


BREAKINGS: dict[str, tuple[str, Breaking]] = {
    "too many were let in": (
        "P1",
        lambda redis, keys: _forge(redis, keys, tickets=" ".join(f"{i}:{i}:0" for i in range(7, 99))),
    ),
    "too many are inside": ("P2", lambda redis, keys: _forge(redis, keys, active="6", tickets="")),
    "somebody was overtaken": ("P3", lambda redis, keys: _forge(redis, keys, tickets="1:99:0", rate="-1")),
    "a place is somebody else's": (
        "P3",
        lambda redis, keys: redis.command("HSET", keys.ticket("main:6"), "p", 7),
    ),
    "a user is led elsewhere": ("P4", lambda redis, keys: redis.command("SET", keys.user("u6"), "main 7")),
    "a key is forgotten": ("P4", lambda redis, keys: redis.command("DEL", keys.asked("k6"))),
    "let in twice": ("P5", lambda redis, keys: _forge(redis, keys, tickets="99:1:0", rate="-1")),
    "let in, and it does not know": (
        "P5",
        lambda redis, keys: redis.command("HSET", keys.ticket("main:1"), "s", "left"),
    ),
    "a ghost stays": ("P6", _ghost),
    "counted wrongly": ("P7", lambda redis, keys: redis.command("HINCRBY", keys.counts("main"), 0, 1)),
    "dropped though heard of": ("P8", _dropped),
    "waits, and is gone": ("P9", lambda redis, keys: redis.command("DEL", keys.ticket("main:6"))),
    "nobody listens": ("P9", lambda redis, keys: redis.command("ZREM", keys.seen("main"), 6)),
    "budget was spent": ("P10", lambda redis, keys: redis.command("HINCRBY", keys.line("main"), "level", -1)),
}


@pytest.mark.parametrize("broken", BREAKINGS)
async def test_the_checker_finds(redis: Connection, clocked: Scripts, broken: str) -> None:
    promise, breaking = BREAKINGS[broken]
    room, clock = Room(redis, "evt", scripts=clocked), Clock(redis, "evt")
    await clock.advance()
    patience = timedelta(seconds=60)
    await room.create(Settings(main=LaneSettings(rate=10, burst=5, max_active=5), patience=patience))
    for i in range(1, 11):
        await room.join(user=f"u{i}", key=f"k{i}")
    assert (await room.tick()).admitted == 5
    found = await check_room(room)
    assert found.ok, found.violations
    assert found.whole
    assert (found.waiting, found.active) == (5, 5)
    await breaking(redis, room.keys)
    violations = (await check_room(room)).violations
    assert promise in {violation.promise for violation in violations}, violations


async def test_the_checker_finds_a_shuffle_that_was_not_drawn(redis: Connection, clocked: Scripts) -> None:
    room, clock = Room(redis, "evt", scripts=clocked), Clock(redis, "evt")
    await clock.advance()
    await room.create(Settings(main=LaneSettings(rate=100), gather=True))
    for i in range(50):
        await room.join(user=f"u{i}")
    await room.start()
    await room.tick()
    assert (await check_room(room)).ok
    await redis.command("HSET", room.keys.meta, "seed", "00" * 32)
    found = {violation.what for violation in (await check_room(room)).violations}
    assert "the seed of the shuffle is not the one that was committed to" in found
    assert any("is ticket" in what for what in found)


async def test_the_checker_finds_what_is_wrong_between_shards(redis: Connection, clocked: Scripts) -> None:
    room, clock = Room(redis, "evt", scripts=clocked), Clock(redis, "evt", 3)
    await clock.advance()
    await room.create(Settings(main=LaneSettings(rate=4, burst=4), shards=3))
    for i in range(40):
        await room.join(user=f"u{i}")
        if i % 10 == 9:
            await clock.advance(1000)
            await room.tick()
    assert (await check_room(room)).ok
    stores = await room.shards()
    last = [entry for entry in await read_audit(redis, room.keys) if entry.what == "round"][-1]
    # A whole cut later than the last one is written as let in by an early round.
    for store in stores:
        entries = [entry for entry in await read_audit(redis, store.keys) if entry.what == "admitted"]
        if entries:
            said = {**entries[0].said, "round": str(last.number("round") - 2), "tickets": "99:99:0"}
            await redis.command("XADD", store.keys.audit, "*", *(p for pair in said.items() for p in pair))
            break
    said = {**last.said, "came": "99"}
    await redis.command("XADD", room.keys.audit, "*", *(part for pair in said.items() for part in pair))
    found = {violation.promise for violation in (await check_room(room)).violations}
    assert {"P1", "P3"} <= found
