"""A waiting room: people join, wait, are let in, enter, and leave."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from toril.connection import Connection, Durability
from toril.connection.durability import Level
from toril.errors import InvalidValue
from toril.keyspace import ROOM_METAS, RoomKeys, room_of
from toril.room.errors import (
    AlreadyUsed,
    NoSuchRoom,
    NotInside,
    NotReady,
    RoomExists,
    TicketOver,
    UnknownTicket,
)
from toril.room.positions import Positions
from toril.room.settings import LaneSettings, Seed, Settings
from toril.room.shards import Rounds
from toril.room.shuffle import write_order
from toril.room.snapshot import Snapshot
from toril.room.stats import Stats
from toril.room.status import status_of
from toril.room.store import SCRIPTS, Newcomer, Scripts, ShardStore, Tick
from toril.room.ticket import (
    Lane,
    Session,
    Status,
    Ticket,
    Token,
    check_id,
    check_lane,
    new_secret,
    parse_session,
)
from toril.room.together import Together

STEPS = 200
"""Tickets that one call of a script handles at most, for each kind of step."""

CALLS = 50
"""Calls of one tick at most."""

CLAIM_LASTS_MS = 24 * 3600 * 1000
"""In a room of several shards: how long it is remembered what was asked with an idempotency key."""

Heard = tuple[int, Ticket | None]
"""The snapshot's version, and a ticket."""

ANONYMOUS = "anonymous"
"""The user that everybody is who does not say who they are: no two of them are the same."""


