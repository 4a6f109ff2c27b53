"""What a room is made of: its own keys, those of its shards, and how calls get there."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Mapping, Sequence

from toril.connection import Connection, Durability
from toril.room.errors import NoSuchRoom, UnknownTicket
from toril.room.shards import Rounds
from toril.room.store import Newcomer, Scripts, ShardStore
from toril.room.ticket import Ticket, Token
from toril.room.together import Together

STEPS = 200
"""Tickets that one call of a script handles at most, for each kind of step."""

SPARE_MS = 3600 * 1000
"""In a room of several shards an idempotency key is claimed for so long beyond what is needed: of a ticket
that lives for longer, it is claimed anew about so often."""

FRESH = 10.0
"""Seconds for which the settings that say how long that is are taken as read."""

Heard = tuple[int, Ticket | None]
"""The snapshot's version, and a ticket."""


class Parts:
    """The stores of a room. A room of one shard is its own shard."""

    def __init__(self, redis: Connection, name: str, durability: Durability, scripts: Scripts) -> None:
        self.redis = redis
        self.name = name
        self.durability = durability
        self.hall = ShardStore(redis, name, None, scripts, durability)
        """What all shards have in common: settings, budget, order."""
        self._scripts = scripts
        self._stores: Sequence[ShardStore] = ()
        self._touches: dict[int, Together[Token, Heard]] = {}
        self._joins: dict[int, Together[Newcomer, Ticket]] = {}
        self._claim = 0
        self._claim_read = -math.inf

    async def meta(self) -> dict[str, str]:
        """What is written down of the settings."""
        meta = await self.hall.meta()
        if not meta:
            raise NoSuchRoom(f"NOROOM there is no room {self.name!r}")
        return meta

    async def change(self, fields: Mapping[str, str]) -> None:
        """Change what is written down of the settings."""
        if not await self.hall.configure("change", fields):
            raise NoSuchRoom(f"NOROOM there is no room {self.name!r}")
        await self.tell_shards()

    async def shards(self) -> Sequence[ShardStore]:
        """The stores of the shards."""
        if not self._stores:
            count = int((await self.meta())["shards"])
            many = [
                ShardStore(self.redis, self.name, shard, self._scripts, self.durability)
                for shard in range(count)
            ]
            self._stores = many if count > 1 else (self.hall,)
        return self._stores

    async def rounds(self) -> Rounds:
        """How people are let into a room of several shards."""
        return Rounds(self.hall, await self.shards(), STEPS)

    async def tell_shards(self) -> None:
        """Give the shards the settings. One that is missed is told by the next round, or the next join."""
        stores = await self.shards()
        if len(stores) > 1:
            rounds = await self.rounds()
            for shard in range(len(stores)):
                await rounds.sync(shard)

    async def store(self, shard: int) -> ShardStore:
        """The store that has the tickets of a shard."""
        stores = await self.shards()
        if shard >= len(stores):
            raise UnknownTicket("the room has no such ticket")
        return stores[shard]

    async def store_of(self, user: str) -> ShardStore:
        """The store that has a user's ticket, if anyone has."""
        return (await self.shards())[await self._shard_of(user)]

    async def touch(self, token: Token) -> Heard:
        """Hear of somebody, together with others."""
        if token.shard not in self._touches:
            store = await self.store(token.shard)

            async def touch(tokens: Sequence[Token]) -> list[Heard]:
                version, tickets = await store.touch(tokens)
                return [(version, ticket) for ticket in tickets]

            self._touches[token.shard] = Together(touch)
        version, ticket = await self._touches[token.shard].ask(token)
        if ticket is not None:
            await self.keep_keys(ticket)
        return version, ticket

    async def keep_keys(self, ticket: Ticket) -> None:
        """Keep the idempotency keys of a ticket claimed for as long as it lives, and is remembered."""
        if not ticket.due:
            return
        stores, lasts = await self.shards(), await self._claim_ms()
        own = stores[ticket.token.shard]
        for key in ticket.due:
            if (fingerprint := await own.fingerprint_of(key)) is not None:
                await stores[await self._shard_of(key)].claim_again(key, fingerprint, lasts)
        await own.note_claims(ticket, lasts)

    async def _claim_ms(self) -> int:
        """For how long a key is claimed: longer than a ticket can live with nothing heard of it."""
        if self._claim_read + FRESH < time.monotonic():
            meta = await self.meta()
            needed = sum(int(meta[name]) for name in ("patience", "enter", "session", "remember"))
            self._claim, self._claim_read = needed + SPARE_MS, time.monotonic()
        return self._claim

    async def join(self, newcomer: Newcomer) -> Ticket:
        """Give somebody a ticket, together with others: in the shard that the user, or the key, leads to."""
        stores = await self.shards()
        if len(stores) > 1 and newcomer.key:
            # The ticket is where the user leads to. That the key is not used for two requests is seen to
            # where the key leads to.
            claiming, lasts = stores[await self._shard_of(newcomer.key)], await self._claim_ms()
            await claiming.claim(newcomer.key, newcomer.fingerprint, lasts)
            newcomer = newcomer._replace(claimed_ms=lasts)
        shard = await self._shard_of(newcomer.user or newcomer.key)
        try:
            return await self._joining(stores[shard]).ask(newcomer)
        except NoSuchRoom:
            if len(stores) == 1:
                raise
            await self.tell_shards()  # whoever made the room did not get that far
            return await self._joining(stores[shard]).ask(newcomer)

    def _joining(self, store: ShardStore) -> Together[Newcomer, Ticket]:
        if store.shard not in self._joins:
            self._joins[store.shard] = Together(store.join)
        return self._joins[store.shard]

    async def _shard_of(self, what: str) -> int:
        """The same shard for the same user, or the same key; any shard for nobody."""
        shards = len(await self.shards())
        if shards == 1:
            return 0
        if not what:
            return random.randrange(shards)
        return int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big") % shards
