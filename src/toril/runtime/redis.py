"""Processors on the event log: leases, checkpoints, states and parked events, each partition in its slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from toril.aggregate import Aggregate
from toril.connection import Script, load_script
from toril.connection.errors import CommandRefused
from toril.connection.wire import Argument
from toril.keyspace import PartitionKeys
from toril.log import GapFound, Log
from toril.log.entry import Entry, Partition, Position
from toril.log.errors import LogError, ReaderFenced, ReaderGone, WrongPosition
from toril.runtime.backend import (
    DUE_NEVER,
    Begin,
    Change,
    Done,
    Handed,
    Later,
    Lease,
    Loaded,
    More,
    Park,
    Resume,
    Stage,
    Strikes,
    Trouble,
    pack_entry,
    unpack_entry,
)
from toril.runtime.decisions import Decision, decisions_about
from toril.runtime.redis_generations import RedisGenerations
from toril.stores.log import LogEventStore

_ERRORS: Mapping[str, type[CommandRefused]] = {
    "GONE": ReaderGone,
    "FENCED": ReaderFenced,
    "PAST": WrongPosition,
    "NOPLACE": WrongPosition,
}


def _script(verb: str) -> Script:
    return load_script(f"runtime/{verb}", errors=_ERRORS)


LEASE, RELEASE, MEMBERS, LOAD = map(_script, ("lease", "release", "members", "load"))
COMMIT, INHERIT = map(_script, ("commit", "inherit"))

TRIES = 10
"""How often an aggregate that went cold is brought back, should it leave again meanwhile."""

AT_ONCE = 50
"""Aggregates that an epoch before is asked about at a time."""


class RedisBackend:
    """A :class:`~toril.runtime.backend.Backend` on a log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.generations = RedisGenerations(log)
        self._redis = log.redis

    def _keys(self, partition: Partition) -> PartitionKeys:
        return self.log.store(partition).keys

    async def partitions(self) -> list[Partition]:
        return (await self.log.layout(anew=True)).partitions()

    async def stages(self, processor: str, finished: Collection[Partition]) -> dict[Partition, Stage]:
        layout = await self.log.layout(anew=True)
        stages: dict[Partition, Stage] = {}
        turn = True
        for epoch in layout.epochs:
            partitions = epoch.all()
            stages |= dict.fromkeys(partitions, "open" if turn else "before")
            if turn and epoch != layout.current:
                stages |= dict.fromkeys((one for one in partitions if one in finished), "finished")
                unsure = [one for one in partitions if one not in finished]
                for standing in await self.log.each(lambda store: store.look(), unsure):
                    its = standing.readers.get(processor)
                    if standing.sealed and its is not None and its.position.ordinal >= standing.ordinal:
                        parked = self._keys(standing.partition).waiting(processor)
                        some = await self._redis.command("ZCARD", parked)
                        stages[standing.partition] = "over" if some else "finished"
                turn = all(stages[one] == "finished" for one in partitions)
        return stages

    async def register(self, processor: str, start: str) -> None:
        await self.log.layout(anew=True)
        await self.log.each(lambda store: store.register(processor, start))

    async def members(self, processor: str, worker: str, lasts: float) -> list[str]:
        known = await self._redis.run(
            MEMBERS, self.log.keys, processor, worker, round(lasts * 1000), repeatable=True
        )
        return [name.decode() for name in known]

    async def take(
        self, processor: str, worker: str, partitions: Iterable[Partition], lasts: float
    ) -> list[Lease]:
        taken = []
        for partition, answer in (await self._lease("take", processor, worker, partitions, lasts)).items():
            ordinal, entry_id, fence, tail, commits, deaths, count, version, aggregate = answer
            lease = Lease(
                partition=partition,
                worker=worker,
                position=Position(int(ordinal), entry_id.decode()),
                fence=int(fence),
                tail=int(tail),
                commits=int(commits),
                deaths=int(deaths),
                strikes=Strikes(int(count), aggregate.decode(), int(version)) if aggregate else None,
            )
            taken.append(lease)
        return taken

    async def keep(
        self, processor: str, worker: str, partitions: Iterable[Partition], lasts: float
    ) -> dict[Partition, int]:
        kept = await self._lease("keep", processor, worker, partitions, lasts)
        return {partition: int(answer[2]) for partition, answer in kept.items()}

    async def _lease(
        self, how: str, processor: str, worker: str, partitions: Iterable[Partition], lasts: float
    ) -> dict[Partition, list[bytes]]:
        """What ``lua/runtime/lease.lua`` says of the partitions that are ours now."""

        async def one(partition: Partition) -> tuple[Partition, list[bytes]]:
            (answer,) = await self._redis.run(
                LEASE, self._keys(partition), worker, round(lasts * 1000), how, processor, repeatable=True
            )
            return partition, answer

        answers = await asyncio.gather(*map(one, partitions))
        return {partition: its for partition, (ours, *its) in answers if ours}

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
        return [
            _loaded(checkpoint, state)
            for checkpoint, state in await self._checkpoints(processor, partition, keys)
        ]

    async def _checkpoints(
        self, processor: str, partition: Partition, keys: Sequence[str]
    ) -> list[tuple[str, bytes]]:
        """Checkpoints and states; aggregates that went cold come back for it."""
        found: dict[str, tuple[str, bytes]] = {}
        for _ in range(TRIES):
            missing = [key for key in keys if key not in found]
            if not missing:
                return [found[key] for key in keys]
            for key, (first, *rest) in zip(
                missing,
                await self._redis.run(LOAD, self._keys(partition), processor, *missing),
                strict=True,
            ):
                if rest:
                    found[key] = first.decode(), rest[0]
                elif not await self._bring_back(partition, key, first):
                    found[key] = "", b""
        raise LogError("a cold aggregate could not be brought back in ten tries")

    async def _bring_back(self, partition: Partition, key: str, said: bytes) -> bool:
        """Have an aggregate here that a script has missed; False where there is none any more."""
        aggregate, asked = Aggregate.parse(key), int(said[2:])
        if said.startswith(b"E") and not await self.log.whereabouts(aggregate):
            return False
        layout = await self.log.layout()
        if partition.epoch == layout.current.number:
            await self.log.bring_back(self.log.store(partition), aggregate, asked)
            return True
        # It left before its epoch ended, and does not come back to it: what processors need of it does.
        home = self.log.store(layout.current.of(aggregate))
        if not await home.fields(aggregate):
            await self.log.bring_back(home, aggregate, (await home.look()).now)
        flat = await self.log.fields(aggregate)
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        kept = [b"v", fields.get(b"v", b"0")]
        for name, value in fields.items():
            if name.startswith((b"c:", b"s:")):
                kept += (name, value)
        await self._redis.command("HSET", self._keys(partition).aggregate(key), *kept, repeatable=True)
        return True

    async def _adopt(self, processor: str, partition: Partition, keys: Sequence[str]) -> None:
        """While an epoch before exists, its checkpoints may be further than those carried over."""
        layout = await self.log.layout()
        before = [epoch for epoch in layout.epochs if epoch.number < partition.epoch]
        if not before:
            return
        await self._checkpoints(processor, partition, keys)  # so that they are here

        async def one(key: str) -> None:
            aggregate = Aggregate.parse(key)
            for epoch in before:
                ((checkpoint, *state),) = await self._redis.run(
                    LOAD, self._keys(epoch.of(aggregate)), processor, key
                )
                if state and checkpoint:
                    name = processor.encode()
                    fields = [b"c:" + name, checkpoint, *([b"s:" + name, state[0]] if state[0] else [])]
                    await self.log.store(partition).adopt(key, fields)

        for first in range(0, len(keys), AT_ONCE):
            await asyncio.gather(*map(one, keys[first : first + AT_ONCE]))

    async def commit(
        self,
        processor: str,
        lease: Lease,
        number: int,
        position: Position,
        changes: Sequence[Change],
        *,
        awaited: bool = False,
    ) -> None:
        left = list(changes)
        for _ in range(TRIES):
            args: list[Argument] = [
                processor,
                lease.worker,
                lease.fence,
                number,
                position.ordinal,
                position.id,
                self.log.limits.grain_ms,
                int(awaited),
            ]
            for change in left:
                args += _arguments(change)
            results = await self._redis.run(COMMIT, self._keys(lease.partition), *args, repeatable=True)
            missing: dict[str, bytes] = {}
            for change, result in zip(left, results, strict=bool(results)):
                if result == b"O":
                    raise WrongPosition(
                        f"NOPLACE {processor} has processed other events of an aggregate in {lease.partition}"
                    )
                if result[:1] in (b"F", b"E"):
                    missing[change.aggregate] = result
            if not missing:
                return
            gone = {
                key for key, said in missing.items() if not await self._bring_back(lease.partition, key, said)
            }
            left = [change for change in left if change.aggregate not in gone]
        raise LogError("a cold aggregate could not be brought back in ten tries")

    async def hand_on(self, processor: str, partition: Partition, key: str) -> None:
        aggregate, keys = Aggregate.parse(key), self._keys(partition)
        layout = await self.log.layout()
        following = layout.epoch(partition.epoch + 1).of(aggregate)
        due = await self._redis.command("ZSCORE", keys.waiting(processor), key)
        record = await self._redis.command("HGET", keys.trouble(processor), key)
        entries = await self._redis.command("LRANGE", keys.parked(f"{processor} {key}"), 0, -1)
        ((checkpoint, state),) = await self._checkpoints(processor, partition, [key])
        args = [processor, key, due or b"0", record or b"", checkpoint, state, *entries]
        for _ in range(TRIES):
            said = await self._redis.run(INHERIT, self._keys(following), *args, repeatable=True)
            if said == b"A" or not await self._bring_back(following, key, said):
                return
        raise LogError("a cold aggregate could not be brought back in ten tries")

    async def tail(self, partition: Partition) -> int:
        return await self.log.store(partition).last_ordinal()

    async def find(self, processor: str, aggregate: Aggregate) -> Loaded | None:
        flat = await self.log.fields(aggregate, f"c:{processor}", f"s:{processor}")
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
        found = {key for key, score in zip(keys, due, strict=True) if score is not None}
        # What this epoch has handed on is in the next one before it is gone from here.
        for epoch in (await self.log.layout()).epochs:
            if epoch.number > partition.epoch:
                for key in [key for key in keys if key not in found]:
                    home = self._keys(epoch.of(Aggregate.parse(key)))
                    if await self._redis.command("ZSCORE", home.waiting(processor), key) is not None:
                        found.add(key)
        return found

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

    async def decided(self, aggregate: Aggregate) -> list[tuple[str, Decision]]:
        return await decisions_about(LogEventStore(self.log), aggregate)

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
    status, (version, rest) = checkpoint[0], checkpoint[1:].split(" ", 1)
    event_id, _, updated_at = rest.rpartition(" ")
    processed = int(version) if status == "p" else int(version) - 1
    return Loaded(status, processed, state or None, event_id, int(updated_at))


def _due(due: float) -> str:
    return "+inf" if due == DUE_NEVER else f"{due:.0f}"


def _about(trouble: Trouble) -> tuple[int, str, str]:
    return trouble.version, trouble.event_id, "f" if trouble.status == "failed" else "n"


def _arguments(change: Change) -> list[Argument]:
    key = change.aggregate
    match change:
        case Begin(_, version):
            return ["B", key, version]
        case Done(_, first, last, event_id, state):
            return ["D", key, first, last, event_id, int(state is not None), state or b""]
        case Park(_, trouble, due, entries):
            record = msgspec.json.encode(trouble)
            packed = [pack_entry(entry) for entry in entries]
            return ["P", key, *_about(trouble), _due(due), record, len(packed), *packed]
        case More(_, entries):
            return ["M", key, len(entries), *map(pack_entry, entries)]
        case Resume(_, version, event_id, state):
            return ["U", key, version, event_id, int(state is not None), state or b""]
        case Later(_, trouble, due):
            return ["L", key, *_about(trouble), _due(due), msgspec.json.encode(trouble)]
        case Handed():
            return ["H", key]