class Room:
    """One waiting room.

    ::

        room = Room(redis, "evt_2025_1001")
        await room.create(Settings(main=LaneSettings(rate=50, max_active=2000)))
        ticket = await room.join(user="ana", key="6f1c…")
        status = await room.status(str(ticket.token))     # keeps the place
        session = await room.enter(str(ticket.token))     # once status.ready

    Somebody has to let people in: a :class:`Doorkeeper`, in any number of processes.
    """

    def __init__(
        self,
        redis: Connection,
        name: str,
        *,
        durability: Durability | Level = "memory",
        scripts: Scripts = SCRIPTS,
    ) -> None:
        self.redis = redis
        self.name = name
        self.keys = RoomKeys(name)
        self.durability = Durability.of(durability)
        self._scripts = scripts
        self._hall = ShardStore(redis, name, None, scripts)
        self._stores: Sequence[ShardStore] = ()
        self._touches: dict[int, Together[Token, Heard]] = {}
        self._joins: dict[int, Together[Newcomer, Ticket]] = {}
        self._positions = Positions(self._hall)

    def __repr__(self) -> str:
        return f"Room({self.name!r})"

    # ------------------------------------------------------------------ the room itself

    async def create(self, settings: Settings) -> None:
        """Make the room; :class:`RoomExists` where there is one."""
        seed = Seed.new()
        fields = settings.fields() | {
            "phase": "gathering" if settings.gather else "open",
            "paused": "0",
            "seed": seed.hex,
            "commitment": seed.commitment,
        }
        made = await self._hall.configure("create", fields)
        if not made and await self.commitment() != seed.commitment:  # ours, where only the answer was lost
            raise RoomExists(f"there is already a room {self.name!r}")
        await self._tell_shards()

    async def exists(self) -> bool:
        """Whether the room was made."""
        return bool(await self.redis.command("EXISTS", self.keys.meta))

    async def settings(self) -> Settings:
        """The settings as they are."""
        return Settings.read(await self._meta())

    async def configure(self, **changes: Any) -> Settings:
        """Change settings, by the names of :class:`Settings`; the settings as they are then."""
        before = await self.settings()
        after = before.but(**changes)
        had = before.fields()
        if changed := {name: value for name, value in after.fields().items() if had[name] != value}:
            await self._change(changed)
        return after

    async def set_rate(self, rate: float, lane: Lane = "main") -> None:
        """Change the rate of a lane alone, and the burst with it where that has no value of its own."""
        its = (await self.settings()).lane(lane)
        if its is None:
            raise InvalidValue("lane", lane, "one that this room has")
        if its.rate != rate:
            changed = LaneSettings(rate=rate, burst=its.burst, max_active=its.max_active)
            await self._change(changed.fields(lane))

    async def pause(self) -> None:
        """Let nobody in from now on. People can join, and keep their places."""
        await self._change({"paused": "1"})

    async def resume(self) -> None:
        """Let people in again."""
        await self._change({"paused": "0"})

    async def start(self) -> None:
        """Open a room that gathers: draw the order of those who are there. One that is open stays so."""
        await self._hall.start("begin" if len(await self.shards()) > 1 else "")

    async def commitment(self) -> str:
        """SHA-256 of the seed that the order is drawn with."""
        return (await self._meta())["commitment"]

    async def seed(self) -> str | None:
        """The seed itself, once the room has opened; None before."""
        meta = await self._meta()
        return None if meta["phase"] == "gathering" else meta["seed"]

    async def reset(self) -> int:
        """Send everybody away and begin anew, with the same settings; how many were sent away.

        In small steps. If it is cut off, whoever lets people in goes on with it.
        """
        sent = 0
        while ended := await self._reset_step():
            sent += ended
        return sent

    async def stats(self) -> Stats:
        """How the room stands."""
        now, meta, lanes = await self._hall.look()
        stats = Stats.read(self.name, now, meta, lanes)
        if stats.settings.shards == 1:
            return stats
        looks = [await store.look() for store in await self.shards()]
        return stats.with_shards([Stats.read(self.name, *look) for look in looks])

    # ------------------------------------------------------------------ people

    async def join(
        self,
        *,
        user: str | None = None,
        key: str | None = None,
        lane: Lane = "main",
        fingerprint: str | None = None,
    ) -> Ticket:
        """Take a ticket. With the same key, or as the same user, the same ticket comes back.

        ``key`` is an idempotency key: with another request (another user, lane, or ``fingerprint``) it is
        refused (:class:`IdempotencyConflict`). It is remembered for as long as the ticket lives, and for
        :attr:`Settings.remember` after that.
        """
        known = check_id("user", user)
        asked = check_id("key", key)
        if known == ANONYMOUS:
            known = ""
        print_ = fingerprint if fingerprint is not None else _fingerprint(lane, user or "")
        stores = await self.shards()
        shard = _shard_of(known or asked, len(stores))
        if len(stores) > 1 and asked:
            await stores[_shard_of(asked, len(stores))].claim(asked, print_, CLAIM_LASTS_MS)
        return await self._joining(shard, stores[shard]).ask(
            Newcomer(check_lane(lane), new_secret(), known, asked, print_)
        )

    async def status(self, token: str) -> Status:
        """How far somebody is. Asking keeps the place, and costs the room nothing."""
        parsed = self._token(token)
        version, heard = await (await self._touching(parsed.shard)).ask(parsed)
        ticket = _known(heard)
        snapshot = await self._positions.snapshot(await self._store(parsed.shard), version)
        ahead, exact = await self._positions.ahead(ticket, snapshot)
        return status_of(ticket, ahead, exact, snapshot)

    async def heartbeat(self, token: str) -> Ticket:
        """Keep the place, and nothing else."""
        parsed = self._token(token)
        _, heard = await (await self._touching(parsed.shard)).ask(parsed)
        return _known(heard)

    async def enter(self, token: str) -> Session:
        """Enter, once it was let in. Asked again, the same session comes back: answers get lost."""
        parsed = self._token(token)
        ticket = _known(await (await self._store(parsed.shard)).enter(parsed))
        if ticket.state == "waiting":
            raise NotReady(await self.status(token))
        return self._session(ticket)

    async def renew(self, token: str) -> Session:
        """Stay inside for another session's time."""
        parsed = self._token(token)
        ticket = _known(await (await self._store(parsed.shard)).renew(parsed))
        if ticket.state in ("waiting", "ready"):
            raise NotInside("only who has entered can stay longer")
        return self._session(ticket)

    async def leave(self, token: str) -> Ticket | None:
        """Give a ticket back, from wherever it is; None where it was not known."""
        parsed = self._token(token)
        return await (await self._store(parsed.shard)).leave(parsed)

    async def revoke(self, session: str) -> Ticket:
        """Take a ticket away, by its id without the secret (:attr:`Session.id`)."""
        shard, lane, number = self._number(session)
        return _known(await (await self._store(shard)).revoke(lane, number))

    async def revoke_user(self, user: str) -> Ticket | None:
        """Take away the ticket that a user has; None where the user has none."""
        stores = await self.shards()
        store = stores[_shard_of(check_id("user", user), len(stores))]
        found = await store.ticket_of(user)
        return None if found is None else await store.revoke(*found)

    async def redeem(self, session: str, by: str) -> Ticket:
        """Use an admission. It is good for one use: by another, it is refused (:class:`AlreadyUsed`).

        ``by`` names the use (an order's number, say). Asked again by the same, it is granted again.
        """
        shard, lane, number = self._number(session)
        ticket = _known(await (await self._store(shard)).redeem(lane, number, check_id("by", by)))
        if not ticket.live:
            raise TicketOver(ticket.state)
        if ticket.state != "inside":
            raise NotInside("only who has entered can use the admission")
        if ticket.used_by != by:
            raise AlreadyUsed("the admission was used already")
        return ticket

    # ------------------------------------------------------------------ letting people in

    async def tick(self) -> Tick:
        """Let in whoever may come in now, drop ghosts, publish the snapshot.

        Any process may do this, and as often as it likes: no more are let in.
        """
        stores = await self.shards()
        rounds = Rounds(self._hall, stores, STEPS)
        done = Tick()
        for _ in range(CALLS):
            done += await (self._hall.admit(STEPS) if len(stores) == 1 else rounds.once())
            if done.resetting:
                await self._reset_step()
            elif done.phase == "shuffling":
                await (write_order(self._hall) if len(stores) == 1 else rounds.shuffle())
            elif not done.more:
                break
        return done

    async def snapshot(self) -> Snapshot | None:
        """The snapshot that was published last."""
        return await (await self.shards())[0].snapshot()

    # ------------------------------------------------------------------ inside

    async def _meta(self) -> dict[str, str]:
        meta = await self._hall.meta()
        if not meta:
            raise NoSuchRoom(f"NOROOM there is no room {self.name!r}")
        return meta

    async def _change(self, fields: dict[str, str]) -> None:
        if not await self._hall.configure("change", fields):
            raise NoSuchRoom(f"NOROOM there is no room {self.name!r}")
        await self._tell_shards()

    async def _reset_step(self) -> int:
        meta = await self._meta()
        phase = "gathering" if meta["gather"] == "1" else "open"
        stores = await self.shards()
        seed = Seed.new()
        if len(stores) == 1:
            return await self._hall.reset(STEPS, phase, seed.hex, seed.commitment)
        if meta.get("resetting") != "1":  # all shards get the same seed, whoever goes on with it
            meta |= {"resetting": "1", "seed": seed.hex, "commitment": seed.commitment}
            await self._change({name: meta[name] for name in ("resetting", "seed", "commitment")})
        for store in stores:
            if ended := await store.reset(STEPS, phase, meta["seed"], meta["commitment"]):
                return ended
        await self._change({"resetting": "0", "phase": phase})
        return 0

    async def shards(self) -> Sequence[ShardStore]:
        """The stores of its shards; a room of one is its own."""
        if not self._stores:
            count = int((await self._meta())["shards"])
            many = [ShardStore(self.redis, self.name, shard, self._scripts) for shard in range(count)]
            self._stores = many if count > 1 else (self._hall,)
        return self._stores

    async def _tell_shards(self) -> None:
        """Whoever misses this is told by the next round."""
        stores = await self.shards()
        if len(stores) > 1:
            rounds = Rounds(self._hall, stores, STEPS)
            for shard in range(len(stores)):
                await rounds.sync(shard)

    async def _store(self, shard: int) -> ShardStore:
        stores = await self.shards()
        if shard >= len(stores):
            raise UnknownTicket("the room has no such ticket")
        return stores[shard]

    async def _touching(self, shard: int) -> Together[Token, Heard]:
        if shard not in self._touches:
            store = await self._store(shard)

            async def touch(tokens: Sequence[Token]) -> list[Heard]:
                version, tickets = await store.touch(tokens)
                return [(version, ticket) for ticket in tickets]

            self._touches[shard] = Together(touch)
        return self._touches[shard]

    def _joining(self, shard: int, store: ShardStore) -> Together[Newcomer, Ticket]:
        if shard not in self._joins:
            self._joins[shard] = Together(lambda people: store.join(people, self.durability))
        return self._joins[shard]

    def _token(self, text: str) -> Token:
        token = Token.parse(text)
        if token.room != self.name:
            raise UnknownTicket("the token is for another room")
        return token

    def _number(self, session: str) -> tuple[int, Lane, int]:
        room, shard, lane, number = parse_session(session)
        if room != self.name:
            raise UnknownTicket("the session is of another room")
        return shard, lane, number

    def _session(self, ticket: Ticket) -> Session:
        if not ticket.live:
            raise TicketOver(ticket.state)
        return Session(
            id=ticket.token.session,
            room=self.name,
            user=ticket.user,
            lane=ticket.token.lane,
            entered_ms=ticket.entered_ms,
            expires_ms=ticket.ends_ms,
            ttl_ms=ticket.ends_ms - ticket.now_ms,
            used_by=ticket.used_by,
        )


async def room_names(redis: Connection) -> list[str]:
    """The rooms there are."""
    found = {name async for key in redis.scan(ROOM_METAS) if (name := room_of(key)) is not None}
    return sorted(found)


def _known(ticket: Ticket | None) -> Ticket:
    if ticket is None:
        raise UnknownTicket("the ticket is not known, or ended a while ago")
    return ticket


def _shard_of(what: str, shards: int) -> int:
    """The shard that somebody joins: the same for the same user, or the same key; any for nobody."""
    if shards == 1:
        return 0
    if not what:
        return random.randrange(shards)
    return int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big") % shards


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
