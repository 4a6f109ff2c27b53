"""Crowds, ghosts, dying processes, wrong clocks: a room stays fair."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from itertools import pairwise

import pytest

from tests.conftest import SCALE, Servers, emptied
from tests.room.clock import Clock
from tests.room.dying import Died, Dying
from tests.waiting import until
from toril import Connection, connect
from toril.keyspace import slot_of
from toril.room import (
    Doorkeeper,
    LaneSettings,
    Room,
    RoomExists,
    Settings,
    Ticket,
    TicketOver,
    check_room,
)
from toril.room.audit import read_audit
from toril.room.shards import Rounds
from toril.room.store import Scripts
from toril.testing import Cluster, Server

PATIENCE = timedelta(seconds=10)


async def let_in(room: Room) -> list[tuple[int, int, int]]:
    """Who was let in, in order: round (0 in a room of one shard), shard, ticket."""
    found = []
    for store in await room.shards():
        for at, entry in enumerate(await read_audit(room.redis, store.keys)):
            if entry.what == "admitted":
                when = max(0, entry.number("round"))
                found += [(when, at, i, store.shard, t) for i, (_, t, _) in enumerate(entry.tickets)]
    return [(when, shard, ticket) for when, _, _, shard, ticket in sorted(found)]


# ---------------------------------------------------------------------------- ghosts


@pytest.mark.parametrize("shards", [1, 4])
async def test_room_fair_a_hundred_ghosts_at_the_head_block_nobody(
    redis: Connection, clocked: Scripts, shards: int
) -> None:
    room = Room(redis, "ghosts", scripts=clocked)
    clock = Clock(redis, "ghosts", shards if shards > 1 else 0)
    await clock.advance()
    # All would be inside now, had they been let in; but the rate does not allow one before the ghosts are.
    await room.create(Settings(main=LaneSettings(rate=0), patience=PATIENCE, shards=shards))
    for i in range(100):
        await room.join(user=f"ghost {i}")
    await clock.advance(9_000)
    alive = [await room.join(user=f"alive {i}") for i in range(10)]
    await room.tick()
    await room.configure(main=LaneSettings(rate=10, burst=10, max_active=10))
    await clock.advance(1_001)
    for one in alive:
        await room.heartbeat(str(one.token))
    done = await room.tick()
    assert (done.admitted, done.ghosts) == (10, 100)
    assert {(await room.status(str(one.token))).state for one in alive} == {"ready"}
    found = await check_room(room)
    assert found.ok, found.violations


async def test_room_fair_a_ghost_that_was_dropped_waits_anew_and_others_keep_their_positions(
    redis: Connection, clocked: Scripts
) -> None:
    room, clock = Room(redis, "back", scripts=clocked), Clock(redis, "back")
    await clock.advance()
    await room.create(Settings(main=LaneSettings(rate=0), patience=PATIENCE))
    ghost, alive = await room.join(user="ghost"), await room.join(user="alive")
    await room.tick()
    assert (await room.status(str(alive.token))).position == 2
    await clock.advance(10_000)
    await room.tick()
    # Just in time: it keeps its place, and could be let in.
    assert (await room.heartbeat(str(ghost.token))).state == "waiting"
    assert (await room.status(str(alive.token))).position == 2
    await clock.advance(10_001)
    await room.heartbeat(str(alive.token))
    await room.tick()
    assert (await room.heartbeat(str(ghost.token))).state == "abandoned"
    with pytest.raises(TicketOver):
        await room.enter(str(ghost.token))
    anew = await room.join(user="ghost")
    await clock.advance(300)
    await room.tick()
    positions = [(await room.status(str(one.token))).position for one in (alive, anew)]
    assert positions == [1, 2]


# ---------------------------------------------------------------------------- crowds


async def test_room_fair_thundering_herd(server: Server | Cluster) -> None:
    """Everybody comes at once, three times each, over several connections; several let people in."""
    people = round(400 * SCALE)
    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(connect(server.url)) for _ in range(4)]
        rooms = [Room(redis, "herd") for redis in lines]
        await rooms[0].create(Settings(main=LaneSettings(rate=500, burst=20, max_active=people // 2)))
        for room in rooms[:3]:
            await stack.enter_async_context(Doorkeeper(room, every=0.02))
        joins = [
            room.join(user=f"u{i}", key=f"{i} at {at}")
            for i in range(people)
            for at, room in enumerate(rooms[:3])
        ]
        random.shuffle(joins)
        tickets: list[Ticket] = await asyncio.gather(*joins)
        assert len({ticket.token for ticket in tickets}) == people
        await until(lambda: _admitted(rooms[3], people // 2))  # the places inside are taken
        order = await let_in(rooms[3])
        assert order == sorted(order)  # by ticket: nobody was overtaken
        found = await check_room(rooms[3])
        assert found.ok, found.violations
        assert found.active == people // 2
        inside = {ticket for _, _, ticket in order}
        gone = [one for one in {t.token: t for t in tickets}.values() if one.token.ticket in inside]
        await asyncio.gather(*(rooms[3].leave(str(one.token)) for one in gone))
        await until(lambda: _admitted(rooms[3], people))
        found = await check_room(rooms[3])
        assert found.ok, found.violations


async def _admitted(room: Room, count: int) -> bool:
    return (await room.stats()).lanes["main"].admitted == count


# ---------------------------------------------------------------------------- dying


async def scenario(room: Room, people: int) -> None:
    """What processes do with a room. Each step can be done again by another, from the beginning."""
    with suppress(RoomExists):
        await room.create(
            Settings(
                main=LaneSettings(rate=5, burst=4, max_active=5), gather=True, shards=4 if people > 6 else 1
            )
        )
    tickets = [await room.join(user=f"u{i}", key=f"k{i}") for i in range(people)]
    await room.start()
    for _ in range(3):
        await room.tick()
    for ticket in tickets:
        with suppress(TicketOver):
            status = await room.status(str(ticket.token))
            if status.ready:
                session = await room.enter(str(ticket.token))
                await room.redeem(session.id, f"order of {ticket.user}")
    await room.configure(main=LaneSettings(rate=9, burst=3, max_active=3))
    await room.tick()
    await room.leave(str(tickets[0].token))
    await room.tick()


@pytest.mark.parametrize("people", [6, 12])
async def test_room_fair_whatever_call_a_process_dies_at(
    redis: Connection, clocked: Scripts, rng: random.Random, people: int
) -> None:
    """Between any two calls, in a room of one shard (6 people) and of four (12)."""
    shards = 4 if people > 6 else 0
    calls = 0
    while True:  # how many calls it takes
        try:
            name = f"whole{calls}"
            await Clock(redis, name, shards).advance()
            await scenario(
                Room(Dying.connection(redis, calls, last_is_executed=True), name, scripts=clocked), people
            )
            break
        except Died:
            calls = calls * 2 or 16
    points = [(at, executed) for at in range(1, calls) for executed in (False, True)]
    for at, executed in rng.sample(points, min(len(points), round((16 if people == 6 else 5) * SCALE))):
        name = f"dies-{at}-{executed}"
        clock = Clock(redis, name, shards)
        await clock.advance()
        with suppress(Died):
            dying = Dying.connection(redis, at, last_is_executed=executed)
            await scenario(Room(dying, name, scripts=clocked), people)
        await clock.advance(rng.randrange(2000))
        room = Room(redis, name, scripts=clocked)
        await scenario(room, people)
        while (await room.stats()).lanes["main"].waiting:
            await clock.advance(1000)
            for i in range(people):
                ticket = await room.join(user=f"u{i}", key=f"k{i}")
                if ticket.state in ("ready", "inside"):
                    await room.enter(str(ticket.token))
                    await room.leave(str(ticket.token))
            await room.tick()
        found = await check_room(room)
        assert found.ok, (at, executed, found.violations)
        stats = (await room.stats()).lanes["main"]
        assert (stats.joined, stats.waiting) == (people, 0), (at, executed)
        assert stats.admitted >= people - 1, (at, executed)  # one may have left before


async def test_room_fair_doorkeepers_that_are_killed(server: Server | Cluster, rng: random.Random) -> None:
    """Processes that let people in are killed, one after another, in the middle of whatever they do."""
    people = round(60 * SCALE)
    async with connect(server.url) as redis:
        room = Room(redis, "killed")
        rate = 10 * SCALE  # 6 s for all: no doorkeeper has let all in before it is killed
        await room.create(Settings(main=LaneSettings(rate=rate, burst=5, max_active=people), shards=4))
        await asyncio.gather(*(room.join(user=f"u{i}") for i in range(people)))
        killed = 0
        while (await room.stats()).lanes["main"].waiting:
            command = (sys.executable, "-m", "tests.room.keeper", server.url, room.name)
            keeper = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            try:
                assert keeper.stdout is not None
                assert await keeper.stdout.readline() == b"here\n"
                had = (await room.stats()).lanes["main"].admitted
                wanted = min(people, had + rng.randrange(1, people // 2))
                await until(lambda wanted=wanted: _admitted_at_least(room, wanted))  # type: ignore[misc]
            finally:
                keeper.kill()
                await keeper.wait()
            killed += 1
        assert killed > 1
        found = await check_room(room)
        assert found.ok, found.violations
        assert (await room.stats()).lanes["main"].admitted == people


async def _admitted_at_least(room: Room, count: int) -> bool:
    return (await room.stats()).lanes["main"].admitted >= count


# ---------------------------------------------------------------------------- clocks and rooms


async def test_room_fair_several_let_people_in_and_clocks_are_wrong(
    redis: Connection, clocked: Scripts, rng: random.Random
) -> None:
    """Four shards whose clocks are minutes apart: one rate and one limit for all, and the order of the cuts.

    Somebody who came later is let in in an earlier round only if both came between the same two cuts.
    """
    skews = tuple(rng.randrange(-600_000_000, 600_000_000) for _ in range(4))
    clock = Clock(redis, "skewed", 4, skews)
    await clock.advance()
    rooms = [Room(redis, "skewed", scripts=clocked) for _ in range(3)]
    rate, burst, most = 40, 7, 60
    await rooms[0].create(Settings(main=LaneSettings(rate=rate, burst=burst, max_active=most), shards=4))
    started, came, arrived = clock.us, 0, {}
    tickets: list[Ticket] = []
    for cut in range(round(30 * SCALE)):
        for _ in range(rng.randrange(12)):
            ticket = await rng.choice(rooms).join(user=f"u{len(tickets)}")
            tickets.append(ticket)
            arrived[ticket.token.shard, ticket.token.ticket] = cut
        before = {}
        for one in rng.sample(tickets, min(5, len(tickets))):
            before[one.token] = (await rooms[0].status(str(one.token))).position
        await asyncio.gather(*(room.tick() for room in rooms))
        admitted = (await rooms[0].stats()).lanes["main"]
        assert admitted.active <= most
        assert admitted.admitted <= burst + rate * (clock.us - started) / 1e6
        for token, position in before.items():
            now = (await rooms[1].status(str(token))).position
            assert position is None or now is None or now <= position
        for one in rng.sample(tickets, min(6, len(tickets))):
            if rng.random() < 0.5:
                await rooms[0].leave(str(one.token))
        await clock.advance(rng.randrange(400))
        came = admitted.admitted
    assert came > burst
    rounds: dict[int, list[int]] = {}
    for number, shard, ticket_number in await let_in(rooms[0]):
        rounds.setdefault(number, []).append(arrived[shard, ticket_number])
    latest = -1
    for _, cuts in sorted(rounds.items()):
        assert min(cuts) >= latest
        latest = max(cuts)
    found = await check_room(rooms[0])
    assert found.ok, found.violations


async def test_room_fair_a_shard_that_gets_less_done_is_not_overtaken(
    redis: Connection, clocked: Scripts
) -> None:
    """However little a shard can do in one call, the others wait for it before they go on to the next cut."""
    room, clock = Room(redis, "slow", scripts=clocked), Clock(redis, "slow", 3)
    await clock.advance()
    await room.create(Settings(main=LaneSettings(rate=0), shards=3))
    rounds = Rounds(room._hall, await room.shards(), steps=3)
    arrived = {}
    for cut, size in enumerate((40, 20, 2, 3, 1, 30)):
        for i in range(size):
            ticket = await room.join(user=f"{cut}.{i}")
            arrived[ticket.token.shard, ticket.token.ticket] = cut
        await rounds.once()
    await room.configure(main=LaneSettings(rate=1000))
    await clock.advance(1000)
    while (await room.stats()).lanes["main"].waiting:
        await rounds.once()
    order = sorted((number, arrived[shard, ticket]) for number, shard, ticket in await let_in(room))
    assert len(order) == 96
    assert all(before <= after for (_, before), (_, after) in pairwise(order))
    found = await check_room(room)
    assert found.ok, found.violations


async def test_room_fair_limits_hold_again_after_everybody_passed(
    redis: Connection, clocked: Scripts
) -> None:
    """In a room of several shards the next round lets everybody in: it always knows how many are inside."""
    room, clock = Room(redis, "pass", scripts=clocked), Clock(redis, "pass", 3)
    await clock.advance()
    its = LaneSettings(rate=100, max_active=30)
    await room.create(Settings(main=its, mode="passthrough", shards=3))
    for i in range(20):
        await room.join(user=f"a{i}")
    await room.tick()
    await room.tick()
    assert (await room.stats()).lanes["main"].admitted == 20
    for i in range(40):
        await room.join(user=f"b{i}")
    await room.configure(mode="fifo")
    for _ in range(3):
        await room.tick()
        await clock.advance(1000)
    stats = (await room.stats()).lanes["main"]
    assert (stats.active, stats.waiting) == (30, 30)
    found = await check_room(room)
    assert found.ok, found.violations


async def test_no_crossslot_ten_rooms_at_once(servers: Servers) -> None:
    """Ten events on a cluster, some of them over several slots, each used in every way."""
    made = emptied(servers.get("valkey-cluster"))
    async with connect(made.url) as redis:
        names = [f"evt_{i}" for i in range(10)]
        assert len({slot_of("{" + name + "}") for name in names}) == 10

        async def use(name: str, shards: int) -> None:
            room = Room(redis, name)
            fast = LaneSettings(rate=100)
            await room.create(Settings(main=fast, vip=fast, gather=True, shards=shards))
            tickets = [await room.join(user=f"u{i}", key=f"k{i}") for i in range(8)]
            tickets.append(await room.join(user="v", lane="vip"))
            await room.start()

            async def all_in() -> bool:
                await room.tick()
                return all([(await room.status(str(one.token))).ready for one in tickets])

            await until(all_in)
            for ticket in tickets:
                session = await room.enter(str(ticket.token))
                await room.renew(str(ticket.token))
                await room.redeem(session.id, "order")
            await room.leave(str(tickets[0].token))
            await room.revoke(tickets[1].token.session)
            await room.revoke_user("u2")
            found = await check_room(room)
            assert found.ok, found.violations
            await room.reset()
            assert (await room.stats()).lanes["main"].active == 0

        await asyncio.gather(*(use(name, 1 + i % 4) for i, name in enumerate(names)))
        assert not any("CROSSSLOT" in count.errors for count in redis.script_counts.values())
