"""A server that dies, and takes with it what no replica has heard of: its part of a room is as it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from toril import Connection
from toril.keyspace import Key, RoomKeys
from toril.room import Room
from toril.room.audit import Entry, read_audit

Kept = Mapping[Key, tuple[bytes, int]]


async def keep(redis: Connection, parts: Sequence[RoomKeys]) -> Kept:
    """All keys of parts of a room, as they are; the clock of the tests is not among them."""
    kept = {}
    for keys in parts:
        async for name in redis.scan(f"{keys.base}*"):
            key = Key(name.decode())
            ttl = await redis.command("PTTL", key)
            value = await redis.command("DUMP", key)
            if value is not None and key != keys["clock"]:  # it may have expired since
                kept[key] = (value, ttl)
    return kept


async def put_back(redis: Connection, parts: Sequence[RoomKeys], kept: Kept) -> None:
    """As it was. Another server decides from now on."""
    for key in await keep(redis, parts):
        await redis.command("DEL", key)
    for key, (value, ttl) in kept.items():
        await redis.command("RESTORE", key, max(ttl, 0), value)
    for keys in parts:
        if await redis.command("HEXISTS", keys.meta, "server"):
            await redis.command("HSET", keys.meta, "server", "0")


@dataclass
class Forgetful:
    """A connection to servers of which one dies at a call, and has forgotten what it did since another."""

    redis: Connection
    name: str
    parts: Sequence[RoomKeys]
    """What that server had."""
    from_call: int
    to_call: int
    shards: int
    calls: int = 0
    kept: Kept | None = None
    seen: list[list[Entry]] = field(default_factory=list)
    """What the shards had done when it died."""

    @property
    def connection(self) -> Connection:
        return cast("Connection", self)

    async def _before(self) -> None:
        self.calls += 1
        if self.calls == self.from_call:
            self.kept = await keep(self.redis, self.parts)
        elif self.calls == self.to_call and self.kept is not None:
            for shard in range(self.shards):
                self.seen.append(await read_audit(self.redis, RoomKeys(self.name, shard)))
            await put_back(self.redis, self.parts, self.kept)

    async def run(self, *args: Any, **how: Any) -> Any:
        await self._before()
        return await self.redis.run(*args, **how)

    async def command(self, *args: Any, **how: Any) -> Any:
        await self._before()
        return await self.redis.command(*args, **how)


async def came_in(room: Room, seen: Sequence[Sequence[Entry]] = ()) -> dict[tuple[int, int], int]:
    """When each ticket was let in for the first time (µs), whether or not that was forgotten."""
    first: dict[tuple[int, int], int] = {}
    now = [await read_audit(room.redis, store.keys) for store in await room.shards()]
    for audits in (seen, now):
        for shard, entries in enumerate(audits):
            for entry in entries:
                if entry.what == "admitted":
                    for _, ticket, _ in entry.tickets:
                        first.setdefault((shard, ticket), entry.us)
    return first


def within_budget(times: Iterable[int], rate: int, burst: int, slack: float = 1e-6) -> bool:
    """Whether so many may come in then: by a bucket that is full at the beginning."""
    level, at = float(burst), 0
    for us in sorted(times):
        level = min(burst, level + (us - at) * rate / 1e6) - 1
        at = us
        if level < -slack:
            return False
    return True
