"""Generations of projections on the log: their records in one hash, their states with their aggregates.

While a generation is loaded, a reader of its own (``…@2:load``) keeps its place at the cut. The processor
itself is no reader until all its states have come, and who is no reader can take no lease: no worker begins
early. A cold aggregate comes back for its state and leaves again at once, a batch at a time, by the scripts
that let aggregates come and go anyway.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from toril.aggregate import Aggregate
from toril.connection import Durability, Script, load_script
from toril.connection.durability import Level
from toril.connection.errors import CommandRefused, DurabilityNotReached
from toril.connection.wire import Argument
from toril.log import Log
from toril.log.entry import START, Partition, Positions
from toril.log.errors import LogError, ReaderGone, WrongPosition
from toril.log.layout import LOADING, Epoch, Layout
from toril.log.store import PartitionStore, Standing
from toril.log.upkeep import send_back
from toril.runtime.backend import Arrived, Generation, GenerationError, Rebuilt, Trouble, pack_entry
from toril.runtime.names import generation_name, split_generation

T = TypeVar("T")

_ERRORS: Mapping[str, type[CommandRefused]] = {"GONE": ReaderGone, "NOPLACE": WrongPosition}


def _script(verb: str) -> Script:
    return load_script(f"runtime/{verb}", errors=_ERRORS)


PLACE, DEFER, STRIP, POINT = map(_script, ("place", "defer", "strip", "point"))

BEFORE = b" before"
"""Behind a projection's name, the field that has what readers saw before."""

TRIES = 50
"""How often aggregates are tried, should they go cold or the log get a new epoch meanwhile."""

STEP = 200
"""Aggregates in one call."""

STEP_BYTES = 4 * 1024 * 1024
"""Bytes in one call, passed by one aggregate at most."""

COLD_STEP = 2000
"""Cold aggregates that are looked at in one go."""

PARTY, PARTIES = 32, 4
"""Cold aggregates that come back and leave together, and how many such parties are under way."""

REPLICA_WITHIN = 5.0
"""Seconds that a replica may take to have what was brought."""

SEAL_WITHIN = 10.0
"""Seconds that a change of the number of partitions may take to seal what was."""


