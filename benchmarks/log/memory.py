"""What the log costs in memory: an event in its stream, and an aggregate while it is hot.

By ``MEMORY USAGE`` with all samples. An aggregate's part is its hash and its line in the sorted set of
activity. Beside it the same facts in two other forms: with the index in a list of its own, and with a key
for each fact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from toril import Connection, connect
from toril.aggregate import Aggregate
from toril.keyspace import Key
from toril.log import Append, Log
from toril.testing import standalone

from .speed import BODY, KIND, TENANT

EVENTS = 10_000
"""Events of the streams that are weighed."""
SAMPLE = 50
"""Aggregates that are weighed."""
SIZES = (1, 10, 100)
LIST, KEYS = "hash and list", "a key for each fact"


@dataclass(slots=True)
class Weights:
    """Bytes."""

    event: float = 0.0
    raw_event: float = 0.0
    hashes: dict[int, float] = field(default_factory=dict)
    """An aggregate's hash, by its number of events."""
    activity: float = 0.0
    """Its line in the sorted set of activity."""
    others: dict[str, dict[int, float]] = field(default_factory=lambda: {LIST: {}, KEYS: {}})

    def aggregate(self, size: int) -> float:
        """All that a hot aggregate costs."""
        return self.hashes[size] + self.activity

    def lines(self) -> list[str]:
        """The arithmetic, for people."""
        names = len(f"{TENANT}:{KIND}:") + 32
        rest = self.event - len(BODY) - names
        event = (
            f"An event in its stream: {self.event:.0f} bytes = {len(BODY)} of its body + {names} of its "
            f"aggregate's key + {rest:.0f} for ordinal, version, id and the stream."
        )
        million = (self.aggregate(10) + 10 * self.event) / 1000
        many = (
            f"A million hot aggregates of 10 events: 10^6 x ({self.aggregate(10):,.0f} + 10 x "
            f"{self.event:.0f}) bytes = {million:,.1f} GB. One that has gone cold, and whose events are "
            "trimmed, leaves 1.25 bytes of a filter."
        )
        return [event, *map(self._line, SIZES), many]

    def _line(self, size: int) -> str:
        whole = self.aggregate(size)
        return (
            f"A hot aggregate of {size} event{'s' if size > 1 else ''}, each appended by itself: "
            f"{whole:,.0f} bytes = {self.hashes[size]:,.0f} of its hash + {self.activity:.0f} of its line in "
            f"activity; {whole / size:,.0f} per event."
        )


async def measure(binary: Path | None = None) -> Weights:
    """Weigh all of it on a server of its own."""
    found = Weights()
    with standalone(binary=binary) as server:
        async with connect(server.url) as redis, Log(redis, "bench", partitions=1) as log:
            store = log.store((await log.layout()).partitions()[0])
            for first in range(0, EVENTS, 500):
                numbers = range(first, first + 500)
                for result in await log.append_many([Append(_aggregate(n), [BODY]) for n in numbers]):
                    if isinstance(result, BaseException):
                        raise result
            raw = Key("raw:entries")
            for number in range(EVENTS):
                key = _aggregate(number).key
                await redis.command("XADD", raw, "*", "o", number + 1, "v", 1, "a", key, "e1", BODY)
            found.event = await _weigh(redis, store.keys.entries) / EVENTS
            found.raw_event = await _weigh(redis, raw) / EVENTS
            found.activity = await _weigh(redis, store.keys.activity) / EVENTS
            for size in SIZES:
                own: Callable[[int], Awaitable[int]] = _Sample(log, size).weigh
                found.hashes[size] = await _mean(own)
                records = await log.redis.command("HGETALL", store.keys.aggregate(_Sample.of(size, 0).key))
                for name, others in found.others.items():
                    others[size] = await _mean(_Other(redis, name, size, records).weigh)
    return found


def _aggregate(number: int) -> Aggregate:
    return Aggregate(TENANT, KIND, f"{number:032x}")


async def _mean(weigh: Callable[[int], Awaitable[int]]) -> float:
    return sum([await weigh(number) for number in range(SAMPLE)]) / SAMPLE


async def _weigh(redis: Connection, *keys: Key) -> int:
    return sum([await redis.command("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys])


@dataclass(slots=True)
class _Sample:
    log: Log
    size: int

    @staticmethod
    def of(size: int, number: int) -> Aggregate:
        return _aggregate(1_000_000 * size + number)

    async def weigh(self, number: int) -> int:
        aggregate = self.of(self.size, number)
        for _ in range(self.size):
            await self.log.append(aggregate, [BODY])
        partition = (await self.log.layout()).current.of(aggregate)
        return await _weigh(self.log.redis, self.log.store(partition).keys.aggregate(aggregate.key))


@dataclass(slots=True)
class _Other:
    """The facts that are in an aggregate's hash, in another form."""

    redis: Connection
    form: str
    size: int
    fields: list[bytes]

    async def weigh(self, number: int) -> int:
        base = f"toril:{{bench:00}}:{self.form[0]}:{_Sample.of(self.size, number).key}"
        state: list[bytes] = []
        keys: dict[Key, None] = {Key(base): None}
        for name, value in zip(self.fields[::2], self.fields[1::2], strict=True):
            if name.isdigit():
                keys[Key(f"{base}:i")] = None
                await self.redis.command("RPUSH", Key(f"{base}:i"), value)
            elif name.startswith(b"k:") and self.form == KEYS:
                key = Key(f"{base}:{name.decode()}")
                keys[key] = None
                await self.redis.command("SET", key, value, "EX", 86_400)
            else:
                state += (name, value)
        await self.redis.command("HSET", Key(base), *state)
        return await _weigh(self.redis, *keys)
