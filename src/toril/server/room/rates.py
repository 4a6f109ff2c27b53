"""How often one caller may call: exact, and the same through all servers of one Redis."""

from __future__ import annotations

from dataclasses import dataclass

from toril.connection import Connection, load_script
from toril.errors import InvalidValue
from toril.keyspace import RateKeys

TAKE = load_script("server/take")

MOST_UNITS = 2**53
"""Whole numbers that a script counts exactly."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in so many seconds, and so many at once."""

    rate: int
    seconds: int = 1
    burst: int = 1

    def __post_init__(self) -> None:
        for name in ("rate", "seconds", "burst"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidValue(f"limit's {name}", value, "a whole number of at least 1")
        if self.burst * self.seconds * 1_000_000 >= MOST_UNITS:
            raise InvalidValue("limit's burst", self.burst, f"less, or for fewer than {self.seconds} seconds")


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of it."""

    allowed: bool
    left: int
    wait_ms: int
    """Until it would be allowed; 0 where it was."""


class Rates:
    """Limits by name, each counted by caller."""

    def __init__(self, redis: Connection) -> None:
        self._redis = redis

    async def take(self, name: str, caller: str, limit: Rate, count: int = 1) -> Taken:
        """Take from what a caller has left."""
        if not 1 <= count <= limit.burst:
            raise InvalidValue("count", count, f"from 1 to the burst ({limit.burst})")
        keys = RateKeys(name, caller)
        # Sent again after a broken connection it may be counted twice, for a caller who waited that long.
        taken, left, wait = await self._redis.run(
            TAKE, keys, limit.rate, limit.seconds, limit.burst, count, repeatable=True
        )
        return Taken(taken == 1, left, wait)
