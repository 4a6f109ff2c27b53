"""Readers: all events of a log, each partition in order, without a gap, waiting for more.

A reader registers a floor in every partition before it reads, so that nothing is trimmed under it. It
looks when a partition's bell has rung, and every second anyway.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from toril.connection.subscription import Subscription
from toril.errors import InvalidValue
from toril.keyspace import Key
from toril.log.entry import START, Entry, Partition, Position, Positions
from toril.log.errors import GapFound, LogDiverged, LogError, ReaderGone
from toril.log.layout import Epoch, Layout
from toril.log.store import PartitionStore

if TYPE_CHECKING:
    from toril.log.log import Log

LOOK_ANYWAY = 1.0
"""Seconds after which partitions are looked at though no bell was heard, at the latest."""

MOVE_EVERY = 1.0
"""Seconds between two moves of a temporary reader's floors, while there is more to read."""

T = TypeVar("T")

Start = Literal["first", "tail"] | Positions


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries of one partition, in order; those of erased tenants are left out."""

    partition: Partition
    entries: Sequence[Entry]
    position: Position
    """Where the reader stands when it is done with them."""
    reader: Reader

    async def done(self) -> None:
        """Say that these are dealt with: the reader will not see them again, and they may be trimmed."""
        await self.reader.commit(self.partition, self.position)


class Reader:
    """Reads all events of a log. Made by :meth:`Log.reader`.

    ::

        async with log.reader("billing") as reader:
            async for batch in reader:
                for entry in batch.entries: ...
                await batch.done()

    A named reader goes on where it said :meth:`Batch.done`, in this process or another one; entering it
    fences off whoever read under its name before. A temporary reader (without a name) is done with a
    batch when it asks for the next one; its floor follows within a second.

    When the log has gone on in a new epoch, events of that epoch come after all events before it.
    """

    def __init__(
        self,
        log: Log,
        name: str | None,
        *,
        start: Start,
        partitions: Sequence[Partition] | None,
        page: int,
        silent: float,
    ) -> None:
        if isinstance(start, str) and start not in ("first", "tail"):
            raise InvalidValue("start", start, "'first', 'tail', or positions by partition")
        if page < 1:
            raise InvalidValue("page", page, "at least 1 entry")
        if silent < 1:
            raise InvalidValue("silent", silent, "at least 1 second")
        self.log = log
        self.temporary = name is None
        self.name = name or f"~{secrets.token_urlsafe(9)}"
        self._start: Start | Position = start
        self._only = None if partitions is None else frozenset(partitions)
        self._page = page
        self._silent_ms = round(silent * 1000) if self.temporary else 0
        self._look_anyway = min(LOOK_ANYWAY, silent / 3) if self.temporary else LOOK_ANYWAY
        self._at: Positions = {}
        """How far entries were given out."""
        self._done: Positions = {}
        """How far the floor was moved."""
        self._fences: dict[Partition, int] = {}
        self._open: set[Partition] = set()
        """The partitions of the epoch that is being read which may have more."""
        self._epoch: Epoch | None = None
        self._bells: Subscription | None = None
        self._news: dict[Partition, None] = {}
        self._given: Batch | None = None
        self._owed: Positions = {}
        """Where a temporary reader is done and its floor is not yet."""
        self._moved = 0.0
        self._looked = 0.0
        self._renewed = 0.0

    async def __aenter__(self) -> Self:
        layout = await self.log.layout(anew=True)
        await self._register(layout.epochs)
        self._start = START  # whatever epoch begins from now on is read from its start
        again = await self.log.layout(anew=True)
        await self._register(again.epochs)
        await self._enter(again.epochs[0])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading. A named reader keeps its floor; a temporary one takes its own away."""
        if self._bells is not None:
            await self._bells.close()
            self._bells = None
        if self.temporary:
            await self.log.retire(self.name)

    @property
    def positions(self) -> Positions:
        """Up to where entries were given out."""
        return dict(self._at)

    # ------------------------------------------------------------------ reading

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self._batches(wait=True)

    def until_now(self) -> AsyncIterator[Batch]:
        """What there is, without waiting for more."""
        return self._batches(wait=False)

    async def _batches(self, *, wait: bool) -> AsyncIterator[Batch]:
        if self._epoch is None:
            raise InvalidValue("reader", self.name, "it must be entered first: async with … as reader")
        self._news = dict.fromkeys(sorted(self._open))
        while True:
            await self._finish_given()
            batch = await self._next()
            if batch is not None:
                self._given = batch
                yield batch
            elif not await self._cross() and not await self._listen(wait):
                return

    async def _next(self) -> Batch | None:
        """The next entries of some partition that may have news; partitions take turns."""
        while self._news:
            partition = next(iter(self._news))
            del self._news[partition]
            batch = await self.read(partition)
            if batch is not None:
                self._news[partition] = None  # to the end of the line: there may be more
                return batch
        return None

    async def read(self, partition: Partition) -> Batch | None:
        """The next entries of one partition; None where there are none yet."""
        at = self._at[partition]
        found = await self.log.store(partition).page(at.id, self._page)
        if not found:
            return None
        for expected, entry in enumerate(found, at.ordinal + 1):
            if entry.ordinal != expected:
                await self.log.store(partition).check(at)
                raise await self._missing(partition, expected, entry.ordinal)
        self._at[partition] = found[-1].position
        return Batch(partition, [entry for entry in found if entry.key], found[-1].position, self)

    async def commit(self, partition: Partition, position: Position) -> None:
        """Move the floor of one partition up to a position."""
        await self.log.store(partition).advance(self.name, self._fences[partition], position, self._silent_ms)
        self._done[partition] = position

    async def _finish_given(self) -> None:
        batch, self._given = self._given, None
        if self.temporary:
            if batch is not None:
                self._owed[batch.partition] = batch.position
            if time.monotonic() - self._moved >= MOVE_EVERY:
                await self._move_floors()
            await self._stay_known()

    async def _move_floors(self) -> None:
        """Move a temporary reader's floors up to where it has got; a named one says where itself."""
        self._moved = time.monotonic()
        owed, self._owed = self._owed, {}
        await self.log.each(lambda store: self.commit(store.partition, owed[store.partition]), sorted(owed))

    async def _stay_known(self) -> None:
        now = time.monotonic()
        if (now - self._renewed) * 3000 < self._silent_ms:
            return
        self._renewed = now

        async def renew(store: PartitionStore) -> None:
            fence, done = self._fences[store.partition], self._done[store.partition]
            with suppress(_Removed):
                await self._there(store, store.advance(self.name, fence, done, self._silent_ms))

        await self.log.each(renew, sorted(self._fences))

    # ------------------------------------------------------------------ waiting for more

    async def _listen(self, wait: bool) -> bool:
        """Wait until something may be there; False where it is not to be waited for."""
        await self._move_floors()
        if not wait:
            return False
        if self._bells is None:
            self._bells = self.log.redis.subscribe([self._bell(one) for one in sorted(self._open)])
            await self._bells.__aenter__()
        left = self._look_anyway - (time.monotonic() - self._looked)
        try:
            if left <= 0:
                raise TimeoutError
            async with asyncio.timeout(left):
                rung = await self._bells.__anext__()
        except TimeoutError:
            self._looked = time.monotonic()
            self._news = dict.fromkeys(sorted(self._open))
            await self._check_tails()
            if self.temporary:
                await self._stay_known()
        except StopAsyncIteration:
            return False
        else:
            by_bell = {self._bell(one): one for one in self._open}
            self._news |= dict.fromkeys(by_bell[bell] for bell in rung if bell in by_bell)
        return True

    def _bell(self, partition: Partition) -> Key:
        return self.log.store(partition).keys.bell

    async def _check_tails(self) -> None:
        """Where ordinals were given that the stream does not have, something was removed unread."""
        layout = await self.log.layout(anew=True)
        self._forget_removed(layout)
        await self._register(layout.epochs)
        for partition in sorted(self._open):
            store = self.log.store(partition)
            at = self._at[partition]
            with suppress(_Removed):
                last = await self._there(store, store.check(at))
                if last > at.ordinal and not await store.page(at.id, 1):
                    raise await self._missing(partition, at.ordinal + 1, None)

    async def _missing(self, partition: Partition, expected: int, found: int | None) -> LogError:
        """Why an entry is not there: nothing is kept for one that is not registered any more."""
        if self.name not in (await self.log.store(partition).look()).readers:
            return ReaderGone("GONE this reader is not registered: it was retired, or silent for too long")
        there = f"the next one there is {found}" if found is not None else "nothing after it is there"
        return GapFound(
            f"GAP partition {partition}: entry {expected} is missing ({there}); it was removed before this "
            "reader had read it"
        )

    # ------------------------------------------------------------------ epochs

    async def _register(self, epochs: Sequence[Epoch]) -> None:
        """Have a floor in every partition of these epochs that is ours to read."""
        wanted = [
            partition
            for epoch in epochs
            for partition in epoch.all()
            if partition not in self._fences and (self._only is None or partition in self._only)
        ]
        start = self._start

        async def register(store: PartitionStore) -> None:
            where = start.get(store.partition, "first") if isinstance(start, dict) else start
            state = await store.register(self.name, where, self._silent_ms)
            if not self.temporary:
                state = await store.claim(self.name)
            self._fences[store.partition] = state.fence
            self._at[store.partition] = self._done[store.partition] = state.position

        await self.log.each(register, wanted)

    async def _enter(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._open = {one for one in epoch.all() if one in self._fences}
        self._news = dict.fromkeys(sorted(self._open))
        self._looked = time.monotonic()
        if self._bells is not None:
            await self._bells.close()
            self._bells = None

    async def _cross(self) -> bool:
        """Go on with the next epoch, once all of this one has been read, here and by all who share it."""
        layout: Layout = await self.log.layout()
        assert self._epoch is not None
        following = [epoch for epoch in layout.epochs if epoch.number > self._epoch.number]
        if not following:
            return False
        self._forget_removed(layout)
        here = self._epoch.all() if self._epoch.number >= layout.oldest else []
        for standing in await self.log.each(lambda store: store.look(), here):
            done = self._at.get(standing.partition)
            if done is None and self.name in standing.readers:
                done = standing.readers[self.name].position
            if not standing.sealed or done is None or done.ordinal < standing.ordinal:
                return False
            store = self.log.store(standing.partition)
            with suppress(_Removed):
                await self._there(store, store.check(done))
        await self._register(following)
        await self._enter(following[0])
        return True

    # An epoch is removed only when every reader is done with it: one that has not yet crossed loses nothing.

    def _forget_removed(self, layout: Layout) -> None:
        gone = {one for one in self._fences if one.epoch < layout.oldest}
        self._open -= gone
        for partition in gone:
            for places in (self._fences, self._at, self._done, self._owed, self._news):
                places.pop(partition, None)

    async def _there(self, store: PartitionStore, asked: Awaitable[T]) -> T:
        """What a partition says; :class:`_Removed` where its epoch was removed in the meantime."""
        try:
            return await asked
        except (LogDiverged, ReaderGone):
            if store.partition.epoch < (await self.log.layout(anew=True)).oldest:
                raise _Removed from None
            raise


class _Removed(Exception):
    """The partition is of an epoch that is over and was removed."""
