"""Chance that can be checked: the shuffle at the start, and the draws of a room that draws."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest

from tests.conftest import SCALE, Servers, emptied
from tests.room.clock import Clock
from toril import Connection, connect
from toril.room import (
    STRETCH,
    LaneSettings,
    Room,
    Seed,
    Settings,
    check_room,
    drawn_order,
    verify_place,
)
from toril.room.audit import read_audit
from toril.room.shards import SMALLEST_CUT, draw_all
from toril.room.store import Scripts


def uneven(counts: Counter[tuple[int, int]], cells: int, freedom: int) -> float:
    """The chi-square statistic of cells that should be even, in standard deviations from its mean."""
    each = counts.total() / cells
    found = sum((count - each) ** 2 / each for count in counts.values()) + (cells - len(counts)) * each
    return abs(found - freedom) / math.sqrt(2 * freedom)


def test_room_fair_a_shuffle_is_uniform(rng: random.Random) -> None:
    """Every ticket has every place, and every other ticket after it, as often as chance has it."""
    sides, draws = 10, round(4000 * SCALE)
    places: Counter[tuple[int, int]] = Counter()
    neighbours: Counter[tuple[int, int]] = Counter()
    for _ in range(draws):
        order = drawn_order(rng.randbytes(32).hex(), "main", 1, sides)
        places.update((ticket, place) for place, ticket in enumerate(order))
        neighbours.update(pairwise(order))
    assert uneven(places, sides * sides, (sides - 1) ** 2) < 6
    assert uneven(neighbours, sides * (sides - 1), sides * (sides - 1) - 1) < 6


async def test_room_fair_the_order_is_the_one_that_was_committed_to(
    redis: Connection, clocked: Scripts
) -> None:
    room, clock = Room(redis, "drawn", scripts=clocked), Clock(redis, "drawn")
    await clock.advance()
    opens = clock.ms + 60_000
    its = LaneSettings(rate=300, burst=200)
    await room.create(Settings(main=its, gather=True, opens_ms=opens, patience=timedelta(hours=1)))
    commitment = await room.commitment()
    people = STRETCH + 100
    tickets = await asyncio.gather(*(room.join(user=f"u{i}") for i in range(people)))
    await room.leave(str(tickets[7].token))
    assert (await room.tick()).admitted == 0
    assert await room.seed() is None
    status = await room.status(str(tickets[0].token))
    assert (status.position, status.phase, status.eta_ms) == (None, "gathering", None)
    await clock.advance(60_000)
    assert (await room.tick()).phase == "open"
    seed = await room.seed()
    assert seed is not None
    assert Seed(seed).commitment == commitment
    late = await room.join(user="late")
    order = [ticket for ticket in drawn_order(seed, "main", 1, people) if ticket != tickets[7].token.ticket]
    told: dict[int, int] = {}
    while (await room.stats()).lanes["main"].waiting:
        await clock.advance(700)
        await room.tick()
        for ticket in tickets[::97]:
            status = await room.status(str(ticket.token))
            if status.state == "waiting":
                assert status.position is not None
                assert told.get(ticket.token.ticket, people) >= status.position
                told[ticket.token.ticket] = status.position
    came = [entry.tickets for entry in await read_audit(redis, room.keys) if entry.what == "admitted"]
    assert [ticket for entry in came for _, ticket, _ in entry] == [*order, late.token.ticket]
    place = next(place for entry in came for place, ticket, _ in entry if ticket == 1)
    assert verify_place(seed, commitment, "main", 1, people, 1, place)
    assert not verify_place(seed, commitment, "main", 1, people, 1, place + 1)
    assert not verify_place(Seed.new().hex, commitment, "main", 1, people, 1, place)
    found = await check_room(room)
    assert found.ok, found.violations
    await room.reset()
    assert await room.commitment() != commitment
    assert await room.seed() is None


@pytest.mark.parametrize("shards", [1, 3])
async def test_room_fair_a_random_room_draws_evenly(servers: Servers, clocked: Scripts, shards: int) -> None:
    """Each of six people is as often the one that is let in."""
    people, draws = 6, round(60 * SCALE)
    async with connect(emptied(servers.get("valkey-standalone")).url) as redis:
        room = Room(redis, "random", scripts=clocked)
        clock = Clock(redis, "random", shards if shards > 1 else 0)
        await clock.advance()
        its = LaneSettings(rate=1, burst=1, max_active=1)
        await room.create(Settings(main=its, mode="random", shards=shards))
        chosen: Counter[int] = Counter()
        for draw in range(draws):
            tickets = [await room.join(key=f"{draw}.{i}") for i in range(people)]
            assert (await room.status(str(tickets[0].token))).position is None
            await clock.advance(1000)
            await room.tick()
            await room.tick()
            states = [(await room.heartbeat(str(one.token))).state for one in tickets]
            assert states.count("ready") == 1
            chosen[states.index("ready")] += 1
            await room.reset()
        each = draws / people
        assert sum((chosen[i] - each) ** 2 / each for i in range(people)) < 30  # five degrees of freedom
        found = await check_room(room)
        assert found.ok, found.violations


async def test_room_fair_shards_are_shuffled_together_and_again_after_a_reset(
    redis: Connection, clocked: Scripts
) -> None:
    """One order over all shards: nobody comes in in an earlier round than somebody of an earlier cut."""
    room, clock = Room(redis, "shards", scripts=clocked), Clock(redis, "shards", 3)
    await clock.advance()
    await room.create(Settings(main=LaneSettings(rate=50, burst=50), gather=True, shards=3))
    for turn in range(2):
        tickets = await asyncio.gather(*(room.join(user=f"{turn}.{i}") for i in range(300)))
        assert (await room.tick()).admitted == 0
        await room.start()
        while (await room.stats()).lanes["main"].waiting:
            await room.tick()
            await clock.advance(1000)
            await asyncio.gather(*(room.heartbeat(str(one.token)) for one in tickets))
        seed = await room.seed()
        assert seed is not None
        firsts = [100_000] * 3
        for one in tickets:
            firsts[one.token.shard] = min(firsts[one.token.shard], one.token.ticket - 1)
        lasts = [max(t.token.ticket for t in tickets if t.token.shard == shard) for shard in range(3)]
        commitment = await room.commitment()
        for one in await asyncio.gather(*(room.heartbeat(str(one.token)) for one in tickets[:10])):
            token, shard = one.token, one.token.shard
            for place in (one.place, one.place + 1):
                said = verify_place(
                    seed, commitment, "main", firsts[shard] + 1, lasts[shard], token.ticket, place, shard
                )
                assert said == (place == one.place)
        order = {one: at for at, one in enumerate(draw_all(seed, "main", firsts, lasts))}
        came: dict[int, list[int]] = {}
        for store in await room.shards():
            for entry in await read_audit(redis, store.keys):
                for _, ticket, _ in entry.tickets if entry.what == "admitted" else ():
                    if (store.shard, ticket) in order:
                        came.setdefault(entry.number("round"), []).append(order[store.shard, ticket])
        places = [place for _, those in sorted(came.items()) for place in sorted(those)]
        assert sorted(places) == list(range(300))
        assert all(abs(place - at) < SMALLEST_CUT for at, place in enumerate(places))
        found = await check_room(room)
        assert found.ok, found.violations
        await room.reset()
