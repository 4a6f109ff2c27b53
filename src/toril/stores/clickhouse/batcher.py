"""Rows of many callers, inserted together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from toril.events.errors import StoreError, is_retryable

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one insert may hold, what may wait, and how close inserts may follow each other."""

    rows: int = 10_000
    """In one insert, at most."""
    bytes: int = 16 * 2**20
    """In one insert, at most; a single row may be larger."""
    waiting_bytes: int = 64 * 2**20
    """Of rows that wait. Who brings more waits before they are taken."""
    waiting_rows: int = 100_000
    pace: float = 0.0
    """Seconds from the start of one insert to that of the next, unless a full one waits. The first after a
    pause goes at once. It spares a server that many processes insert into."""
    paced_rows: int = 1
    """An insert of fewer rows is followed sooner, by as much: one row after another is not held up."""
    splits: int = 64
    """How many inserts may be spent on finding the rows that the store refuses."""


@dataclass(slots=True, eq=False)
class _Piece(Generic[Row]):
    """Rows of one caller that go together, and what came of them."""

    rows: Sequence[Row]
    weight: int
    done: asyncio.Future[None]


class Batcher(Generic[Row]):
    """Gathers rows while an insert is under way, and inserts them with the next one.

    ``insert`` must be idempotent: after an error some rows may be there. When it refuses rows for good, the
    batch is split until those who brought good rows have them inserted, and the others get the error.
    """

    def __init__(
        self,
        insert: Callable[[Sequence[Row]], Awaitable[None]],
        *,
        weigh: Callable[[Row], int],
        limits: Limits | None = None,
    ) -> None:
        self._insert = insert
        self._weigh = weigh
        self._limits = limits or Limits()
        self._waiting: deque[_Piece[Row]] = deque()
        self._rows = 0
        self._bytes = 0
        """Of all that was taken and is not done."""
        self._line = asyncio.Lock()
        self._room = asyncio.Event()
        self._full = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._last = float("-inf")
        self._last_rows = 0
        self._callers = 0
        self._nobody = asyncio.Event()
        self._nobody.set()
        self._closed = False

    async def add(self, rows: Sequence[Row]) -> None:
        """Returns when these are inserted; raises what the insert of some of them raised."""
        if self._closed:
            raise StoreError("the store is closed: nothing more can be inserted", retryable=False)
        self._callers += 1
        self._nobody.clear()
        outcomes: list[asyncio.Future[None]] = []
        try:
            for piece, weight in self._pieces(rows):
                outcomes.append(await self._take(piece, weight))
            await asyncio.gather(*outcomes)
        finally:
            for outcome in outcomes:
                if not outcome.cancel() and not outcome.cancelled():
                    outcome.exception()  # the first of them was raised; the others are known
            self._callers -= 1
            if not self._callers:
                self._nobody.set()

    async def close(self) -> None:
        """Take no more, and return when all that was brought is done."""
        self._closed = True
        self._full.set()
        await self._nobody.wait()
        if self._runner is not None:
            await asyncio.wait([self._runner])

    def _pieces(self, rows: Sequence[Row]) -> list[tuple[Sequence[Row], int]]:
        """Rows of a caller in parts that fit into an insert."""
        made: list[tuple[Sequence[Row], int]] = []
        start = weight = 0
        for place, row in enumerate(rows):
            more = self._weigh(row)
            if place > start and (place - start >= self._limits.rows or weight + more > self._limits.bytes):
                made.append((rows[start:place], weight))
                start, weight = place, 0
            weight += more
        if start < len(rows):
            made.append((rows[start:], weight))
        return made

    async def _take(self, rows: Sequence[Row], weight: int) -> asyncio.Future[None]:
        """Into the buffer, as soon as there is room; first come, first served."""
        async with self._line:
            while not self._fits(len(rows), weight):
                self._room.clear()
                await self._room.wait()
            piece = _Piece(rows, weight, asyncio.get_running_loop().create_future())
            self._waiting.append(piece)
            self._rows += len(rows)
            self._bytes += weight
        if self._is_full():
            self._full.set()
        if self._runner is None:
            self._runner = asyncio.create_task(self._run(), name="toril-batcher")
        return piece.done

    def _fits(self, rows: int, weight: int) -> bool:
        """Whatever its size, one piece fits where there is nothing else."""
        if not self._rows:
            return True
        within = self._limits
        return self._rows + rows <= within.waiting_rows and self._bytes + weight <= within.waiting_bytes

    def _is_full(self) -> bool:
        return self._rows >= self._limits.rows or self._bytes >= self._limits.bytes

    async def _run(self) -> None:
        """Inserts until nothing waits."""
        try:
            while self._waiting:
                await self._keep_pace()
                batch = self._gather()
                if batch:
                    await self._settle(batch)
        finally:
            self._runner = None

    async def _keep_pace(self) -> None:
        """Nothing is under way here, so what was taken is what waits."""
        pace = self._limits.pace * min(1.0, self._last_rows / self._limits.paced_rows)
        early = self._last + pace - time.monotonic()
        if early > 0 and not self._closed and not self._is_full():
            self._full.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(early):
                    await self._full.wait()
        self._last = time.monotonic()

    def _gather(self) -> list[_Piece[Row]]:
        """What goes into the next insert. What its caller no longer waits for is left out."""
        batch: list[_Piece[Row]] = []
        rows = weight = 0
        while self._waiting:
            piece = self._waiting[0]
            if piece.done.done():
                self._release(self._waiting.popleft())
                continue
            rows += len(piece.rows)
            weight += piece.weight
            if batch and (rows > self._limits.rows or weight > self._limits.bytes):
                break
            batch.append(self._waiting.popleft())
        self._last_rows = sum(len(piece.rows) for piece in batch)
        return batch

    async def _settle(self, batch: list[_Piece[Row]]) -> None:
        """Insert these, in halves and halves of halves where some cannot be."""
        parts, left = [batch], self._limits.splits
        while parts:
            part = parts.pop()
            try:
                await self._insert([row for piece in part for row in piece.rows])
            except Exception as problem:  # noqa: BLE001 - it goes to those whose rows these are
                if len(part) == 1 or left < 2 or is_retryable(problem):
                    self._end(part, problem)
                    continue
                left -= 2
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            except BaseException:
                for one in (part, *parts):
                    self._end(one, StoreError("the insert was given up, and may have been done"))
                raise
            else:
                self._end(part, None)

    def _end(self, batch: list[_Piece[Row]], problem: Exception | None) -> None:
        for piece in batch:
            self._release(piece)
            if piece.done.done():
                continue
            if problem is None:
                piece.done.set_result(None)
            else:
                piece.done.set_exception(problem)

    def _release(self, piece: _Piece[Row]) -> None:
        self._rows -= len(piece.rows)
        self._bytes -= piece.weight
        self._room.set()
