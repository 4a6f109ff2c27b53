"""Processors on the event log: leases, checkpoints, states and parked events, each partition in its slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from toril.aggregate import Aggregate
from toril.connection import Script, load_script
from toril.connection.errors import CommandRefused
from toril.connection.wire import Argument
from toril.keyspace import PartitionKeys
from toril.log import GapFound, Log
from toril.log.entry import Entry, Partition, Position
from toril.log.errors import ReaderFenced, ReaderGone, WrongPosition
from toril.runtime.backend import (
    DUE_NEVER,
    Begin,
    Change,
    Done,
    Later,
    Lease,
    Loaded,
    More,
    Park,
    Resume,
    Trouble,
    pack_entry,
    unpack_entry,
)

_ERRORS: Mapping[str, type[CommandRefused]] = {
    "GONE": ReaderGone,
    "FENCED": ReaderFenced,
    "PAST": WrongPosition,
    "NOPLACE": WrongPosition,
}


def _script(verb: str) -> Script:
    return load_script(f"runtime/{verb}", errors=_ERRORS)


LEASE, RELEASE, MEMBERS, LOAD, COMMIT = map(_script, ("lease", "release", "members", "load", "commit"))


class RedisBackend:
    """A :class:`~toril.runtime.backend.Backend` on a log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._redis = log.redis

    def _keys(self, partition: Partition) -> PartitionKeys:
        return self.log.store(partition).keys

    async def partitions(self) -> list[Partition]:
        return (await self.log.layout(anew=True)).partitions()

    async def ready(self, processor: str, partition: Partition) -> bool:
        layout = await self.log.layout()
        before = [epoch for epoch in layout.epochs if epoch.number < partition.epoch]
        for epoch in before:
            for standing in await self.log.each(lambda store: store.look(), epoch.all()):
                if not standing.sealed or standing.backlog(processor) > 0:
                    return False
        return True

    async def register(self, processor: str, start: str) -> None:
        await self.log.layout(anew=True)
        await self.log.each(lambda store: store.register(processor, start))

    async def members(self, processor: str, worker: str, lasts: float) -> list[str]:
        known = await self._redis.run(
            MEMBERS, self.log.keys, processor, worker, round(lasts * 1000), repeatable=True
        )
        return [name.decode() for name in known]

    async def lease(
        self, processor: str, worker: str, partitions: Iterable[Partition], lasts: float
    ) -> dict[Partition, Lease]:
        async def one(partition: Partition) -> Lease | None:
            (answer,) = await self._redis.run(
                LEASE, self._keys(partition), worker, round(lasts * 1000), processor, repeatable=True
            )
            if answer[0] == 0:
                return None
            _, ordinal, entry_id, fence, tail, deaths = answer
            position = Position(int(ordinal), entry_id.decode())
            return Lease(partition, position, int(fence), int(tail), int(deaths))

        leases = await asyncio.gather(*map(one, partitions))
        return {lease.partition: lease for lease in leases if lease is not None}

    async def release(self, processor: str, worker: str, partitions: Iterable[Partition]) -> None:
        await asyncio.gather(
            *(
                self._redis.run(RELEASE, self._keys(one), worker, processor, repeatable=True)
                for one in partitions
            )
        )

    async def page(self, partition: Partition, after: Position, most: int) -> list[Entry]:
        entries = await self.log.store(partition).page(after.id, most)
        for expected, entry in enumerate(entries, after.ordinal + 1):
            if entry.ordinal != expected:
                raise GapFound(f"GAP partition {partition}: entry {expected} is missing")
        return entries

    async def load(self, processor: str, partition: Partition, keys: Sequence[str]) -> list[Loaded]:
        await self._adopt(processor, partition, keys)
        found = await self._redis.run(LOAD, self._keys(partition), processor, *keys)
        return [_loaded(checkpoint.decode(), state) for checkpoint, state in found]

    async def _adopt(self, processor: str, partition: Partition, keys: Sequence[str]) -> None:
        """While the epoch before exists, its checkpoints may be further than those carried over."""
        layout = await self.log.layout()
        for epoch in layout.epochs:
            if epoch.number >= partition.epoch:
                break
            for key in keys:
                aggregate = Aggregate.parse(key)
                ((checkpoint, state),) = await self._redis.run(
                    LOAD, self._keys(epoch.of(aggregate)), processor, key
                )
                if checkpoint:
                    name = processor.encode()
                    fields = [b"c:" + name, checkpoint, *([b"s:" + name, state] if state else [])]
                    await self.log.store(partition).adopt(key, fields)

    async def commit(
        self,
        processor: str,
        lease: Lease,
        position: Position,
        changes: Sequence[Change],
        *,
        awaited: bool = False,
    ) -> list[bool]:
        store = self.log.store(lease.partition)
        left = list(enumerate(changes))
        new = [False] * len(changes)
        while True:
            args: list[Argument] = [
                processor,
                lease.fence,
                position.ordinal,
                position.id,
                self.log.limits.grain_ms,
                int(awaited),
            ]
            for _, change in left:
                args += _arguments(change)
            results = await self._redis.run(COMMIT, store.keys, *args, repeatable=True)
            cold = []
            for (place, change), result in zip(left, results, strict=True):
                if result == b"O":
                    raise WrongPosition(
                        f"NOPLACE {processor} has processed other events of this aggregate: {change!r}"
                    )
                if result[:1] == b"F":
                    cold.append((place, change))
                    aggregate = Aggregate.parse(change.aggregate)
                    await self.log.bring_back(store, aggregate, int(result[2:]))
                else:
                    new[place] = result == b"A"
            if not cold:
                return new
            left = cold

    async def tail(self, partition: Partition) -> int:
        return await self.log.store(partition).last_ordinal()

    async def find(self, processor: str, aggregate: Aggregate) -> Loaded | None:
        flat = await self.log.fields(aggregate)
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        name = processor.encode()
        checkpoint = fields.get(b"c:" + name)
        if checkpoint is None:
            return None
        return _loaded(checkpoint.decode(), fields.get(b"s:" + name, b""))

    async def owner(self, processor: str, partition: Partition) -> str | None:
        line = await self._redis.command("HGET", self._keys(partition).leases, processor)
        if line is None:
            return None
        until, _, worker = line.decode().partition(" ")
        return worker if int(until) > await self.now() else None

    async def retire(self, processor: str) -> bool:
        return await self.log.retire(processor)

    async def generation(self, projection: str) -> int:
        return int(await self._redis.command("HGET", self.log.keys.generations, projection) or 1)

    async def promote(self, projection: str, generation: int) -> None:
        await self._redis.command("HSET", self.log.keys.generations, projection, generation, repeatable=True)

    async def positions(self, partition: Partition, processors: Sequence[str]) -> list[Position | None]:
        found = await self._redis.command("HMGET", self._keys(partition).readers, *processors)
        return [None if line is None else _position(line) for line in found]

    async def parked(self, processor: str, partition: Partition) -> dict[str, float]:
        flat = await self._redis.command(
            "ZRANGE", self._keys(partition).waiting(processor), 0, -1, "WITHSCORES"
        )
        return {key.decode(): float(due) for key, due in zip(flat[::2], flat[1::2], strict=True)}

    async def parked_among(self, processor: str, partition: Partition, keys: Sequence[str]) -> set[str]:
        if not keys:
            return set()
        due = await self._redis.command("ZMSCORE", self._keys(partition).waiting(processor), *keys)
        return {key for key, score in zip(keys, due, strict=True) if score is not None}

    async def parked_entries(self, processor: str, partition: Partition, key: str, most: int) -> list[Entry]:
        found = await self._redis.command(
            "LRANGE", self._keys(partition).parked(f"{processor} {key}"), 0, most - 1
        )
        return [unpack_entry(partition, raw) for raw in found]

    async def troubles(
        self, processor: str, partition: Partition, keys: Sequence[str] | None = None
    ) -> dict[str, Trouble]:
        where = self._keys(partition).trouble(processor)
        if keys is None:
            flat = await self._redis.command("HGETALL", where)
        elif not keys:
            return {}
        else:
            values = await self._redis.command("HMGET", where, *keys)
            flat = [
                part
                for key, value in zip(keys, values, strict=True)
                if value
                for part in (key.encode(), value)
            ]
        return {
            key.decode(): msgspec.json.decode(record, type=Trouble)
            for key, record in zip(flat[::2], flat[1::2], strict=True)
        }

    async def paused(self) -> set[str]:
        return {name.decode() for name in await self._redis.command("SMEMBERS", self.log.keys.paused)}

    async def pause(self, what: str, *, on: bool) -> None:
        await self._redis.command("SADD" if on else "SREM", self.log.keys.paused, what, repeatable=True)

    @asynccontextmanager
    async def listen(self, partitions: Iterable[Partition]) -> AsyncIterator[AsyncIterator[set[Partition]]]:
        bells = {self._keys(partition).bell: partition for partition in partitions}

        async def heard() -> AsyncIterator[set[Partition]]:
            async for rung in rings:
                yield {bells[bell] for bell in rung}

        async with self._redis.subscribe(bells) as rings:
            yield heard()

    async def now(self) -> int:
        seconds, micros = await self._redis.command("TIME", near=self.log.keys.meta)
        return int(seconds) * 1000 + int(micros) // 1000


