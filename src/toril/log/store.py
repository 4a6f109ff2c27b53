"""The one door to a log's state: each method is one script, or one command."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any

from toril.aggregate import Aggregate
from toril.connection import Connection, Durability, Script, load_script
from toril.connection.durability import Level
from toril.connection.errors import CommandRefused
from toril.connection.wire import Argument, Command
from toril.keyspace import PartitionKeys
from toril.log.entry import MOST_EVENTS, START, Append, Entry, Partition, Position, decode, ordinal_of
from toril.log.errors import (
    GapFound,
    LogDiverged,
    LogFull,
    ReaderFenced,
    ReaderGone,
    SealedPartition,
    WrongPosition,
)

_ERRORS: Mapping[str, type[CommandRefused]] = {
    "SEALED": SealedPartition,
    "FULL": LogFull,
    "GAP": GapFound,
    "DIVERGED": LogDiverged,
    "GONE": ReaderGone,
    "FENCED": ReaderFenced,
    "BACKWARDS": WrongPosition,
    "PAST": WrongPosition,
    "NOPLACE": WrongPosition,
}


class Scripts:
    """The scripts of this room: Toril's own, or another version's from a folder."""

    def __init__(self, folder: Traversable | None = None) -> None:
        def load(verb: str) -> Script:
            return load_script(f"log/{verb}", folder, errors=_ERRORS)

        self.append, self.read, self.whole, self.look = map(load, ("append", "read", "whole", "look"))
        self.register, self.claim, self.advance = map(load, ("register", "claim", "advance"))
        self.retire, self.trim = map(load, ("retire", "trim"))
        self.quiet, self.freeze, self.thaw = map(load, ("quiet", "freeze", "thaw"))
        self.settle, self.seal, self.chill = map(load, ("settle", "seal", "chill"))
        self.adopt, self.check, self.carry = map(load, ("adopt", "check", "carry"))
        self.wall, self.forget, self.rewrite, self.sweep = map(load, ("wall", "forget", "rewrite", "sweep"))


SCRIPTS = Scripts()

PAGE_BYTES = 1024 * 1024

DIRECT = 32
"""Entries of an aggregate that come with the answer to where they are; more are read in a second step."""

TRIES = 10
"""How often an aggregate is read while its entries are being trimmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a log. All writers of a log should have the same."""

    entries: int | None = None
    """Entries a partition may hold before it takes no more; None: what the server's memory holds."""
    inline: int = 64 * 1024
    """Bytes of a body that is kept in the stream; larger ones are kept outside and referred to."""
    window_ms: int = 24 * 3600 * 1000
    """How long an idempotency key is remembered at least."""
    quiet_ms: int = 3600 * 1000
    """How long an aggregate is quiet before it leaves Redis."""

    @property
    def grain_ms(self) -> int:
        """How exactly activity is noted."""
        return min(60_000, self.quiet_ms // 10)

    @property
    def answer_holds_ms(self) -> int:
        """How long what the cold store said of a missing aggregate can be relied on.

        Half the time after which one that came back meanwhile could leave again.
        """
        return self.quiet_ms // 2


@dataclass(frozen=True, slots=True)
class ReaderState:
    """Where a reader stands in one partition."""

    position: Position
    fence: int
    expires_at: int = 0
    """When a temporary reader is forgotten (ms); 0: never."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a partition stands."""

    partition: Partition
    now: int
    """Milliseconds since 1970, by the server's clock."""
    ordinal: int
    """The last ordinal that was given."""
    trimmed: int
    """The last ordinal that was trimmed."""
    length: int
    first_id: str
    last_id: str
    hot: int
    """Aggregates that are in Redis."""
    sealed: bool
    carry: bool
    filter_levels: int
    readers: dict[str, ReaderState]

    @property
    def tail(self) -> Position:
        """The last entry; with the id before all others where everything is trimmed."""
        return Position(self.ordinal, self.last_id or START.id)

    def backlog(self, reader: str) -> int:
        """Entries the reader is not done with."""
        return self.ordinal - self.readers[reader].position.ordinal

    @property
    def holding(self) -> list[str]:
        """The readers that hold up trimming: none before them."""
        floor = min((state.position.ordinal for state in self.readers.values()), default=0)
        return sorted(name for name, its in self.readers.items() if its.position.ordinal == floor)


class PartitionStore:
    """See the module's text."""

    __slots__ = ("_redis", "_scripts", "keys", "limits", "partition")

    def __init__(
        self,
        redis: Connection,
        log: str,
        partition: Partition,
        limits: Limits,
        scripts: Scripts = SCRIPTS,
    ) -> None:
        self._redis = redis
        self._scripts = scripts
        self.partition = partition
        self.keys: PartitionKeys = partition.keys(log)
        self.limits = limits

    async def _run(self, script: Script, *args: Argument, **how: Any) -> Any:
        return await self._redis.run(script, self.keys, *args, **how)

    # ------------------------------------------------------------------ events

    async def append(
        self, appends: Sequence[Append], durability: Durability | Level = "memory"
    ) -> list[list[str]]:
        """The words of each append's result: see ``lua/log/append.lua``."""
        limits = self.limits
        args: list[Argument] = [limits.entries or 0, limits.inline, limits.window_ms, limits.grain_ms]
        for append in appends:
            expected = "" if append.expected_version is None else append.expected_version
            args += (append.aggregate.key, append.key, expected, len(append.bodies), *append.bodies)
        # A repeat finds the idempotency keys of the first: it can be sent again when an answer was lost.
        results = await self._redis.run(
            self._scripts.append, self.keys, *args, durability=durability, repeatable=True
        )
        return [result.decode().split(" ") for result in results]

    async def read_aggregate(
        self, aggregate: Aggregate, first: int, most: int
    ) -> tuple[int, int, list[Entry]] | None:
        """Its version, the version to go on from, and entries; None where it is perhaps cold."""
        for _ in range(TRIES):
            answer = await self._run(self._scripts.read, aggregate.key, first, most, MOST_EVENTS, DIRECT)
            if answer == b"F":
                return None
            version, following, raw, *places = answer
            entries = await self._decoded(raw)
            if places and places[0]:
                there = await self._at_places(places[0])
                if there is None:  # some were trimmed meanwhile: see what is left
                    continue
                entries = there
            return int(version), int(following), entries
        raise GapFound("GAP entries that an aggregate's records lead to are missing")

    async def _at_places(self, places: Sequence[bytes]) -> list[Entry] | None:
        """The entries at the places that ``lua/log/read.lua`` names; None where one is missing."""
        raw: list[Any] = []
        key = self.keys.entries
        commands: list[Command] = []
        wanted: list[tuple[int, int, int]] = []
        for place in places:
            first_id, *numbers = place.split(b" ")
            skip, count, last = map(int, numbers)
            commands.append(("XRANGE", key, first_id, "+", "COUNT", skip + count))
            wanted.append((skip, count, last))
        pages = await self._redis.read_many(commands, key)
        for page, (skip, count, last) in zip(pages, wanted, strict=True):
            if len(page) != skip + count or ordinal_of(page[-1]) != last:
                return None
            raw += page[skip:] if skip else page
        return await self._decoded(raw)

    async def current_fields(self, aggregate: Aggregate, *fields: str) -> list[bytes]:
        """What Redis has of an aggregate; :class:`SealedPartition` where a later epoch may have more.

        With ``fields``, only its version, these, and the record that a key (``k:…``) leads to.
        """
        found: list[bytes] = await self._run(self._scripts.whole, aggregate.key, *fields)
        return found

    async def fields(self, aggregate: Aggregate) -> list[bytes]:
        """All that this partition has of an aggregate, fields and values in turn."""
        found: list[bytes] = await self._redis.command("HGETALL", self.keys.aggregate(aggregate.key))
        return found

    async def page(self, after: str, most: int) -> list[Entry]:
        """The entries after an id."""
        return await self._decoded(
            await self._redis.command("XRANGE", self.keys.entries, f"({after}", "+", "COUNT", most)
        )

    async def places(self, after: str, most: int) -> list[Entry]:
        """The same without the bodies that are kept outside the stream, which may be trimmed meanwhile."""
        raw = await self._redis.command("XRANGE", self.keys.entries, f"({after}", "+", "COUNT", most)
        return decode(self.partition, raw)[0]

    async def page_back(self, last: str, most: int) -> list[Entry]:
        """The entries up to an id and with it, the last one first."""
        return await self._decoded(
            await self._redis.command("XREVRANGE", self.keys.entries, last, "-", "COUNT", most)
        )

    async def stretch(self, first_id: str, count: int) -> list[Entry]:
        """Entries from an id on."""
        return await self._decoded(await self._raw(first_id, count))

    async def _raw(self, first_id: str, count: int) -> list[Any]:
        found: list[Any] = await self._redis.command(
            "XRANGE", self.keys.entries, first_id, "+", "COUNT", count
        )
        return found

    async def _decoded(self, raw: Sequence[Any]) -> list[Entry]:
        entries, outside = decode(self.partition, raw)
        if outside:
            bodies = await asyncio.gather(
                *(self._redis.command("GET", self.keys.blob(str(entry.ordinal))) for entry in outside)
            )
            for entry, body in zip(outside, bodies, strict=True):
                if body is None:
                    await self._look_again_at(entry)
                else:
                    entry.body = body
        return entries

    async def _look_again_at(self, entry: Entry) -> None:
        """An entry whose body is missing: it may have been erased since it was read."""
        now, _ = decode(self.partition, await self._raw(entry.id, 1))
        if not now or now[0].id != entry.id or not now[0].erased:
            raise GapFound(f"GAP the body of {entry!r}, kept outside the stream, is missing")
        entry.key, entry.version = now[0].key, now[0].version

    async def last_ordinal(self) -> int:
        """The last ordinal that was given."""
        return int(await self._redis.command("HGET", self.keys.head, "ordinal") or 0)

    async def check(self, position: Position) -> int:
        """The last ordinal that was given; :class:`LogDiverged` where nobody can have come to a place."""
        return int(await self._run(self._scripts.check, position.ordinal, position.id))

    async def look(self) -> Standing:
        """How the partition stands."""
        now, head, length, first_id, last_id, hot, readers = await self._run(self._scripts.look)
        said = {head[i]: head[i + 1] for i in range(0, len(head), 2)}
        states = {}
        for name, line in zip(readers[::2], readers[1::2], strict=True):
            ordinal, entry_id, fence, expires = line.decode().split(" ")
            states[name.decode()] = ReaderState(Position(int(ordinal), entry_id), int(fence), int(expires))
        return Standing(
            partition=self.partition,
            now=int(now),
            ordinal=int(said.get(b"ordinal", 0)),
            trimmed=int(said.get(b"trimmed", 0)),
            length=length,
            first_id=first_id.decode(),
            last_id=last_id.decode(),
            hot=hot,
            sealed=b"sealed" in said,
            carry=b"carry" in said,
            filter_levels=int(said.get(b"levels", 0)),
            readers=states,
        )

    # ------------------------------------------------------------------ readers

    async def register(self, reader: str, start: Position | str = "first", silent_ms: int = 0) -> ReaderState:
        """Register a reader, or find where it stands."""
        where = (start,) if isinstance(start, str) else (start.ordinal, start.id)
        return _reader_state(
            await self._run(self._scripts.register, reader, silent_ms, *where, repeatable=True)
        )

    async def claim(self, reader: str) -> ReaderState:
        """Read for a reader from now on. Sent twice, it only fences twice."""
        return _reader_state(await self._run(self._scripts.claim, reader, repeatable=True))

    async def advance(self, reader: str, fence: int, position: Position, silent_ms: int = 0) -> bool:
        """Move a reader's floor; whether it moved."""
        moved = await self._run(
            self._scripts.advance, reader, fence, position.ordinal, position.id, silent_ms, repeatable=True
        )
        return bool(moved)

    async def retire(self, reader: str) -> bool:
        """Take a reader's floor away; whether there was one."""
        return bool(await self._run(self._scripts.retire, reader, repeatable=True))

    async def trim(self, needed: str, age_ms: int, most: int) -> tuple[int, int, list[str]]:
        """Entries removed, the last ordinal trimmed, the readers that hold up the rest."""
        removed, trimmed, holding = await self._run(self._scripts.trim, needed, age_ms, most, repeatable=True)
        return int(removed), int(trimmed), [name.decode() for name in holding]

    # ------------------------------------------------------------------ going cold

    async def quiet(
        self, most: int, journey: str, chosen: Sequence[str] = ()
    ) -> list[tuple[str, list[bytes]]]:
        """Quiet aggregates, with their fields and values; whoever asks is about to store them elsewhere.

        With ``chosen``, those, however quiet they are.
        """
        found = await self._run(
            self._scripts.quiet, self.limits.quiet_ms, most, PAGE_BYTES, journey, *chosen, repeatable=True
        )
        return [(key.decode(), fields) for key, fields in found]

    async def freeze(self, journey: str, changes: Mapping[str, int]) -> int:
        """Let aggregates go that have been changed so often, and no more often; says how many went."""
        args = [part for pair in changes.items() for part in pair]
        return sum(await self._run(self._scripts.freeze, journey, *args, repeatable=True))

    async def thaw(self, aggregate: Aggregate, asked: int, fields: Sequence[bytes] = ()) -> bool:
        """Bring an aggregate back, as it was when it left; False: ask the cold store again."""
        holds = self.limits.answer_holds_ms
        return bool(
            await self._run(self._scripts.thaw, aggregate.key, asked, holds, *fields, repeatable=True)
        )

    async def settle(self, most: int) -> int:
        """Let quiet aggregates forget, where there is no cold store; says how many were looked at."""
        limits = self.limits
        looked: int = await self._run(
            self._scripts.settle, limits.quiet_ms, limits.window_ms, most, repeatable=True
        )
        return looked

    # ------------------------------------------------------------------ a new epoch, an erased tenant

    async def prepare(self) -> None:
        """Let a partition of a new epoch ask for aggregates it does not know."""
        await self._redis.command("HSET", self.keys.head, "carry", 1, repeatable=True)

    async def carries(self) -> bool:
        """Whether aggregates of the epoch before may not be known here yet."""
        return bool(await self._redis.command("HEXISTS", self.keys.head, "carry"))

    async def carry(self, aggregate: Aggregate, read_at: int, fields: Sequence[bytes]) -> bool:
        """Bring an aggregate of the epoch before; False where it is not taken any more."""
        return bool(await self._run(self._scripts.carry, aggregate.key, read_at, *fields, repeatable=True))

    async def carried(self) -> None:
        """All aggregates of the epoch before are known here."""
        await self._redis.command("HDEL", self.keys.head, "carry", repeatable=True)

    async def seal(self, epoch: int) -> int:
        """Take no more events; the last ordinal."""
        return int(await self._run(self._scripts.seal, epoch, repeatable=True))

    async def chill(self, aggregates: Sequence[str]) -> None:
        """Remember aggregates as cold."""
        await self._run(self._scripts.chill, *aggregates, repeatable=True)

    async def adopt(self, aggregate: str, fields: Sequence[bytes]) -> int:
        """Take over what processors did with an aggregate in the epoch before; says how many did.

        -1: the aggregate is not in Redis here.
        """
        flat = dict(zip(fields[::2], fields[1::2], strict=True))
        args: list[Argument] = []
        for name, value in flat.items():
            if name.startswith(b"c:"):
                args += (name[2:], value, flat.get(b"s:" + name[2:], b""))
        if not args:
            return 0
        adopted: int = await self._run(self._scripts.adopt, aggregate, *args, repeatable=True)
        return adopted

    async def drop(self) -> None:
        """Remove what is left of a partition whose epoch is over, in small steps.

        That it is sealed is kept, for writers that have slept through all of it.
        """
        while found := await self.hot(0, 500):
            for key in found:
                await self._redis.command("UNLINK", self.keys.aggregate(key), repeatable=True)
            await self._redis.command("ZREM", self.keys.activity, *found, repeatable=True)
        levels = (await self.look()).filter_levels
        for level in range(1, levels + 1):
            await self._redis.command("UNLINK", self.keys.filter(str(level)), repeatable=True)
        keys = self.keys
        for key in (keys.entries, keys.readers, keys.blobs, keys.walls, keys.erased, keys.activity):
            await self._redis.command("UNLINK", key, repeatable=True)
        found = await self._redis.command("HKEYS", keys.head)
        if rest := [name for name in found if name != b"sealed"]:
            await self._redis.command("HDEL", keys.head, *rest, repeatable=True)

    async def hot(self, first: int, count: int) -> list[str]:
        """Aggregates that are in Redis, by rank."""
        found = await self._redis.command("ZRANGE", self.keys.activity, first, first + count - 1)
        return [key.decode() for key in found]

    async def scan_hot(self, cursor: int, count: int) -> tuple[int, list[str]]:
        """Aggregates that are in Redis, while they change: the next cursor (0: done), and some."""
        following, flat = await self._redis.command("ZSCAN", self.keys.activity, cursor, "COUNT", count)
        return int(following), [key.decode() for key in flat[::2]]

    async def parked(self, reader: str) -> int:
        """Aggregates of which a reader has parked events."""
        count: int = await self._redis.command("ZCARD", self.keys.waiting(reader))
        return count

    async def scan_parked(self, reader: str, cursor: int, count: int) -> tuple[int, list[str]]:
        """Aggregates of which a reader has parked events: the next cursor (0: done), and some."""
        where = self.keys.waiting(reader)
        following, flat = await self._redis.command("ZSCAN", where, cursor, "COUNT", count)
        return int(following), [key.decode() for key in flat[::2]]

    async def wall(self, tenant: str, up: bool) -> set[bytes]:
        """Take no more events of a tenant, or take them again; journeys to the cold store under way then."""
        return set(await self._run(self._scripts.wall, tenant, int(up), repeatable=True))

    async def rewrite(self, tenant: str, after: str, most: int, word: str) -> tuple[str, str, int]:
        """A step of erasing a tenant: how it stands, the id to go on after, entries erased."""
        state, following, erased = await self._run(self._scripts.rewrite, tenant, after, most, word)
        return state.decode(), following.decode(), erased

    async def sweep(self, most: int) -> int:
        """Remove bodies of erased entries; says how many."""
        gone: int = await self._run(self._scripts.sweep, most, repeatable=True)
        return gone

    async def forget(self, tenant: str, aggregates: Sequence[str]) -> int:
        """Remove aggregates of a tenant; says how many were there."""
        gone: int = await self._run(self._scripts.forget, tenant, *aggregates, repeatable=True)
        return gone


def _reader_state(answer: Sequence[bytes]) -> ReaderState:
    ordinal, entry_id, fence = answer
    return ReaderState(Position(int(ordinal), entry_id.decode()), int(fence))
