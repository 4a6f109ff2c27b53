"""A waiting room: people join, wait, are let in, enter, and leave."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from toril.connection import Connection, Durability
from toril.connection.durability import Level
from toril.errors import InvalidValue
from toril.keyspace import ROOM_METAS, RoomKeys, room_of
from toril.room.errors import (
    AlreadyUsed,
    NotInside,
    NotReady,
    RoomExists,
    TicketOver,
    UnknownTicket,
)
from toril.room.parts import STEPS, Parts
from toril.room.positions import Positions
from toril.room.settings import LaneSettings, Seed, Settings
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

CALLS = 50
"""Calls of one tick at most."""

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
        self._parts = Parts(redis, name, Durability.of(durability), scripts)
        self._hall = self._parts.hall
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
        await self._parts.tell_shards()

    async def exists(self) -> bool:
        """Whether the room was made."""
        return bool(await self.redis.command("EXISTS", self.keys.meta))

    async def settings(self) -> Settings:
        """The settings as they are."""
        return Settings.read(await self._parts.meta())

    async def configure(self, **changes: Any) -> Settings:
        """Change settings, by the names of :class:`Settings`; the settings as they are then."""
        before = await self.settings()
        after = before.but(**changes)
        had = before.fields()
        if changed := {name: value for name, value in after.fields().items() if had[name] != value}:
            await self._parts.change(changed)
        return after

    async def set_rate(self, rate: float, lane: Lane = "main") -> None:
        """Change the rate of a lane alone, and the burst with it where that has no value of its own."""
        its = (await self.settings()).lane(lane)
        if its is None:
            raise InvalidValue("lane", lane, "one that this room has")
        if its.rate != rate:
            changed = LaneSettings(rate=rate, burst=its.burst, max_active=its.max_active)
            await self._parts.change(changed.fields(lane))

    async def pause(self) -> None:
        """Let nobody in from now on. People can join, and keep their places."""
        await self._parts.change({"paused": "1"})

    async def resume(self) -> None:
        """Let people in again."""
        await self._parts.change({"paused": "0"})

    async def start(self) -> None:
        """Open a room that gathers: draw the order of those who are there. One that is open stays so."""
        await self._hall.start("begin" if len(await self._parts.shards()) > 1 else "")

    async def commitment(self) -> str:
        """SHA-256 of the seed that the order is drawn with."""
        return (await self._parts.meta())["commitment"]

    async def seed(self) -> str | None:
        """The seed itself, once the room has opened; None before."""
        meta = await self._parts.meta()
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
        looks = [await store.look() for store in await self._parts.shards()]
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
        if fingerprint is None:
            fingerprint = _fingerprint(lane, user or "") if asked else ""
        return await self._parts.join(Newcomer(check_lane(lane), new_secret(), known, asked, fingerprint))

    async def status(self, token: str) -> Status:
        """How far somebody is. Asking keeps the place, and costs the room nothing."""
        parsed = self._token(token)
        version, heard = await self._parts.touch(parsed)
        ticket = _known(heard)
        snapshot = await self._positions.snapshot(await self._parts.store(parsed.shard), version)
        ahead, exact = await self._positions.ahead(ticket, snapshot)
        return status_of(ticket, ahead, exact, snapshot)

    async def heartbeat(self, token: str) -> Ticket:
        """Keep the place, and nothing else."""
        parsed = self._token(token)
        _, heard = await self._parts.touch(parsed)
        return _known(heard)

    async def enter(self, token: str) -> Session:
        """Enter, once it was let in. Asked again, the same session comes back: answers get lost."""
        parsed = self._token(token)
        ticket = _known(await (await self._parts.store(parsed.shard)).enter(parsed))
        await self._parts.keep_keys(ticket)
        if ticket.state == "waiting":
            raise NotReady(await self.status(token))
        return self._session(ticket)

    async def renew(self, token: str) -> Session:
        """Stay inside for another session's time."""
        parsed = self._token(token)
        ticket = _known(await (await self._parts.store(parsed.shard)).renew(parsed))
        await self._parts.keep_keys(ticket)
        if ticket.state in ("waiting", "ready"):
            raise NotInside("only who has entered can stay longer")
        return self._session(ticket)

    async def leave(self, token: str) -> Ticket | None:
        """Give a ticket back, from wherever it is; None where it was not known."""
        parsed = self._token(token)
        return await (await self._parts.store(parsed.shard)).leave(parsed)

    async def revoke(self, session: str) -> Ticket:
        """Take a ticket away, by its id without the secret (:attr:`Session.id`)."""
        shard, lane, number = self._number(session)
        return _known(await (await self._parts.store(shard)).revoke(lane, number))

    async def revoke_user(self, user: str) -> Ticket | None:
        """Take away the ticket that a user has; None where the user has none."""
        store = await self._parts.store_of(check_id("user", user))
        found = await store.ticket_of(user)
        return None if found is None else await store.revoke(*found)

    async def redeem(self, session: str, by: str, *, entered: int | None = None) -> Ticket:
        """Use an admission. It is good for one use: by another, it is refused (:class:`AlreadyUsed`).

        ``by`` names the use (an order's number, say). Asked again by the same, it is granted again.
        ``entered`` is when it was entered, in seconds since 1970, as an admission token says
        (:attr:`Admitted.issued`): where a server died and forgot the ticket, its number may be another's.
        """
        shard, lane, number = self._number(session)
        store = await self._parts.store(shard)
        ticket = _known(await store.redeem(lane, number, check_id("by", by), entered))
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
        stores = await self._parts.shards()
        rounds = await self._parts.rounds()
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
        return await (await self._parts.shards())[0].snapshot()

    async def shards(self) -> Sequence[ShardStore]:
        """The stores of its shards; a room of one is its own."""
        return await self._parts.shards()

    # ------------------------------------------------------------------ inside

    async def _reset_step(self) -> int:
        meta = await self._parts.meta()
        phase = "gathering" if meta["gather"] == "1" else "open"
        stores = await self._parts.shards()
        seed = Seed.new()
        if len(stores) == 1:
            return await self._hall.reset(STEPS, phase, seed.hex, seed.commitment)
        if meta.get("resetting") != "1":  # all shards get the same seed, whoever goes on with it
            meta |= {"resetting": "1", "seed": seed.hex, "commitment": seed.commitment}
            await self._parts.change({name: meta[name] for name in ("resetting", "seed", "commitment")})
        for store in stores:
            if ended := await store.reset(STEPS, phase, meta["seed"], meta["commitment"]):
                return ended
        await self._parts.change({"resetting": "0", "phase": phase})
        return 0

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


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
