"""A room over several shards, on a cluster that changes under it: it is fair, and nobody is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tests.conftest import SCALE
from tests.room.forgetful import within_budget
from tests.waiting import until
from toril import Connection, Durability, connect
from toril.connection import DurabilityNotReached, OutcomeUnknown, Unavailable
from toril.room import (
    AlreadyUsed,
    Doorkeeper,
    LaneSettings,
    NotInside,
    NotReady,
    Room,
    Settings,
    TicketOver,
    UnknownTicket,
    check_room,
)
from toril.testing import Cluster, cluster

T = TypeVar("T")

RATE, BURST, MOST, SHARDS = 100, 10, 12, 4
PEOPLE = round(250 * SCALE)
NAME = "storm"


async def for_sure(call: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer: each call may be made again."""
    while True:
        try:
            return await call()
        except (Unavailable, OutcomeUnknown, DurabilityNotReached):
            await asyncio.sleep(0.05)


class Sale:
    """A crowd, and what was promised to it."""

    def __init__(self, url: str, rng: random.Random, durability: Durability) -> None:
        self.url = url
        self.rng = rng
        self.durability = durability
        self.let_in_us: list[int] = []
        self.inside: set[str] = set()
        self.most_inside = 0
        self.bought: set[str] = set()
        self.forgotten = 0

    async def person(self, room: Room, user: str) -> None:
        """Joins, waits, goes in, buys, leaves; and begins anew where it is not known any more."""
        while True:
            try:
                return await self.buy(room, user)
            except (UnknownTicket, TicketOver, NotInside):
                self.forgotten += 1
                self.inside.discard(user)

    async def buy(self, room: Room, user: str) -> None:
        ticket = await for_sure(lambda: room.join(user=user, key=f"key of {user}"))
        token = str(ticket.token)
        while True:
            status = await for_sure(lambda: room.status(token))
            if not status.ready:
                await asyncio.sleep(self.rng.uniform(0.05, 0.15))
                continue
            with suppress(NotReady):
                session = await for_sure(lambda: room.enter(token))
                break
        self.inside.add(user)
        self.most_inside = max(self.most_inside, len(self.inside))
        by = f"order of {user}"
        used = await for_sure(lambda: room.redeem(session.id, by, entered=session.entered_ms // 1000))
        await asyncio.sleep(self.rng.uniform(0, 0.1))
        again = await for_sure(lambda: room.enter(token))
        same = (again.id, again.entered_ms, again.used_by) == (session.id, session.entered_ms, by)
        assert same or self.durability.level == "memory", (session, again)
        with suppress(AlreadyUsed):
            await for_sure(lambda: room.redeem(session.id, "another"))
            assert self.durability.level == "memory", "it was used twice"
        self.inside.discard(user)
        await for_sure(lambda: room.leave(token))
        self.let_in_us.append(used.let_in_ms * 1000)
        assert user not in self.bought
        self.bought.add(user)

    async def run(self, strikes: Callable[[Room], Awaitable[None]]) -> Room:
        """The sale, and what strikes when a third of it is done."""
        async with AsyncExitStack() as stack:
            lines: list[Connection] = [await stack.enter_async_context(connect(self.url)) for _ in range(3)]
            rooms = [Room(redis, NAME, durability=self.durability) for redis in lines]
            its = LaneSettings(rate=RATE, burst=BURST, max_active=MOST)
            await rooms[0].create(Settings(main=its, shards=SHARDS))
            for room in rooms[1:]:
                await stack.enter_async_context(Doorkeeper(room, every=0.02))
            async with asyncio.TaskGroup() as people:
                for n in range(PEOPLE):
                    people.create_task(self.person(self.rng.choice(rooms), f"u{n}"))
                await until(lambda: len(self.bought) > PEOPLE // 3, 60)
                await strikes(rooms[0])
            assert len(self.bought) == PEOPLE
            await self.check(rooms[0])
            return rooms[0]

    async def check(self, room: Room) -> None:
        found = await check_room(room)
        assert found.ok, found.violations
        assert self.most_inside <= MOST
        assert within_budget(self.let_in_us, RATE, BURST, slack=RATE / 1000 + 1e-6)  # times are whole ms
        if not self.forgotten:
            lane = (await room.stats()).lanes["main"]
            assert (lane.joined, lane.waiting, lane.active) == (PEOPLE, 0, 0)


async def parts(room: Room) -> list[str]:
    return [room.keys.meta, *(store.keys.meta for store in await room.shards())]


@pytest.mark.timeout(120 + 60 * SCALE)
async def test_room_fair_through_a_coordinated_failover(binary: Path | None, rng: random.Random) -> None:
    """Of the room itself, and of a shard: nothing is forgotten."""
    with cluster(binary=binary) as nodes:

        async def fail_over(room: Room) -> None:
            hall, *shards = await parts(room)
            first = nodes.primary_of(hall)
            await asyncio.to_thread(nodes.fail_over, first)
            elsewhere = [key for key in shards if nodes.primary_of(key) is not nodes.primary_of(hall)]
            await asyncio.to_thread(nodes.fail_over, nodes.primary_of(rng.choice(elsewhere)))

        sale = Sale(nodes.url, rng, Durability("memory"))
        await sale.run(fail_over)
        assert not sale.forgotten


@pytest.mark.timeout(120 + 60 * SCALE)
async def test_room_fair_while_slots_are_moved(binary: Path | None, rng: random.Random) -> None:
    """The room's own slot and those of shards go to other servers, ten keys at a time, during rounds."""
    with cluster(masters=3, replicas=0, binary=binary) as nodes:

        async def move(room: Room) -> None:
            for key in [room.keys, *rng.sample([store.keys for store in await room.shards()], 2)]:
                assert key.slot is not None
                others = [each for each in nodes.servers if each is not nodes.primary_of(key.slot)]
                await asyncio.to_thread(nodes.move_slot, key.slot, rng.choice(others))

        sale = Sale(nodes.url, rng, Durability("memory"))
        await sale.run(move)
        assert not sale.forgotten


@pytest.mark.timeout(180 + 90 * SCALE)
@pytest.mark.parametrize("level", ["memory", "replicated"])
@pytest.mark.parametrize("whose", ["room", "shard"])
async def test_room_fair_when_a_master_is_killed(
    binary: Path | None, rng: random.Random, level: str, whose: str
) -> None:
    """What was answered under ``replicated`` stays; under ``memory``, some may have to come again."""
    with cluster(binary=binary) as nodes:

        async def kill(room: Room) -> None:
            hall, *shards = await parts(room)
            elsewhere = [key for key in shards if nodes.primary_of(key) is not nodes.primary_of(hall)]
            await asyncio.to_thread(_kill, nodes, hall if whose == "room" else rng.choice(elsewhere))

        durability = Durability("memory") if level == "memory" else Durability("replicated", timeout=1.0)
        sale = Sale(nodes.url, rng, durability)
        await sale.run(kill)
        assert level == "memory" or not sale.forgotten


def _kill(nodes: Cluster, key: str) -> None:
    master = nodes.primary_of(key)
    nodes.kill(master)
    master.start()  # it comes back, as a replica of the one elected
    nodes.wait_until_whole()