def _position(line: bytes) -> Position:
    ordinal, entry_id, *_ = line.decode().split(" ")
    return Position(int(ordinal), entry_id)


def _loaded(checkpoint: str, state: bytes) -> Loaded:
    if not checkpoint:
        return Loaded("", 0, state or None)
    status, version = checkpoint[0], int(checkpoint[1 : checkpoint.index(" ")])
    return Loaded(status, version if status == "p" else version - 1, state or None)


def _due(due: float) -> str:
    return "+inf" if due == DUE_NEVER else f"{due:.0f}"


def _about(trouble: Trouble) -> tuple[int, str, str]:
    return trouble.version, trouble.event_id, "f" if trouble.status == "failed" else "n"


def _arguments(change: Change) -> list[Argument]:
    key = change.aggregate
    match change:
        case Begin(_, version, event_id):
            return ["B", key, version, event_id]
        case Done(_, first, last, event_id, state):
            return ["D", key, first, last, event_id, int(state is not None), state or b""]
        case Park(_, trouble, due, entries):
            record = msgspec.json.encode(trouble)
            packed = [pack_entry(entry) for entry in entries]
            return ["P", key, *_about(trouble), _due(due), record, len(packed), *packed]
        case More(_, entries):
            return ["M", key, len(entries), *map(pack_entry, entries)]
        case Resume(_, version, event_id, state):
            return ["U", key, version, event_id, 1, int(state is not None), state or b""]
        case Later(_, trouble, due):
            return ["L", key, *_about(trouble), _due(due), msgspec.json.encode(trouble)]
