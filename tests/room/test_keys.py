"""An idempotency key is remembered for as long as its ticket lives, and a while after: P4."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.room.clock import Clock
from toril import Connection
from toril.room import IdempotencyConflict, LaneSettings, Room, Settings, check_room
from toril.room.store import Scripts

HOUR_MS = 3_600_000
REMEMBER_MS = 300_000


async def pass_time(room: Room, clock: Clock, ms: int) -> None:
    """Also for what the server forgets after a time, which is by its own clock."""
    await clock.advance(ms)
    for store in await room.shards():
        for pattern in (store.keys.claimed("*"), store.keys.asked("*"), store.keys.ticket("*")):
            async for name in room.redis.scan(pattern):
                key = store.keys[name.decode().removeprefix(store.keys.base)]
                left = await room.redis.command("PTTL", key)
                if left >= 0:
                    await room.redis.command("PEXPIRE", key, max(left - ms, 0))


async def conflicts(room: Room, key: str) -> bool:
    """Whether the key is refused to others, whatever shard they are led to."""
    refused = 0
    for n in range(8):
        try:
            await room.join(user=f"other {n}", key=key)
        except IdempotencyConflict:
            refused += 1
    assert refused in (0, 7, 8), "it is refused to some, and not to others"
    return refused == 8


@pytest.mark.parametrize("shards", [1, 4])
async def test_room_fair_a_key_is_remembered_as_long_as_its_ticket_lives(
    redis: Connection, clocked: Scripts, shards: int
) -> None:
    """Through three days of waiting and a day inside; and for five minutes after that, but not for ever."""
    room, clock = Room(redis, "keys", scripts=clocked), Clock(redis, "keys", shards if shards > 1 else 0)
    await clock.advance()
    its = LaneSettings(rate=0)
    day = timedelta(days=1)
    await room.create(Settings(main=its, patience=timedelta(hours=2), session=day, shards=shards))
    ticket = await room.join(user="ana", key="first")
    assert (await room.join(user="ana", key="second")).token == ticket.token
    token = str(ticket.token)
    for _ in range(40):
        await pass_time(room, clock, 2 * HOUR_MS)
        assert (await room.heartbeat(token)).state == "waiting"
        for key in ("first", "second"):
            assert (await room.join(user="ana", key=key)).token == ticket.token
    assert await conflicts(room, "first")
    assert await conflicts(room, "second")
    await room.configure(main=LaneSettings(rate=10))
    await clock.advance(1000)
    for _ in range(3):
        await room.tick()
    await room.enter(token)
    await pass_time(room, clock, 23 * HOUR_MS)
    await room.renew(token)
    await pass_time(room, clock, 23 * HOUR_MS)
    assert await conflicts(room, "first")
    assert await conflicts(room, "second")
    found = await check_room(room)
    assert found.ok, found.violations
    await room.leave(token)
    await pass_time(room, clock, REMEMBER_MS - 1000)
    assert await conflicts(room, "first")
    assert await conflicts(room, "second")
    await pass_time(room, clock, 30 * HOUR_MS)
    assert not await conflicts(room, "first")


async def test_keys_that_are_made_up_each_time_do_not_pile_up(redis: Connection) -> None:
    room = Room(redis, "many")
    await room.create(Settings(main=LaneSettings(rate=0)))
    for n in range(30):
        await room.join(user="ana", key=f"key {n}")
    lasting = [n for n in range(30) if await redis.command("PTTL", room.keys.asked(f"key {n}")) == -1]
    assert lasting == list(range(9))
    for n in range(30):
        with pytest.raises(IdempotencyConflict):
            await room.join(user="ben", key=f"key {n}")
