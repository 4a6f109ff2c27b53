"""The one door to the state of a room, or of one of its shards: each method is one script, or one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from toril.connection import Connection, Durability, Script, load_script
from toril.connection.durability import Level
from toril.connection.errors import CommandRefused
from toril.connection.wire import Argument
from toril.keyspace import RoomKeys
from toril.room.errors import IdempotencyConflict, NoSuchLane, NoSuchRoom, RoomClosed, RoomFull, RoundOver
from toril.room.snapshot import Snapshot
from toril.room.ticket import Lane, Ticket, Token

_ERRORS: Mapping[str, type[CommandRefused]] = {
    "NOROOM": NoSuchRoom,
    "NOLANE": NoSuchLane,
    "CLOSED": RoomClosed,
    "FULL": RoomFull,
    "CONFLICT": IdempotencyConflict,
    "OLDROUND": RoundOver,
}


class Newcomer(NamedTuple):
    """Somebody who joins."""

    lane: Lane
    secret: str
    """For a new ticket."""
    user: str
    """Empty where nobody says who it is; and so is the key."""
    key: str
    fingerprint: str
    """Of what was asked with the key."""
    claimed_ms: int = 0
    """For how long the key is claimed where it leads to, in a room of several shards."""


class Scripts:
    """The scripts of this room: Toril's own, or others from a folder."""

    def __init__(self, folder: Traversable | None = None) -> None:
        def load(verb: str) -> Script:
            return load_script(f"room/{verb}", folder, errors=_ERRORS)

        self.join, self.touch, self.enter, self.renew = map(load, ("join", "touch", "enter", "renew"))
        self.leave, self.redeem, self.admit, self.start = map(load, ("leave", "redeem", "admit", "start"))
        self.place, self.configure, self.stats, self.reset = map(
            load, ("place", "configure", "stats", "reset")
        )
        self.allot, self.serve, self.settle, self.publish = map(load, ("allot", "serve", "settle", "publish"))
        self.cut, self.cuts = map(load, ("cut", "cuts"))
        self.inspect, self.inspect_active = map(load, ("inspect", "inspect_active"))


SCRIPTS = Scripts()


@dataclass(frozen=True, slots=True)
class Tick:
    """What one step of admission did."""

    admitted: int = 0
    ghosts: int = 0
    """Dropped, because nothing was heard of them."""
    ended: int = 0
    """Admissions whose time was over."""
    more: bool = False
    """Whether there is more to do at once."""
    version: int = 0
    """Of the snapshot."""
    phase: str = "open"
    resetting: bool = False

    def __add__(self, other: Tick) -> Tick:
        return Tick(
            self.admitted + other.admitted,
            self.ghosts + other.ghosts,
            self.ended + other.ended,
            other.more,
            other.version,
            other.phase,
            other.resetting,
        )


