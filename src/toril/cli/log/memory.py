"""What a log takes in the server's memory: measured on some of its keys, told for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toril.connection import CommandRefused, Connection
from toril.keyspace import Key
from toril.log import Log, Standing
from toril.log.store import PartitionStore

PARTITIONS = 64
"""How many partitions are measured, at most."""
SAMPLES = 5
"""Aggregates, entries and outside bodies that are measured in each."""


@dataclass(slots=True)
class Memory:
    """Bytes, by what they are for. All but the counts are estimates, from samples."""

    entries: int = 0
    hot: int = 0
    events_bytes: float = 0
    """The streams, and bodies that are kept outside of them."""
    aggregates_bytes: float = 0
    """The hashes of aggregates, and the lists of them."""
    filters_bytes: float = 0
    rest_bytes: float = 0
    """Heads and readers."""
    body_bytes: float | None = None
    """Of a body, on average; None where there is no event."""
    fields: float | None = None
    """Of an aggregate's hash, on average; None where there is none."""
    partitions_measured: int = 0
    partitions: int = 0

    @property
    def total(self) -> float:
        """All of it."""
        return self.events_bytes + self.aggregates_bytes + self.filters_bytes + self.rest_bytes

    @property
    def per_event(self) -> float | None:
        """Bytes that one event takes."""
        return self.events_bytes / self.entries if self.entries else None

    @property
    def per_aggregate(self) -> float | None:
        """Bytes that one aggregate in Redis takes."""
        return self.aggregates_bytes / self.hot if self.hot else None


@dataclass(slots=True)
class _Sampled:
    events: float = 0
    aggregates: float = 0
    filters: float = 0
    rest: float = 0
    bodies: tuple[int, int] = (0, 0)
    """How many, and how many bytes."""
    hashes: tuple[int, int] = (0, 0)
    """How many, and how many fields."""


async def measure(log: Log, standings: Sequence[Standing]) -> Memory | None:
    """Measure a log; None where the server does not tell, as some hosted ones do not."""
    step = -(-len(standings) // PARTITIONS) or 1
    chosen = {standing.partition: standing for standing in standings[::step]}

    async def one(store: PartitionStore) -> _Sampled:
        return await _sample(log.redis, store, chosen[store.partition])

    try:
        sampled = await log.each(one, chosen)
    except CommandRefused:
        return None
    measured = list(chosen.values())
    made = Memory(
        entries=sum(standing.length for standing in standings),
        hot=sum(standing.hot for standing in standings),
        partitions_measured=len(measured),
        partitions=len(standings),
    )
    made.events_bytes = _scaled(
        sum(one.events for one in sampled), sum(one.length for one in measured), made.entries
    )
    made.aggregates_bytes = _scaled(
        sum(one.aggregates for one in sampled), sum(one.hot for one in measured), made.hot
    )
    made.filters_bytes = _scaled(sum(one.filters for one in sampled), len(measured), len(standings))
    made.rest_bytes = _scaled(sum(one.rest for one in sampled), len(measured), len(standings))
    bodies, size = sum(one.bodies[0] for one in sampled), sum(one.bodies[1] for one in sampled)
    made.body_bytes = size / bodies if bodies else None
    hashes, fields = sum(one.hashes[0] for one in sampled), sum(one.hashes[1] for one in sampled)
    made.fields = fields / hashes if hashes else None
    return made


def _scaled(found: float, among: int, of: int) -> float:
    return found * of / among if among else 0.0


async def _sample(redis: Connection, store: PartitionStore, standing: Standing) -> _Sampled:
    keys, made = store.keys, _Sampled()
    made.rest = await _usage(redis, keys.head) + await _usage(redis, keys.readers)
    made.filters = sum(
        [await _usage(redis, keys.filter(str(level))) for level in range(1, standing.filter_levels + 1)]
    )
    if standing.length:
        made.events = await _usage(redis, keys.entries)
        last = await redis.command("XREVRANGE", keys.entries, "+", "-", "COUNT", SAMPLES)
        sizes = [int(its[7]) if its[6] == b"r1" else len(its[7]) for _, its in last]
        made.bodies = (len(sizes), sum(sizes))
        if outside := await redis.command("ZCARD", keys.blobs):
            some = await redis.command("ZRANDMEMBER", keys.blobs, SAMPLES)
            found = [await _usage(redis, keys.blob(ordinal.decode())) for ordinal in some]
            made.events += await _usage(redis, keys.blobs) + sum(found) / len(found) * outside
    if standing.hot:
        some = await redis.command("ZRANDMEMBER", keys.activity, SAMPLES)
        hashes = [keys.aggregate(key.decode()) for key in some]
        sizes = [await _usage(redis, key) for key in hashes]
        made.aggregates = await _usage(redis, keys.activity) + sum(sizes) / len(sizes) * standing.hot
        made.hashes = (len(hashes), sum([await redis.command("HLEN", key) for key in hashes]))
    return made


async def _usage(redis: Connection, key: Key) -> int:
    found: int | None = await redis.command("MEMORY", "USAGE", key, repeatable=True)
    return found or 0
