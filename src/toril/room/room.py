"""A waiting room: people join, wait, are let in, enter, and leave."""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
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
from toril.room.settings import LaneSettings, Seed, Settings
from toril.room.shuffle import drawn_order, stretches
from toril.room.snapshot import Line, Snapshot
from toril.room.stats import Stats
from toril.room.store import SCRIPTS, Scripts, ShardStore, Tick
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
from toril.room.touching import Toucher

STEPS = 200
"""Tickets that one call of a script handles at most, for each kind of step."""

CALLS = 50
"""Calls of one tick at most."""

ANONYMOUS = "anonymous"
"""The user that everybody is who does not say who they are: no two of them are the same."""

SOONEST_POLL_MS, JITTER = 1000, 0.2


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
        self._stores: list[ShardStore] | None = None
        self._touchers: dict[int, Toucher] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._rng = random.Random()

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
            "generation": secrets.token_hex(8),
        }
        if not await self._hall.configure("create", fields):
            raise RoomExists(f"there is already a room {self.name!r}")

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
        await self._change(LaneSettings(rate=rate, burst=its.burst, max_active=its.max_active).fields(lane))

    async def pause(self) -> None:
        """Let nobody in from now on. People can join, and keep their places."""
        await self._change({"paused": "1"})

    async def resume(self) -> None:
        """Let people in again."""
        await self._change({"paused": "0"})

    async def start(self) -> None:
        """Open a room that gathers: draw the order of those who are there. One that is open stays so."""
        await self._hall.start()

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
        return Stats.read(self.name, now, meta, lanes)

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
        return await self._hall.join(check_lane(lane), new_secret(), known, asked, print_, self.durability)

    async def status(self, token: str) -> Status:
        """How far somebody is. Asking keeps the place, and costs the room nothing."""
        parsed = self._token(token)
        version, now, ticket = await self._toucher(parsed.shard).touch(parsed)
        if ticket is None:
            raise UnknownTicket("the ticket is not known, or ended a while ago")
        return self._status(ticket, now, await self._snapshot(parsed.shard, version))

    async def heartbeat(self, token: str) -> Ticket:
        """Keep the place, and nothing else."""
        parsed = self._token(token)
        _, _, ticket = await self._toucher(parsed.shard).touch(parsed)
        if ticket is None:
            raise UnknownTicket("the ticket is not known, or ended a while ago")
        return ticket

    async def enter(self, token: str) -> Session:
        """Enter, once it was let in. Asked again, the same session comes back: answers get lost."""
        parsed = self._token(token)
        ticket = _known(await self._store(parsed.shard).enter(parsed))
        if ticket.state == "waiting":
            raise NotReady(await self.status(token))
        return self._session(ticket)

    async def renew(self, token: str) -> Session:
        """Stay inside for another session's time."""
        parsed = self._token(token)
        ticket = _known(await self._store(parsed.shard).renew(parsed))
        if ticket.state in ("waiting", "ready"):
            raise NotInside("only who has entered can stay longer")
        return self._session(ticket)

    async def leave(self, token: str) -> Ticket | None:
        """Give a ticket back, from wherever it is; None where it was not known."""
        parsed = self._token(token)
        return await self._store(parsed.shard).leave(parsed)

    async def revoke(self, session: str) -> Ticket:
        """Take a ticket away, by its id without the secret (:attr:`Session.id`)."""
        shard, lane, number = self._number(session)
        return _known(await self._store(shard).revoke(lane, number))

    async def revoke_user(self, user: str) -> Ticket | None:
        """Take away the ticket that a user has; None where the user has none."""
        found = await self._hall.ticket_of(check_id("user", user))
        return None if found is None else await self._hall.revoke(*found)

    async def redeem(self, session: str, by: str) -> Ticket:
        """Use an admission. It is good for one use: by another, it is refused (:class:`AlreadyUsed`).

        ``by`` names the use (an order's number, say). Asked again by the same, it is granted again.
        """
        shard, lane, number = self._number(session)
        ticket = _known(await self._store(shard).redeem(lane, number, check_id("by", by)))
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
        done = await self._hall.admit(STEPS)
        for _ in range(CALLS):
            if done.resetting:
                await self._reset_step()
            elif done.phase == "shuffling":
                await self._shuffle()
            elif not done.more:
                break
            done += await self._hall.admit(STEPS)
        return done

    async def snapshot(self) -> Snapshot | None:
        """The snapshot that was published last."""
        return await self._hall.snapshot()

    # ------------------------------------------------------------------ inside

    async def _meta(self) -> dict[str, str]:
        said = await self.redis.command("HGETALL", self.keys.meta)
        if not said:
            raise NoSuchRoom(f"NOROOM there is no room {self.name!r}")
        return {name.decode(): value.decode() for name, value in zip(said[::2], said[1::2], strict=True)}

    async def _change(self, fields: dict[str, str]) -> None:
        if not await self._hall.configure("change", fields):
            raise NoSuchRoom(f"NOROOM there is no room {self.name!r}")

    async def _reset_step(self) -> int:
        seed = Seed.new()
        phase = "gathering" if (await self.settings()).gather else "open"
        return await self._hall.reset(STEPS, phase, seed.hex, seed.commitment)

    async def _shuffle(self) -> None:
        """Draw the order, and write down what of it is not written down yet."""
        _, meta, lanes = await self._hall.look()
        for lane, (line, _) in lanes.items():
            await self._write_order(check_lane(lane), meta, line)

    async def _write_order(self, lane: Lane, meta: dict[str, str], line: dict[str, int]) -> None:
        sealed, placed = line.get("sealed", 0), line.get("placed", 0)
        first = line.get("first", 0) + 1
        if placed >= sealed:
            return
        order = await asyncio.to_thread(drawn_order, meta["seed"], lane, first, sealed)
        for before, packed in stretches(order[placed - first + 1 :], placed):
            now, _ = await self._hall.place(lane, before, packed)
            if now != before + len(packed) // 4:  # somebody else writes it down as well
                return

    def _store(self, shard: int) -> ShardStore:
        del shard
        return self._hall

    def _toucher(self, shard: int) -> Toucher:
        if shard not in self._touchers:
            self._touchers[shard] = Toucher(self._store(shard))
        return self._touchers[shard]

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

    async def _snapshot(self, shard: int, version: int) -> Snapshot | None:
        """A snapshot at least as new as a version.

        Whoever asks later, wherever, is answered by one that is no older: so a position never grows.
        """
        had = self._snapshots.get(shard)
        if had is None or had.version < version:
            had = await self._store(shard).snapshot()
            if had is not None:
                self._snapshots[shard] = had
        return had

    def _status(self, ticket: Ticket, now: int, snapshot: Snapshot | None) -> Status:
        line = snapshot.lanes[ticket.token.lane] if snapshot else None
        ahead: int | None = None
        exact = False
        if ticket.state != "waiting":
            ahead, exact = -1, True
        elif snapshot is not None and line is not None and snapshot.mode != "random" and ticket.place:
            ahead, exact = line.ahead(ticket.place)
        waiting = line.waiting if line else 0
        eta, known = _eta(ahead if ahead is not None else waiting // 2, line, snapshot)
        if ticket.state != "waiting":
            eta, known = 0, True
        return Status(
            ticket=ticket,
            position=None if ahead is None else ahead + 1,
            exact=exact,
            waiting=waiting,
            eta_ms=eta,
            eta_known=known,
            waited_ms=(ticket.let_in_ms or now) - ticket.joined_ms,
            next_poll_ms=self._next_poll(eta, snapshot),
            mode=snapshot.mode if snapshot else "fifo",
            phase=snapshot.phase if snapshot else "open",
            paused=snapshot.paused if snapshot else False,
        )

    def _next_poll(self, eta: int | None, snapshot: Snapshot | None) -> int:
        """Rarer the farther one is, but often enough to keep the place; never all at the same time."""
        patience = snapshot.patience_ms if snapshot else 4 * SOONEST_POLL_MS
        latest = patience / 4
        wanted = latest if eta is None else min(latest, eta / 8)
        return round(max(min(SOONEST_POLL_MS, latest), wanted) * self._rng.uniform(1 - JITTER, 1 + JITTER))

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


def _eta(ahead: int, line: Line | None, snapshot: Snapshot | None) -> tuple[int | None, bool]:
    """How long it takes until so many were let in, in ms; and whether that was seen, or only set."""
    if line is None or snapshot is None or snapshot.paused or snapshot.mode == "reject":
        return None, False
    if snapshot.phase == "gathering":
        return None, False
    if line.observed > 0:
        return round((ahead + 1) / line.observed * 1000), True
    if line.rate > 0:
        return round((ahead + 1) / line.rate * 1000), False
    return None, False
