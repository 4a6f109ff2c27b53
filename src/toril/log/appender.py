"""Appending: many tasks, few calls.

Each partition has a *lane*. The first append of a lane is sent at once; what comes while that call is under
way goes together in the next one, bounded by count and bytes. So nobody waits for a batch to fill, and a
busy log is written in batches.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from typing import Protocol

from toril.aggregate import Aggregate
from toril.connection import Durability
from toril.connection.errors import DurabilityNotReached
from toril.log.entry import Append, Appended, Partition
from toril.log.errors import LogError, LogFull, SealedPartition, TenantErased, VersionConflict
from toril.log.store import PartitionStore

MOST_AT_ONCE = 200
"""Events in one call."""

BYTES_AT_ONCE = 1024 * 1024
"""Bytes in one call, passed by one append at most."""

BYTES_WAITING = 16 * 1024 * 1024
"""Bytes that may wait in a lane; whoever comes then waits before its append is taken."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between tries while a partition is full."""


class Home(Protocol):
    """What a lane asks its log."""

    patience: float

    async def bring_back(self, store: PartitionStore, aggregate: Aggregate, asked: int) -> None:
        """Bring an aggregate back that is perhaps cold."""
        ...

    async def moved_on(self, partition: Partition) -> None:
        """Look where the log goes on, after a partition was found sealed."""
        ...


class _Waiting:
    __slots__ = ("append", "done", "thaws")

    def __init__(self, append: Append, done: asyncio.Future[Appended]) -> None:
        self.append = append
        self.done = done
        self.thaws = 0


class Sealed(Exception):
    """The append was not taken: its partition is sealed. Internal to the log."""


class Lane:
    """The appends to one partition with one durability."""

    def __init__(self, home: Home, store: PartitionStore, durability: Durability) -> None:
        self._home = home
        self._store = store
        self._durability = durability
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """Whether whoever comes now should wait."""
        return self._bytes > BYTES_WAITING

    async def room(self) -> None:
        """Wait until it is not full."""
        while self._bytes > BYTES_WAITING:
            self._room.clear()
            await self._room.wait()

    def put(self, append: Append) -> asyncio.Future[Appended]:
        """Take an append. The future is done when it is recorded, or has what is wrong with it alone."""
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(append, done))
        self._bytes += append.size
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return done

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                if batch:
                    await self._send(batch)
        finally:
            self._task = None
            for left in self._waiting:  # only where this task was cancelled, with its loop
                left.done.cancel()

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        events = size = 0
        while self._waiting and (not batch or (events < MOST_AT_ONCE and size < BYTES_AT_ONCE)):
            waiting = self._waiting.popleft()
            self._bytes -= waiting.append.size
            if waiting.done.cancelled():
                continue
            batch.append(waiting)
            events += len(waiting.append.bodies)
            size += waiting.append.size
        if self._bytes <= BYTES_WAITING:
            self._room.set()
        return batch

    async def _send(self, batch: list[_Waiting]) -> None:
        try:
            results, unconfirmed = await self._call([waiting.append for waiting in batch])
        except SealedPartition:
            _fail(batch, Sealed())
        except asyncio.CancelledError:
            _fail(batch, None)
            raise
        except Exception as problem:  # noqa: BLE001 - it belongs to those who wait, whatever it is
            _fail(batch, problem)
        else:
            cold: list[tuple[_Waiting, int]] = []
            partition = self._store.partition
            for waiting, result in zip(batch, results, strict=True):
                if result[0] == "A" and unconfirmed is None:
                    if not waiting.done.done():
                        _, version, count, ordinal, entry_id = result
                        appended = Appended(partition, int(version), int(count), int(ordinal), entry_id)
                        waiting.done.set_result(appended)
                elif result[0] == "F":
                    cold.append((waiting, int(result[1])))
                else:
                    self._answer(waiting, result, unconfirmed)
            if cold:
                await self._bring_back(cold)

    async def _call(self, appends: list[Append]) -> tuple[list[list[str]], DurabilityNotReached | None]:
        until = time.monotonic() + self._home.patience
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._store.append(appends, self._durability), None
            except LogFull:
                if time.monotonic() + pause > until:
                    raise
                await asyncio.sleep(pause * (0.5 + random.random() / 2))
                pause = min(2 * pause, LONGEST_PAUSE)
            except DurabilityNotReached as problem:
                raw = problem.result
                assert isinstance(raw, list)
                return [result.decode().split(" ") for result in raw], problem

    def _answer(self, waiting: _Waiting, result: list[str], unconfirmed: DurabilityNotReached | None) -> None:
        if waiting.done.done():
            return
        append, kind = waiting.append, result[0]
        if kind == "C":
            assert append.expected_version is not None
            waiting.done.set_exception(VersionConflict(append.expected_version, int(result[1])))
        elif kind == "E":
            waiting.done.set_exception(TenantErased("this tenant is being erased; nothing was appended"))
        else:
            # A key made for this append alone is found again only where its own first try was recorded.
            repeated = kind == "R" and append.idempotency_key is not None
            appended = parse_appended(self._store.partition, result[1:], repeated)
            if unconfirmed is None:
                waiting.done.set_result(appended)
            else:
                waiting.done.set_exception(DurabilityNotReached(str(unconfirmed), appended))

    async def _bring_back(self, cold: list[tuple[_Waiting, int]]) -> None:
        async def one(waiting: _Waiting, asked: int) -> None:
            waiting.thaws += 1
            if waiting.thaws > 10:
                raise LogError("a cold aggregate could not be brought back in ten tries")
            await self._home.bring_back(self._store, waiting.append.aggregate, asked)

        outcomes = await asyncio.gather(
            *(one(waiting, asked) for waiting, asked in cold), return_exceptions=True
        )
        for (waiting, _), outcome in zip(reversed(cold), reversed(outcomes), strict=True):
            if outcome is None:
                self._waiting.appendleft(waiting)
                self._bytes += waiting.append.size
            elif not waiting.done.done():
                waiting.done.set_exception(outcome)


def parse_appended(partition: Partition, words: list[str], repeated: bool) -> Appended:
    """What the script says of a record: ``version n ordinal id``, the version perhaps of another epoch."""
    epoch, _, version = words[0].rpartition("/")
    if epoch:
        before, _, number = epoch.partition(".")
        partition = Partition(int(before), int(number))
    return Appended(partition, int(version), int(words[1]), int(words[2]), words[3], repeated)


def _fail(batch: list[_Waiting], problem: Exception | None) -> None:
    for waiting in batch:
        if waiting.done.done():
            continue
        if problem is None:
            waiting.done.cancel()
        else:
            waiting.done.set_exception(problem)
