"""The event log: append, read, and where readers stand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

from toril.aggregate import Aggregate
from toril.connection import Connection, Durability
from toril.connection.durability import Level
from toril.errors import InvalidValue
from toril.keyspace import LogKeys
from toril.log.appender import Lane, Sealed, parse_appended
from toril.log.cold import ColdStore, Frozen, History
from toril.log.entry import Append, Appended, Entry, Partition
from toril.log.erase import Erased, erase_tenant
from toril.log.errors import HistoryTrimmed, LogError, SealedPartition
from toril.log.layout import (
    Epoch,
    Layout,
    Retention,
    check_partitions,
    check_reader,
    create_layout,
    kept_by,
    read_layout,
)
from toril.log.reader import Reader, Start
from toril.log.records import records_of, rehomed, version_of
from toril.log.resize import drop_epoch, resize
from toril.log.store import SCRIPTS, Limits, PartitionStore, Standing
from toril.log.upkeep import Trimmed, Upkeep, cool, trim

PARTITIONS = 64
"""Partitions of a log, where nothing else is said when it is made."""

AT_ONCE = 16
"""Partitions that are asked at a time, where all are asked."""

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Told how far something is: so much, of so much."""


class Log:
    """An event log in Redis: partitions of streams, each in a slot of its own.

    ::

        async with connect(url) as redis, Log(redis, "shop") as log:
            done = await log.append(Aggregate("acme", "order", "17"), [b'{"type": "placed"}'])
            done.version  # 1

    ``partitions`` counts when the log is made; ``cold`` and ``history`` say where quiet aggregates and
    trimmed events go (see the guide). A log has one name per application.
    """

    def __init__(
        self,
        redis: Connection,
        name: str = "log",
        *,
        partitions: int | None = None,
        cold: ColdStore | None = None,
        history: History | None = None,
        quiet: timedelta = timedelta(hours=1),
        idempotency_window: timedelta = timedelta(hours=24),
        most_entries: int | None = None,
        inline: int = 64 * 1024,
        durability: Durability | Level = "memory",
        patience: float = 10.0,
    ) -> None:
        self.redis = redis
        self.keys = LogKeys(name)
        self.name = name
        self.cold = cold
        self.history = history
        self.durability = Durability.of(durability)
        self.patience = patience
        """Seconds for which an append waits while the log is full, before it is refused."""
        if partitions is not None:
            check_partitions(partitions)
        self._wanted_partitions = partitions
        for what, time in (("quiet", quiet), ("idempotency_window", idempotency_window)):
            if time < timedelta(milliseconds=10):
                raise InvalidValue(what, time, "at least 10 ms")
        if most_entries is not None and most_entries < 1:
            raise InvalidValue("most_entries", most_entries, "at least 1, or None for no limit")
        if inline < 0:
            raise InvalidValue("inline", inline, "a number of bytes from 0")
        self.limits = Limits(
            entries=most_entries,
            inline=inline,
            window_ms=round(idempotency_window.total_seconds() * 1000),
            quiet_ms=round(quiet.total_seconds() * 1000),
        )
        self._scripts = SCRIPTS
        self._layout: Layout | None = None
        self._stores: dict[Partition, PartitionStore] = {}
        self._lanes: dict[Partition, Lane] = {}
        """Those with the log's own durability."""
        self._other_lanes: dict[tuple[Partition, Durability], Lane] = {}

    async def __aenter__(self) -> Self:
        await self.layout()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.drain()

    def __repr__(self) -> str:
        return f"Log({self.name!r})"

    async def drain(self) -> None:
        """Wait until no append is under way."""
        for lane in (*self._lanes.values(), *self._other_lanes.values()):
            await lane.drain()

    # ------------------------------------------------------------------ layout

    async def layout(self, *, anew: bool = False) -> Layout:
        """How the log is laid out; it is made where it does not exist."""
        if self._layout is None or anew:
            found = await read_layout(self.redis, self.keys)
            if found is None:
                await create_layout(self.redis, self.keys, self._wanted_partitions or PARTITIONS)
                found = await read_layout(self.redis, self.keys)
                assert found is not None
            wanted = self._wanted_partitions
            if self._layout is None and wanted is not None and wanted != found.current.partitions:
                raise InvalidValue(
                    "partitions",
                    wanted,
                    f"log {self.name!r} has {found.current.partitions}; "
                    f"`toril log resize` changes their number",
                )
            self._layout = found
        return self._layout

    def store(self, partition: Partition) -> PartitionStore:
        """The door to one partition's state."""
        made = self._stores.get(partition)
        if made is None:
            made = PartitionStore(self.redis, self.name, partition, self.limits, self._scripts)
            self._stores[partition] = made
        return made

    async def each(
        self, ask: Callable[[PartitionStore], Awaitable[T]], partitions: Iterable[Partition] | None = None
    ) -> list[T]:
        """Ask every partition, some at a time; the answers in the order of the partitions.

        Where one fails, those asked with it have answered before its error is raised.
        """
        asked = (await self.layout()).partitions() if partitions is None else list(partitions)
        answers: list[T] = []
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            asking = (ask(self.store(partition)) for partition in some)
            for answer in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
                answers.append(answer)
        return answers

    async def standings(self) -> list[Standing]:
        """How every partition stands: for metrics and people."""
        await self.layout(anew=True)
        return await self.each(lambda store: store.look())

    async def choose_retention(self, retention: Retention) -> None:
        """Say what may be trimmed. Until somebody does, nothing is."""
        await self.layout()
        await self.redis.command("HSET", self.keys.meta, "retention", retention.text, repeatable=True)
        await self.layout(anew=True)

    # ------------------------------------------------------------------ appending

    async def append(
        self,
        aggregate: Aggregate,
        events: Sequence[bytes],
        *,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
        durability: Durability | Level | None = None,
    ) -> Appended:
        """Append events to an aggregate, all or none, and say what was recorded.

        Calls from many tasks travel together. It can be repeated with the same ``idempotency_key``: the
        first answer is given again. Raises :class:`VersionConflict`, :class:`LogFull`, and where an
        answer could not be had for too long, what the connection raises.
        """
        append = Append(aggregate, events, expected_version, idempotency_key)
        how = self.durability if durability is None else Durability.of(durability)
        return await self._append(append, how)

    async def append_many(
        self, appends: Sequence[Append], *, durability: Durability | Level | None = None
    ) -> list[Appended | BaseException]:
        """Many appends, each by itself: what was recorded, or what is wrong with that one."""
        how = self.durability if durability is None else Durability.of(durability)
        taken: list[asyncio.Future[Appended]] = []
        try:
            layout = self._layout or await self.layout()
            for append in appends:
                lane = self._lane(layout.current.of(append.aggregate), how)
                if lane.full:
                    await lane.room()
                taken.append(lane.put(append))
            results = [await _outcome(future) for future in taken]
        except asyncio.CancelledError:
            for future in taken:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # nobody will ask for it any more
            raise
        sealed = [place for place, result in enumerate(results) if isinstance(result, Sealed)]
        again = await asyncio.gather(
            *(self._append(appends[place], how) for place in sealed), return_exceptions=True
        )
        for place, result in zip(sealed, again, strict=True):
            results[place] = result
        return results

    async def find_append(self, aggregate: Aggregate, idempotency_key: str) -> Appended | None:
        """What an append with this key recorded; None where the aggregate does not know the key."""
        flat = await self.fields(aggregate, f"k:{idempotency_key}")
        partition = (await self.layout()).current.of(aggregate)
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        version = fields.get(b"k:" + idempotency_key.encode())
        if version is None:
            return None
        words = [version.decode(), *fields[version].decode().split(" ")[:3]]
        return parse_appended(partition, words, repeated=True)

    async def _append(self, append: Append, durability: Durability) -> Appended:
        for _ in range(10):
            layout = self._layout or await self.layout()
            partition = layout.current.of(append.aggregate)
            lane = self._lane(partition, durability)
            if lane.full:
                await lane.room()
            try:
                return await lane.put(append)
            except Sealed:
                await self.moved_on(partition)
        raise LogError("the log moved to a new epoch ten times during one append; nothing was appended")

    def _lane(self, partition: Partition, durability: Durability) -> Lane:
        own = durability is self.durability  # the usual case, and cheaper to look up
        lane = self._lanes.get(partition) if own else self._other_lanes.get((partition, durability))
        if lane is None:
            lane = Lane(self, self.store(partition), durability)
            if own:
                self._lanes[partition] = lane
            else:
                self._other_lanes[partition, durability] = lane
        return lane

    async def moved_on(self, partition: Partition) -> None:
        """Look where the log goes on, after a partition was found sealed."""
        layout = await self.layout()
        if layout.current.number <= partition.epoch:
            layout = await self.layout(anew=True)
        if layout.current.number <= partition.epoch:
            raise LogError(
                f"partition {partition} is sealed, and the log has no later epoch; "
                "`toril log resize` finishes what was begun"
            )

    # ------------------------------------------------------------------ quiet aggregates

    async def whereabouts(self, aggregate: Aggregate) -> list[bytes]:
        """All there is of an aggregate that the current epoch does not have in Redis; empty: nothing.

        Found in the epoch before, while aggregates are being carried over, or in the cold store.
        """
        layout = await self.layout(anew=(await self.layout()).carrying)
        fields = await self._before_this_epoch(layout, aggregate)
        if fields or self.cold is None:
            return fields
        return _thawed(layout, await self.cold.get(aggregate))

    async def whereabouts_of(self, aggregates: Sequence[Aggregate]) -> list[list[bytes]]:
        """The same of many at once, in their order."""
        layout = await self.layout(anew=(await self.layout()).carrying)
        if layout.carrying:
            found = list(await asyncio.gather(*(self._before_this_epoch(layout, one) for one in aggregates)))
        else:
            found = [[] for _ in aggregates]
        if self.cold is not None:
            left = [place for place, fields in enumerate(found) if not fields]
            frozen = await self.cold.get_many([aggregates[place] for place in left])
            for place, one in zip(left, frozen, strict=True):
                found[place] = _thawed(layout, one)
        return found

    async def _before_this_epoch(self, layout: Layout, aggregate: Aggregate) -> list[bytes]:
        """What the epoch before has of an aggregate, while aggregates are being carried over."""
        # Where all has been carried over, what the epoch before has of it is out of date.
        if not layout.carrying or not await self.store(layout.current.of(aggregate)).carries():
            return []
        partition = layout.ever[-2].of(aggregate)
        store = self.store(partition)
        # A partition that could still be appended to must not be copied from.
        await store.seal(layout.current.number)
        fields = await store.fields(aggregate)
        return rehomed(fields, partition) if fields else []

    async def bring_back(self, store: PartitionStore, aggregate: Aggregate, asked: int) -> None:
        """Bring an aggregate back that is perhaps cold, or let a new one begin."""
        fields = await self.whereabouts(aggregate)
        await store.thaw(aggregate, asked, fields)  # where that came too late, it is asked again

    # ------------------------------------------------------------------ reading

    async def read(
        self, aggregate: Aggregate, first_version: int = 1, *, most: int | None = None, page: int = 500
    ) -> list[Entry]:
        """The events of one aggregate, from a version on.

        From the log while they are there, else from the history; :class:`HistoryTrimmed` where neither
        has them.
        """
        if first_version < 1:
            raise InvalidValue("first_version", first_version, "a version from 1")
        if most is not None and most < 0:
            raise InvalidValue("most", most, "a number from 0, or None")
        return await self._in_current_epoch(
            aggregate, lambda store: self._read(store, aggregate, first_version, most, page)
        )

    async def _read(
        self, store: PartitionStore, aggregate: Aggregate, first_version: int, most: int | None, page: int
    ) -> list[Entry]:
        entries: list[Entry] = []
        wanted = first_version
        while most is None or len(entries) < most:
            count = page if most is None else min(page, most - len(entries))
            answer = await store.read_aggregate(aggregate, wanted, count)
            if answer is None:
                return await self._read_elsewhere(
                    aggregate, await self.whereabouts(aggregate), first_version, most
                )
            version, following, found = answer
            if (found and found[0].version > wanted) or (not found and following > wanted <= version):
                # Older ones were trimmed, or are in an epoch before.
                last = found[0].version - 1 if found else min(following - 1, version)
                older = await self._read_elsewhere(
                    aggregate, await store.fields(aggregate), wanted, most, last
                )
                entries += older if most is None else older[: most - len(entries)]
                wanted = last + 1
                continue
            entries += found
            wanted = following
            if wanted > version:
                break
        return entries

    async def version(self, aggregate: Aggregate) -> int:
        """How many events an aggregate has; 0 where there is no such aggregate."""
        return version_of(await self.fields(aggregate, "v"))

    async def fields(self, aggregate: Aggregate, *wanted: str) -> list[bytes]:
        """All there is of an aggregate, wherever it is: fields and values in turn.

        Asked for some of them, it may leave out the others.
        """

        async def ask(store: PartitionStore) -> list[bytes]:
            return await store.current_fields(aggregate, *wanted) or await self.whereabouts(aggregate)

        return await self._in_current_epoch(aggregate, ask)

    async def _in_current_epoch(
        self, aggregate: Aggregate, ask: Callable[[PartitionStore], Awaitable[T]]
    ) -> T:
        """Ask the partition of an aggregate; where the log has moved on, ask again there."""
        while True:
            partition = (await self.layout()).current.of(aggregate)
            try:
                return await ask(self.store(partition))
            except SealedPartition:
                await self.moved_on(partition)

    async def _read_elsewhere(
        self,
        aggregate: Aggregate,
        fields: Sequence[bytes],
        first: int,
        most: int | None,
        last: int | None = None,
    ) -> list[Entry]:
        """Versions by their records, one append at a time, and from the history what has no entry."""
        last = version_of(fields) if last is None else last
        if most is not None:
            last = min(last, first + most - 1)
        if last < first:
            return []
        home = (await self.layout()).current.of(aggregate)
        entries: dict[int, Entry] = {}
        for record in records_of(fields, home):
            if record.first_version > last or record.first_version + record.events <= first:
                continue
            for entry in await self.store(record.partition).stretch(record.first_id, record.events):
                if (
                    entry.key == aggregate.key
                    and 0 <= entry.ordinal - record.first_ordinal < record.events
                    and first <= entry.version <= last
                ):
                    entries[entry.version] = entry
        missing = [version for version in range(first, last + 1) if version not in entries]
        if missing:
            if self.history is None:
                raise HistoryTrimmed(missing[0], missing[-1] + 1)
            for version, recorded_at, body in await self.history.read(aggregate, missing[0], missing[-1]):
                there = Entry(home, f"{recorded_at // 1_000_000}-0", 0, version, aggregate.key, body)
                entries.setdefault(version, there)
            missing = [version for version in missing if version not in entries]
            if missing:
                raise HistoryTrimmed(missing[0], missing[-1] + 1)
        return [entries[version] for version in range(first, last + 1)]

    def reader(
        self,
        name: str | None = None,
        *,
        start: Start = "first",
        partitions: Sequence[Partition] | None = None,
        page: int = 500,
        silent: float = 60.0,
    ) -> Reader:
        """A reader of all events: a named one keeps its position, one without a name is temporary.

        It starts at the ``first`` event that is there, at the ``tail``, or at positions. Where its name
        is known it goes on from where it was. A temporary reader that does not read for ``silent``
        seconds is forgotten.
        """
        if name is not None:
            check_reader(name)
        return Reader(self, name, start=start, partitions=partitions, page=page, silent=silent)

    async def keep_in(self, reader: str, copy: str) -> str:
        """Say which copy a reader keeps; the one that it keeps: what was said first, until it is retired."""
        field = kept_by(reader)
        await self.redis.command("HSETNX", self.keys.meta, field, copy, repeatable=True)
        return await self.kept_in(reader) or copy

    async def kept_in(self, reader: str) -> str | None:
        """The copy that a reader keeps, where that was said."""
        found = await self.redis.command("HGET", self.keys.meta, kept_by(reader))
        return None if found is None else found.decode()

    async def retire(self, reader: str) -> bool:
        """Remove a reader and its floor for good; whether there was one."""
        check_reader(reader)
        await self.layout(anew=True)
        await self.redis.command("HDEL", self.keys.meta, kept_by(reader), repeatable=True)
        return any(await self.each(lambda store: store.retire(reader)))

    # ------------------------------------------------------------------ upkeep

    async def trim(self, *, at_once: int = 10_000) -> Trimmed:
        """Trim what may go, in bounded steps; see :class:`Retention`."""
        return await trim(self, at_once)

    async def cool(self, *, at_once: int = 200) -> int:
        """Let quiet aggregates leave Redis; without a cold store, let them forget. Says how many."""
        return await cool(self, at_once)

    def upkeep(self, every: float = 10.0) -> Upkeep:
        """Trim, cool and remove old epochs, while it is entered: ``async with log.upkeep(): …``."""
        return Upkeep(self, every)

    async def resize(self, partitions: int, *, progress: Progress | None = None) -> Epoch:
        """Give the log another number of partitions, while it is written to and read.

        It begins a new epoch, which readers cross into when they have read the old one. Run again, it
        finishes what was cut off. Give ``cold``, where the log has a cold store. ``progress`` is told how
        many aggregates were carried over, and of how many.
        """
        return await resize(self, partitions, progress)

    async def drop_epoch(self) -> Epoch | None:
        """Remove the oldest epoch where every reader has crossed it and it is trimmed to the end."""
        return await drop_epoch(self)

    async def erase_tenant(self, tenant: str, *, progress: Progress | None = None) -> Erased:
        """Remove a tenant's events, state and keys for good, and say what was removed.

        ``progress`` is told in how many partitions that was done, and of how many.
        """
        return await erase_tenant(self, tenant, progress)


def _thawed(layout: Layout, frozen: Frozen | None) -> list[bytes]:
    """What the cold store has of an aggregate, as the current epoch would have it."""
    if frozen is None:
        return []
    if frozen.epoch == layout.current.number:
        return frozen.flat()
    return rehomed(frozen.flat(), layout.epoch(frozen.epoch).of(frozen.aggregate))


async def _outcome(future: asyncio.Future[Appended]) -> Appended | BaseException:
    """What became of an append. Where the one who asks is cancelled, that is raised."""
    try:
        return await future
    except asyncio.CancelledError as problem:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return problem
    except Exception as problem:  # noqa: BLE001 - it is the answer, whatever it is
        return problem