class RedisGenerations:
    """A :class:`~toril.runtime.backend.GenerationStore` on a log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._redis = log.redis
        self._key = log.keys.generations

    # ------------------------------------------------------------------ what is known

    async def current(self, projection: str) -> int:
        return (await self._currents([projection]))[0]

    async def seen(self, processors: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(generation_name, processors, await self._currents(processors)))

    async def _currents(self, projections: Sequence[str]) -> list[int]:
        firsts = [f"{name}@1" for name in projections]
        found = await self._redis.command("HMGET", self._key, *projections, *firsts)
        pairs = zip(found[: len(projections)], found[len(projections) :], strict=True)
        return [int(said) if said else 0 if first else 1 for said, first in pairs]

    async def all(self) -> tuple[dict[str, int], dict[tuple[str, int], Generation]]:
        flat = await self._redis.command("HGETALL", self._key)
        seen: dict[str, int] = {}
        known: dict[tuple[str, int], Generation] = {}
        for field, value in zip(flat[::2], flat[1::2], strict=True):
            if field.endswith(BEFORE):
                continue
            if value.isdigit():
                seen[field.decode()] = int(value)
            else:
                projection, _, number = field.decode().rpartition("@")
                known[projection, int(number)] = _decoded(value)
        return seen, known

    async def may_begin(self, processor: str, start: str) -> bool:
        projection, number = split_generation(processor)
        line = await self._redis.command("HGET", self._key, f"{projection}@{number}")
        return start != "loaded" if line is None else line.startswith(b"loaded ")

    async def begin(self, projection: str, number: int, made: Generation) -> Generation:
        field = f"{projection}@{number}"
        await self._redis.command("HSETNX", self._key, field, _encoded(made), repeatable=True)
        line = await self._redis.command("HGET", self._key, field)
        return _decoded(line)

    async def note(self, projection: str, number: int, made: Generation | None) -> str:
        return await self._point(projection, number, "note", b"" if made is None else _encoded(made))

    async def before(self, projection: str) -> tuple[int, ...]:
        line = await self._redis.command("HGET", self._key, projection + BEFORE.decode())
        return tuple(int(number) for number in (line or b"").split())

    async def see(self, projection: str, number: int, *, back: bool = False) -> str:
        return await self._point(projection, number, "back" if back else "see")

    async def dismiss(self, projection: str, number: int, made: Generation) -> str:
        return await self._point(projection, number, "retire", _encoded(made))

    async def _point(self, projection: str, number: int, *what: Argument) -> str:
        said: bytes = await self._redis.run(POINT, self._log.keys, projection, number, *what, repeatable=True)
        return said.decode()

    # ------------------------------------------------------------------ its place in the log

    async def tails(self) -> Positions:
        deadline = asyncio.get_running_loop().time() + SEAL_WITHIN
        while True:
            layout = await self._log.layout(anew=True)
            standings = await self._log.each(lambda store: store.look(), layout.partitions())
            # Where an epoch before could still be appended to, the next one may be ahead of what was read.
            settled = all(one.sealed for one in standings if one.partition.epoch < layout.current.number)
            if settled and await self._log.layout(anew=True) == layout:
                return {one.partition: one.tail for one in standings}
            if asyncio.get_running_loop().time() > deadline:
                raise GenerationError(
                    "the log is getting another number of partitions: `toril log resize` finishes that first"
                )
            await asyncio.sleep(0.05)

    async def hold(self, processor: str) -> None:
        layout = None
        while layout != (layout := await self._log.layout(anew=True)):
            await self._log.each(lambda store: store.register(processor + LOADING, "first"))

    async def reserve(self, processor: str, cut: Positions) -> None:
        floor = processor + LOADING
        layout = await self._log.layout(anew=True)
        standings = await self._log.each(lambda store: store.look(), layout.partitions())
        _check_cut(cut, layout, standings)
        if any(processor in one.readers for one in standings):
            raise GenerationError(
                f"{processor} is a reader of the log already: workers build it from the log; "
                "take the next number, or retire it"
            )
        before = {one.partition for one in standings if floor in one.readers}

        async def keep(store: PartitionStore) -> None:
            at = cut.get(store.partition, START)
            try:
                kept = await store.register(floor, at)
                if kept.position.ordinal != at.ordinal:  # it was held further back, while the cut was chosen
                    await store.advance(floor, kept.fence, at)
            except WrongPosition as problem:
                raise GenerationError(
                    f"the cut cannot be kept in partition {store.partition}, at {at}: {problem}"
                ) from None

        try:
            while True:
                await self._log.each(keep, layout.partitions())
                again = await self._log.layout(anew=True)
                if again == layout:
                    return
                layout = again
        except GenerationError:
            others = [one for one in layout.partitions() if one not in before]
            await self._log.each(lambda store: store.retire(floor), others)
            raise

    async def enlist(self, processor: str) -> None:
        floor = processor + LOADING
        while True:
            layout = await self._log.layout(anew=True)
            standings = await self._log.each(lambda store: store.look(), layout.partitions())
            last = max(
                (one.partition.epoch for one in standings if {floor, processor} & one.readers.keys()),
                default=0,
            )
            starts: Positions = {}
            for one in standings:
                there, kept = one.readers.get(processor), one.readers.get(floor)
                at = START if kept is None else kept.position
                if there is not None and there.fence == 0 and there.position.ordinal == at.ordinal:
                    continue  # a run before this one has got so far
                if there is not None:
                    raise GenerationError(
                        f"{processor} has begun already in partition {one.partition}: it is at "
                        f"{there.position}, and its states end at {at}; retire it, and make the next one"
                    )
                if kept is None and one.partition.epoch <= last:
                    raise GenerationError(
                        f"the place of {processor} in partition {one.partition} is not kept any more, and "
                        "what comes after the cut may be gone: retire it, and make the next one"
                    )
                starts[one.partition] = at
            await self._log.each(
                lambda store, starts=starts: store.register(processor, starts[store.partition]),  # type: ignore[misc]
                sorted(starts),
            )
            if await self._log.layout(anew=True) == layout:
                return

    async def release(self, processor: str) -> None:
        await self._log.retire(processor + LOADING)

    # ------------------------------------------------------------------ states come

    async def place(self, processor: str, batch: Sequence[Rebuilt]) -> list[Arrived]:
        answers: dict[str, Arrived] = {}
        layout = await self._log.layout(anew=True)
        await self._place_now(processor, layout, batch, answers)
        left = [one for one in batch if one.aggregate.key not in answers]
        left.sort(key=lambda one: layout.current.of(one.aggregate))
        await self._in_parties(left, lambda party: self._place_cold(processor, party, answers))
        for one in batch:
            if one.waiting and answers[one.aggregate.key] != "gone":
                await self._defer(processor, layout.epochs[0], one)
        return [answers[one.aggregate.key] for one in batch]

    async def _in_parties(
        self, all_of_them: Sequence[T], do: Callable[[Sequence[T]], Awaitable[None]]
    ) -> None:
        """A few at a time: what the cold store says of them holds for a while only."""
        parties = [all_of_them[at : at + PARTY] for at in range(0, len(all_of_them), PARTY)]
        for first in range(0, len(parties), PARTIES):
            await asyncio.gather(*map(do, parties[first : first + PARTIES]))

    async def _place_cold(
        self, processor: str, party: Sequence[Rebuilt], answers: dict[str, Arrived]
    ) -> None:
        """They come back for their state, and leave again; where the log has a new epoch, to that."""
        visitors: set[str] = set()
        for _ in range(TRIES):
            layout = await self._log.layout(anew=True)
            left = [one for one in party if one.aggregate.key not in answers]
            missing = await self._place_now(processor, layout, left, answers)
            await self._send_back(layout, sorted(visitors & answers.keys()))
            visitors -= answers.keys()
            found = await self._bring_back(layout, missing)
            visitors |= found
            answers.update((key, "gone") for key in missing.keys() - found)
            if all(one.aggregate.key in answers for one in party):
                return
        raise LogError(f"cold aggregates could not be brought back in {TRIES} tries")

    async def _place_now(
        self, processor: str, layout: Layout, batch: Sequence[Rebuilt], answers: dict[str, Arrived]
    ) -> dict[str, int]:
        """Bring states to those that are in Redis; the others, with when they were found missing.

        An epoch before gets them too: a processor may not have read it to its end.
        """
        for epoch in layout.epochs[:-1]:
            for key, (said, _) in (await self._place_in(processor, epoch, batch)).items():
                if said == "E":
                    answers[key] = "gone"
        rest = {one.aggregate.key: one for one in batch if one.aggregate.key not in answers}
        missing: dict[str, int] = {}
        for key, (said, sealed) in (await self._place_in(processor, layout.current, rest.values())).items():
            if said == "E":
                answers[key] = "gone"
            elif sealed:
                continue  # a new epoch may have taken it along before
            elif said in ("A", "S"):
                answers[key] = "placed" if said == "A" else "there"
            elif said.startswith("V "):
                raise GenerationError(
                    f"an aggregate has {said[2:]} events in the log, and its state was made of "
                    f"{rest[key].version}: the state is of another log, or the log has lost events"
                )
            else:
                missing[key] = int(said[2:])
        return missing

    async def _place_in(
        self, processor: str, epoch: Epoch, batch: Iterable[Rebuilt]
    ) -> dict[str, tuple[str, bool]]:
        """What ``lua/runtime/place.lua`` says of each, and whether its partition is sealed."""
        by_partition: dict[Partition, list[Rebuilt]] = defaultdict(list)
        for one in batch:
            by_partition[epoch.of(one.aggregate)].append(one)
        answers: dict[str, tuple[str, bool]] = {}

        async def ask(store: PartitionStore) -> None:
            for some in _in_portions(by_partition[store.partition]):
                args: list[Argument] = [processor, processor + LOADING]
                for one in some:
                    status = f"n{one.version + 1}" if one.waiting else f"p{one.version}"
                    args += (one.aggregate.key, one.version, status, one.event_id, one.state)
                sealed, *said = await self._bring(PLACE, store, args)
                for one, its in zip(some, said, strict=True):
                    answers[one.aggregate.key] = its.decode(), sealed == b"1"

        await self._log.each(ask, sorted(by_partition))
        return answers

    async def _bring_back(self, layout: Layout, missing: Mapping[str, int]) -> set[str]:
        """Have aggregates in Redis that are perhaps cold: those that there are.

        ``missing``: by key, when it was found missing.
        """
        aggregates = [Aggregate.parse(key) for key in missing]
        found = {
            one: fields
            for one, fields in zip(aggregates, await self._log.whereabouts_of(aggregates), strict=True)
            if fields
        }
        # Where one comes too late, it is asked again.
        await asyncio.gather(
            *(
                self._log.store(layout.current.of(one)).thaw(one, missing[one.key], fields)
                for one, fields in found.items()
            )
        )
        return {one.key for one in found}

    async def _send_back(self, layout: Layout, keys: Sequence[str]) -> None:
        """Let aggregates leave that came for a moment. Those that somebody uses meanwhile stay."""
        if self._log.cold is None:
            return  # they came from the epoch before, to stay
        by_partition: dict[Partition, list[str]] = defaultdict(list)
        for key in keys:
            by_partition[layout.current.of(Aggregate.parse(key))].append(key)
        cold = self._log.cold
        await self._log.each(
            lambda store: send_back(store, cold, by_partition[store.partition]), sorted(by_partition)
        )

    async def _defer(self, processor: str, oldest: Epoch, one: Rebuilt) -> None:
        """Events that could not be applied wait where the processor begins, in the oldest epoch there is."""
        store = self._log.store(oldest.of(one.aggregate))
        key, record = one.aggregate.key, Trouble(status="retry", version=one.version + 1, event_id="")
        args: list[Argument] = [processor, processor + LOADING, key, msgspec.json.encode(record), one.after]
        args += (pack_entry(entry) for entry in one.entries(store.partition))
        await self._bring(DEFER, store, args)

    async def _bring(self, script: Script, store: PartitionStore, args: Sequence[Argument]) -> Any:
        """Call a script, and wait for a replica where there is one.

        That all has come is noted on another server, perhaps: what an abrupt failover would lose here, nobody
        would miss there.
        """
        level: Level = "replicated" if await self._has_replica(store) else "memory"
        how = Durability(level, timeout=REPLICA_WITHIN)
        try:
            return await self._redis.run(script, store.keys, *args, durability=how, repeatable=True)
        except DurabilityNotReached:
            if await self._has_replica(store):
                raise
            # The replica itself has taken over, perhaps, and has none: it may not have got this.
            return await self._redis.run(script, store.keys, *args, repeatable=True)

    async def _has_replica(self, store: PartitionStore) -> bool:
        said = await self._redis.command("INFO", "replication", near=store.keys.head, repeatable=True)
        return b"state=online" in said

    # ------------------------------------------------------------------ states go

    async def clear(self, processor: str, progress: Callable[[int], None] | None = None) -> int:
        await self._log.retire(processor)
        await self.release(processor)
        cleared = 0

        def told(count: int) -> None:
            nonlocal cleared
            cleared += count
            if progress is not None:
                progress(cleared)

        await self._log.each(lambda store: self._forget_parked(store, processor))
        # What an epoch before has is copied to the next one, perhaps just now: until nothing is found.
        while await self._strip_hot(processor, told):
            pass
        if self._log.cold is not None:
            await self._strip_cold(processor, self._log.cold.aggregates(), told)
        await self._redis.command("UNLINK", self._log.keys.members(processor), repeatable=True)
        await self._redis.command("SREM", self._log.keys.paused, f"processor {processor}", repeatable=True)
        return cleared

    async def _forget_parked(self, store: PartitionStore, processor: str) -> None:
        keys = store.keys
        while True:
            _, found = await store.scan_parked(processor, 0, STEP)
            if not found:
                break
            for key in found:
                await self._redis.command("UNLINK", keys.parked(f"{processor} {key}"), repeatable=True)
            await self._redis.command("ZREM", keys.waiting(processor), *found, repeatable=True)
        await self._redis.command("UNLINK", keys.trouble(processor), repeatable=True)
        noted = [f"{what}{processor}" for what in ("", "commits ", "begun ", "strikes ", "deaths ")]
        await self._redis.command("HDEL", keys.leases, *noted, repeatable=True)

    async def _strip_hot(self, processor: str, told: Callable[[int], None]) -> int:
        """One pass over what is in Redis; says how many aggregates had something."""
        found = 0

        async def one(store: PartitionStore) -> None:
            nonlocal found
            cursor = 0
            while True:
                cursor, keys = await store.scan_hot(cursor, STEP)
                if keys:
                    said = await self._redis.run(STRIP, store.keys, processor, *keys, repeatable=True)
                    count = sum(its == b"1" for its in said)
                    found += count
                    told(count)
                if cursor == 0:
                    return

        await self._log.each(one, (await self._log.layout(anew=True)).partitions())
        return found

    async def _strip_cold(
        self, processor: str, aggregates: AsyncIterator[Aggregate], told: Callable[[int], None]
    ) -> None:
        async def strip(some: list[Aggregate]) -> None:
            current = (await self._log.layout(anew=True)).current
            keys = [one.key for one in sorted(some, key=current.of)]
            await self._in_parties(keys, lambda party: self._strip_party(processor, party, told))

        some: list[Aggregate] = []
        async for aggregate in aggregates:
            some.append(aggregate)
            if len(some) >= COLD_STEP:
                await strip(some)
                some = []
        await strip(some)

    async def _strip_party(self, processor: str, keys: Sequence[str], told: Callable[[int], None]) -> None:
        """Aggregates that are perhaps cold: those that have something come back for a moment."""
        left, visitors = sorted(keys), set[str]()
        for _ in range(TRIES):
            layout = await self._log.layout(anew=True)
            missing = await self._strip_in(processor, layout.current, left, told)
            await self._send_back(layout, sorted(visitors - missing.keys()))
            left = await self._that_have(processor, list(missing))
            if not left:
                return
            await self._bring_back(layout, {key: missing[key] for key in left})
            visitors = set(left)
        raise LogError(f"cold aggregates could not be brought back in {TRIES} tries")

    async def _strip_in(
        self, processor: str, epoch: Epoch, keys: Sequence[str], told: Callable[[int], None]
    ) -> dict[str, int]:
        """Strip those that are in Redis; the others, with when they were found missing."""
        by_partition: dict[Partition, list[str]] = defaultdict(list)
        for key in keys:
            by_partition[epoch.of(Aggregate.parse(key))].append(key)
        missing: dict[str, int] = {}

        async def one(store: PartitionStore) -> None:
            some = by_partition[store.partition]
            said = await self._redis.run(STRIP, store.keys, processor, *some, repeatable=True)
            told(sum(its == b"1" for its in said))
            missing.update(
                (key, int(its[2:])) for key, its in zip(some, said, strict=True) if its.startswith(b"F")
            )

        await self._log.each(one, sorted(by_partition))
        return missing

    async def _that_have(self, processor: str, keys: Sequence[str]) -> list[str]:
        """Of cold aggregates, those that have something of a processor."""
        assert self._log.cold is not None
        wanted = {f"c:{processor}".encode(), f"s:{processor}".encode()}
        found = await self._log.cold.get_many([Aggregate.parse(key) for key in keys])
        return [
            key
            for key, frozen in zip(keys, found, strict=True)
            if frozen is not None and not wanted.isdisjoint(frozen.flat()[::2])
        ]


def _check_cut(cut: Positions, layout: Layout, standings: Sequence[Standing]) -> None:
    """A cut is of this log, and no aggregate's later events are in it without its earlier ones."""
    for partition in cut:
        known = 1 <= partition.epoch <= layout.current.number
        if not known or partition.number >= layout.epoch(partition.epoch).partitions:
            raise GenerationError(f"the cut names partition {partition}, which the log does not have")
    last = max((one.epoch for one, at in cut.items() if at.ordinal), default=0)
    for one in standings:
        at = cut.get(one.partition, START).ordinal
        if at > one.ordinal:
            raise GenerationError(
                f"the cut is in the future: partition {one.partition} at {at}, and its last entry is "
                f"{one.ordinal}"
            )
        if one.partition.epoch < last and at < one.ordinal:
            raise GenerationError(
                f"the cut has events of epoch {last}, and not all of the one before: partition "
                f"{one.partition} at {at}, of {one.ordinal}"
            )


def _in_portions(batch: Sequence[Rebuilt]) -> Iterable[Sequence[Rebuilt]]:
    some: list[Rebuilt] = []
    size = 0
    for one in batch:
        if some and (len(some) >= STEP or size >= STEP_BYTES):
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one.state)
    if some:
        yield some


def _encoded(made: Generation) -> bytes:
    """Its stage first, for scripts."""
    return made.stage.encode() + b" " + msgspec.json.encode(made)


def _decoded(line: bytes) -> Generation:
    return msgspec.json.decode(line.partition(b" ")[2], type=Generation)