class ShardStore:
    """See the module's text."""

    __slots__ = ("_durability", "_redis", "_scripts", "keys", "room", "shard")

    def __init__(
        self,
        redis: Connection,
        room: str,
        shard: int | None = None,
        scripts: Scripts = SCRIPTS,
        durability: Durability | Level = "memory",
    ) -> None:
        self._redis = redis
        self._scripts = scripts
        self._durability = Durability.of(durability)
        self.room = room
        self.shard = shard or 0
        self.keys = RoomKeys(room, shard)

    async def _run(self, script: Script, *args: Argument, **how: Any) -> Any:
        return await self._redis.run(script, self.keys, *args, **how)

    async def _accept(self, script: Script, *args: Argument) -> Any:
        """What is said to be done must be as durable as was asked for."""
        return await self._run(script, *args, durability=self._durability, repeatable=True)

    def _ticket(self, said: Sequence[bytes] | None, *, repeated: bool = False) -> Ticket | None:
        return None if said is None else Ticket.read(self.room, self.shard, said, repeated=repeated)

    async def join(self, people: Sequence[Newcomer]) -> list[Ticket | Exception]:
        """Tickets, new or those there were; or why there is none."""
        # A repeat finds the first ticket by its key or its user. Where there is neither, a repeat after a
        # lost answer leaves a ticket that nobody asks for: a ghost.
        args = [part for one in people for part in one]
        said = await self._accept(self._scripts.join, *args)
        return [self._joined(one) for one in said]

    def _joined(self, said: bytes | tuple[int, Sequence[bytes]]) -> Ticket | Exception:
        if isinstance(said, bytes):
            text = said.decode()
            return _ERRORS[text.split(" ", 1)[0]](text)
        new, ticket = said
        return Ticket.read(self.room, self.shard, ticket, repeated=new == 0)

    async def touch(self, tokens: Sequence[Token]) -> tuple[int, list[Ticket | None]]:
        """The snapshot's version, and the tickets; None for those that are not known."""
        args = [part for token in tokens for part in (token.lane, token.ticket, token.secret)]
        version, *said = await self._run(self._scripts.touch, *args, repeatable=True)
        return int(version), [self._ticket(one) for one in said]

    async def enter(self, token: Token) -> Ticket | None:
        """Enter, where it was let in; the ticket as it is then."""
        return self._ticket(await self._accept(self._scripts.enter, token.lane, token.ticket, token.secret))

    async def renew(self, token: Token) -> Ticket | None:
        """Stay longer, where it has entered; the ticket as it is then."""
        return self._ticket(await self._accept(self._scripts.renew, token.lane, token.ticket, token.secret))

    async def leave(self, token: Token) -> Ticket | None:
        """Give a ticket back; the ticket as it is then."""
        args = (token.lane, token.ticket, token.secret, "left")
        return self._ticket(await self._accept(self._scripts.leave, *args))

    async def revoke(self, lane: Lane, ticket: int) -> Ticket | None:
        """Take a ticket away; the ticket as it is then."""
        return self._ticket(await self._accept(self._scripts.leave, lane, ticket, "", "revoked"))

    async def redeem(self, lane: Lane, ticket: int, by: str, entered: int | None) -> Ticket | None:
        """Use an admission, where nobody has; the ticket as it is then."""
        when = "" if entered is None else entered
        return self._ticket(await self._accept(self._scripts.redeem, lane, ticket, by, when))

    async def ticket_of(self, user: str) -> tuple[Lane, int] | None:
        """The ticket that a user has."""
        said = await self._redis.command("GET", self.keys.user(user))
        if said is None:
            return None
        lane, number = said.decode().split(" ")
        return ("vip" if lane == "vip" else "main"), int(number)

    async def admit(self, steps: int) -> Tick:
        """One step of admission."""
        admitted, ghosts, ended, more, version, phase, resetting = await self._run(
            self._scripts.admit, steps, repeatable=True
        )
        return Tick(admitted, ghosts, ended, bool(more), version, phase.decode(), bool(resetting))

    async def start(self, which: str = "", version: str = "") -> str:
        """Open a room that gathers; the phase it is in then. See ``lua/room/start.lua``."""
        phase: bytes = await self._accept(self._scripts.start, which, version)
        return phase.decode()

    async def place(self, lane: Lane, placed: int, packed: bytes) -> tuple[int, int]:
        """Write down a part of the shuffled order; places that are written down, and places there are."""
        now, of = await self._run(self._scripts.place, lane, placed, packed, repeatable=True)
        return int(now), int(of)

    async def configure(self, how: str, fields: Mapping[str, str], outdo: int = 0) -> int:
        """Make a room (``create``) or change it (``change``); its version, or 0 where that was not so.

        The version is larger than any before, and than one that is to be outdone.
        """
        args = [part for pair in fields.items() for part in pair]
        version: int = await self._accept(self._scripts.configure, how, outdo, "", *args)
        return version

    async def put(self, version: int, phase: str, fields: Mapping[str, str]) -> int:
        """Give a shard the settings of its room, unless it has newer ones; the version that it has then."""
        args = [part for pair in fields.items() for part in pair]
        has: int = await self._accept(self._scripts.configure, "put", version, phase, *args)
        return has

    async def reset(self, steps: int, phase: str, seed: str, commitment: str) -> int:
        """One step of sending everybody away; how many went, 0 when it is done."""
        ended: int = await self._run(self._scripts.reset, steps, phase, seed, commitment, repeatable=True)
        return ended

    async def look(self) -> tuple[int, dict[str, str], dict[str, tuple[dict[str, int], int]]]:
        """The time, the settings, and for each lane its counters and how many are inside."""
        now, meta, *lanes = await self._run(self._scripts.stats)
        if not meta:
            raise NoSuchRoom(f"NOROOM there is no room {self.room!r}")
        lines = {}
        for lane, line, active in lanes:
            numbers = {name: int(value) for name, value in _pairs(line).items() if value.isdigit()}
            lines[lane.decode()] = (numbers, int(active))
        return int(now), {name: value.decode() for name, value in _pairs(meta).items()}, lines

    async def fingerprint_of(self, key: str) -> str | None:
        """What was asked with the idempotency key of a ticket here; None where that is not known."""
        said = await self._redis.command("GET", self.keys.asked(key))
        return None if said is None else said.decode().split(" ", 2)[2]

    async def claim_again(self, key: str, fingerprint: str, lasts_ms: int) -> None:
        """Remember for longer what was asked with an idempotency key, or anew where it was forgotten."""
        claimed = self.keys.claimed(key)
        await self._redis.command("SET", claimed, fingerprint, "PX", lasts_ms, repeatable=True)

    async def note_claims(self, ticket: Ticket, lasts_ms: int) -> None:
        """Write down until when the keys of a ticket are claimed."""
        key = self.keys.ticket(f"{ticket.token.lane}:{ticket.token.ticket}")
        await self._redis.command("HSET", key, "c", ticket.now_ms + lasts_ms, repeatable=True)

    async def claim(self, key: str, fingerprint: str, lasts_ms: int) -> None:
        """Remember what was asked with an idempotency key, wherever its ticket is."""
        said = await self._redis.command(
            "SET", self.keys.claimed(key), fingerprint, "NX", "GET", "PX", lasts_ms, repeatable=True
        )
        if said not in (None, fingerprint.encode()):
            raise IdempotencyConflict("CONFLICT this idempotency key was used for another request")

    # ------------------------------------------------------------------ for the checker

    async def inspect(self, lane: Lane, stretch: int | None = None) -> list[tuple[str, str]]:
        """What is wrong with a stretch, or with the sums of a lane: the promise, and what."""
        said = await self._run(self._scripts.inspect, lane, "" if stretch is None else stretch)
        return _texts(said)

    async def inspect_active(self, lane: Lane, first: int, count: int) -> tuple[int, list[tuple[str, str]]]:
        """How many were there of those who were let in, and what is wrong with them."""
        there, *said = await self._run(self._scripts.inspect_active, lane, first, count)
        return int(there), _texts(said)

    async def longest_silence(self, lane: Lane) -> int | None:
        """When whoever waits and was silent for the longest was last heard of (ms)."""
        found = await self._redis.command("ZRANGE", self.keys.seen(lane), 0, 0, "WITHSCORES")
        return int(float(found[1])) if found else None

    # ------------------------------------------------------------------ rounds: see shards.py

    async def allot(self, steps: int, done: tuple[int, str] = (0, "")) -> Any:
        """Begin a round, or hear of the one that is open; ``done`` is what a shard says it has done."""
        return await self._accept(self._scripts.allot, steps, *done)

    async def serve(self, *args: Argument) -> Any:
        """Do a shard's part of a round; None where the shard has other settings."""
        return await self._run(self._scripts.serve, *args, repeatable=True)

    async def settle(self, *args: Argument) -> Any:
        """End a round."""
        return await self._run(self._scripts.settle, *args, repeatable=True)

    async def publish(self, version: int, fields: Mapping[str, Argument]) -> None:
        """Publish the snapshot of the whole room in a shard."""
        args = [part for pair in fields.items() for part in pair]
        await self._run(self._scripts.publish, version, *args, repeatable=True)

    async def write_cuts(self, lane: Lane, cuts: Sequence[str]) -> None:
        """Write down the cuts of a shuffled order, where there are none."""
        await self._run(self._scripts.cut, lane, *cuts, repeatable=True)

    async def cuts(self, lane: Lane, known: int) -> tuple[int, list[tuple[int, ...]]]:
        """How many cuts were before the first that is told, and the cuts from there on."""
        before, said = await self._run(self._scripts.cuts, lane, known)
        return int(before), [tuple(map(int, cut.split())) for cut in said]

    async def meta(self) -> dict[str, str]:
        """All that is written down of the settings; empty where there is no room."""
        said = await self._redis.command("HGETALL", self.keys.meta)
        return {name: value.decode() for name, value in _pairs(said).items()}

    async def snapshot(self) -> Snapshot | None:
        """The snapshot that was published last; None where none was yet."""
        said = await self._redis.command("HGETALL", self.keys.snapshot)
        return Snapshot.read(dict(zip(said[::2], said[1::2], strict=True))) if said else None


def _pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _texts(said: Sequence[bytes]) -> list[tuple[str, str]]:
    texts = [one.decode() for one in said]
    return list(zip(texts[::2], texts[1::2], strict=True))
