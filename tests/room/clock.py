"""A clock that tests move: it is in a key beside the room's, of which only the tests' scripts know."""

from __future__ import annotations

from toril import Connection
from toril.keyspace import RoomKeys

GIVEN = "local function now_us()\n  return tonumber(redis.call('GET', KEYS[1] .. 'clock'))\nend\n"

START_US = 1_800_000_000_000_000


class Clock:
    """The clock of a room, and of its shards, each of which may be wrong by its own amount."""

    def __init__(self, redis: Connection, room: str, shards: int = 0, skews_us: tuple[int, ...] = ()) -> None:
        self._redis = redis
        self._keys = [RoomKeys(room), *(RoomKeys(room, shard) for shard in range(shards))]
        self._skews = (0, *skews_us) if skews_us else (0,) * len(self._keys)
        self.us = START_US

    @property
    def ms(self) -> int:
        return self.us // 1000

    async def advance(self, ms: float = 0) -> None:
        self.us += round(ms * 1000)
        for keys, skew in zip(self._keys, self._skews, strict=True):
            await self._redis.command("SET", keys["clock"], self.us + skew)
