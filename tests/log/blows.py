"""What goes wrong while a promise is being tested."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from tests.conftest import SCALE
from toril.keyspace import Key
from toril.testing import Cluster, Server

STORM = 5 * SCALE
"""Seconds for which things go wrong."""

Blow = Callable[[], Awaitable[object]]


async def storm(rng: random.Random, blows: list[Blow], *, seconds: float = STORM) -> int:
    """Do these again and again, in an order of chance, each at least once; how many that were."""
    until = time.monotonic() + seconds
    dealt = 0
    while dealt < len(blows) or time.monotonic() < until:
        if dealt % len(blows) == 0:
            rng.shuffle(blows)
        await asyncio.sleep(rng.uniform(0.1, 0.4))
        await blows[dealt % len(blows)]()
        dealt += 1
    return dealt


async def cut(server: Server) -> None:
    """Cut all connections of clients: the answers on their way are lost."""
    await asyncio.to_thread(server.ask, "CLIENT", "KILL", "TYPE", "normal")


class Hurt:
    """Ways to hurt the part of a cluster that has one of some keys."""

    REST = 8.0
    """Seconds before one that was elected is asked to take over again.

    Asked earlier, Redis 7.0 takes the votes of its last election for those of a new one: it takes over
    under an epoch that is out of date, is not heard, and what it is sent meanwhile is lost.
    """

    def __init__(self, nodes: Cluster, keys: Sequence[Key], rng: random.Random) -> None:
        self.nodes = nodes
        self.keys = keys
        self.rng = rng
        self.failovers = self.moves = self.deaths = 0
        self._elected: dict[Server, float] = {}

    def _pick(self) -> tuple[Key, Server]:
        self.nodes.wait_until_whole()
        key = self.rng.choice(self.keys)
        return key, self.nodes.primary_of(key)

    async def cut(self) -> None:
        """Cut the connections of clients."""
        await cut(self.nodes.primary_of(self.rng.choice(self.keys)))

    async def fail_over(self) -> None:
        """A coordinated failover, where one may be asked for."""
        await asyncio.to_thread(self._fail_over)

    def _fail_over(self) -> None:
        _, primary = self._pick()
        waiting = self.nodes.replicas_of(primary)
        if waiting and time.monotonic() - self._elected.get(waiting[0], -self.REST) > self.REST:
            elected = self.nodes.fail_over(primary)
            self._elected[elected] = time.monotonic()
            self.failovers += 1

    async def move(self) -> None:
        """Give a slot to another server while it is in use."""
        await asyncio.to_thread(self._move)

    def _move(self) -> None:
        key, primary = self._pick()
        others = sorted(
            {each for each in self.nodes.primaries() if each is not primary},
            key=lambda each: each.address.port,
        )
        assert key.slot is not None
        self.nodes.move_slot(key.slot, self.rng.choice(others))
        self.moves += 1

    async def die(self) -> None:
        """Kill a master; it comes back as a replica of the one elected."""
        await asyncio.to_thread(self._die)

    def _die(self) -> None:
        _, primary = self._pick()
        self.nodes.kill(primary)
        primary.start()
        self.nodes.wait_until_whole()
        self.deaths += 1
