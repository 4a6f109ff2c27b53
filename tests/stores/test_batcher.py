"""Rows of many callers are inserted together: bounded, in order, and one bad row harms nobody else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from tests.conftest import SCALE
from toril.events.errors import StoreError, is_retryable
from toril.stores.clickhouse import Batcher, Limits


class Refused(StoreError):
    retryable = False


class Sink:
    """An insert that can be held, and that refuses some rows."""

    def __init__(self, bad: frozenset[int] = frozenset()) -> None:
        self.bad = bad
        self.batches: list[list[int]] = []
        self.tries = 0
        self.failing: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.at_once = 0

    async def __call__(self, rows: Sequence[int]) -> None:
        self.tries += 1
        self.at_once += 1
        assert self.at_once == 1, "two inserts at once"
        try:
            await self.open.wait()
            await asyncio.sleep(0)
            if self.failing is not None:
                raise self.failing
            if self.bad.intersection(rows):
                raise Refused("a row that cannot be stored")
            self.batches.append(list(rows))
        finally:
            self.at_once -= 1

    @property
    def rows(self) -> list[int]:
        return [row for batch in self.batches for row in batch]


def batcher(sink: Sink, weigh: int = 1, **limits: float) -> Batcher[int]:
    return Batcher(sink, weigh=lambda _: weigh, limits=Limits(**limits))  # type: ignore[arg-type]


async def ticks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_comes_meanwhile_goes_into_the_next_insert() -> None:
    sink = Sink()
    made = batcher(sink)
    sink.open.clear()
    first = asyncio.create_task(made.add([0]))
    await ticks()
    others = [asyncio.create_task(made.add([n, n])) for n in range(1, 50)]
    await ticks()
    assert not first.done()
    sink.open.set()
    await asyncio.gather(first, *others)
    assert sink.batches == [[0], [n for n in range(1, 50) for _ in range(2)]]


async def test_a_lone_row_is_inserted_at_once() -> None:
    """The pace is for those that follow."""
    sink = Sink()
    made = batcher(sink, pace=3600)
    async with asyncio.timeout(5):
        await made.add([1])
        waiting = asyncio.create_task(made.add([2]))
        await ticks()
        assert sink.rows == [1]
        await made.close()
        await waiting
    assert sink.rows == [1, 2]


async def test_one_row_after_another_is_not_held_up() -> None:
    """The pace is for inserts that are worth it."""
    sink = Sink()
    made = batcher(sink, pace=60, paced_rows=60_000, rows=100_000)
    async with asyncio.timeout(5):
        for number in range(50):
            await made.add([number])
        await made.add(list(range(60_000)))
        before = len(sink.batches)
        waiting = asyncio.create_task(made.add([1]))
        await ticks()
        assert len(sink.batches) == before
        await made.close()
        await waiting


async def test_a_full_insert_does_not_wait_for_its_time() -> None:
    sink = Sink()
    made = batcher(sink, pace=3600, rows=10)
    async with asyncio.timeout(5):
        await made.add([0])
        await asyncio.gather(*(made.add([n]) for n in range(1, 11)))
    assert [len(batch) for batch in sink.batches] == [1, 10]


async def test_nothing_is_inserted_for_no_rows() -> None:
    sink = Sink()
    await batcher(sink).add([])
    assert sink.tries == 0


@pytest.mark.parametrize(("weight", "limits"), [(1, {"rows": 7}), (10, {"bytes": 70})])
async def test_inserts_are_bounded(weight: int, limits: dict[str, int]) -> None:
    """By rows and by bytes, also where one caller brings more; all in order."""
    sink = Sink()
    made = batcher(sink, weight, **limits)
    await asyncio.gather(made.add(range(100)), *(made.add([n]) for n in range(100, 130)))
    assert max(map(len, sink.batches)) == 7
    assert sink.rows == sorted(sink.rows) == list(range(130))


async def test_a_row_larger_than_an_insert_goes_alone() -> None:
    sink = Sink()
    await batcher(sink, 100, bytes=70, waiting_bytes=10).add([1, 2])
    assert sink.batches == [[1], [2]]


async def test_who_brings_too_much_waits() -> None:
    """In the order in which they came; and who gives up makes room for nobody's row twice."""
    sink = Sink()
    made = batcher(sink, rows=2, waiting_rows=4)
    sink.open.clear()
    calls = [asyncio.create_task(made.add([n])) for n in range(20)]
    await ticks()
    assert made._rows == 4
    for call in calls[10:12]:
        call.cancel()
    sink.open.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert sink.rows == [*range(10), *range(12, 20)]
    assert (made._rows, made._bytes) == (0, 0)


async def test_one_bad_row_fails_only_who_brought_it() -> None:
    sink = Sink(frozenset({13, 77}))
    made = batcher(sink)
    sink.open.clear()
    calls = [asyncio.create_task(made.add([n])) for n in range(100)]
    await ticks()
    sink.open.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [n for n, one in enumerate(found) if one is not None] == [13, 77]
    assert all(isinstance(found[n], Refused) for n in (13, 77))
    assert sink.rows == [n for n in range(100) if n not in (13, 77)]


async def test_the_search_for_bad_rows_has_an_end() -> None:
    """Where all are bad, no more inserts are spent than were allowed, and everybody hears of it."""
    sink = Sink(frozenset(range(1000)))
    made = batcher(sink, splits=20)
    found = await asyncio.gather(*(made.add([n]) for n in range(1000)), return_exceptions=True)
    assert all(isinstance(one, Refused) for one in found)
    assert sink.tries <= 21


async def test_what_may_pass_is_not_searched() -> None:
    """A server that is out of reach is asked once; all who wait may come again."""
    sink = Sink()
    sink.failing = StoreError("out of reach")
    made = batcher(sink)
    found = await asyncio.gather(*(made.add([n]) for n in range(10)), return_exceptions=True)
    assert all(isinstance(one, StoreError) and is_retryable(one) for one in found)
    assert sink.tries == 1
    sink.failing = None
    await made.add([1])
    assert sink.rows == [1]


async def test_closing_waits_for_all_that_was_brought() -> None:
    """Also for those who wait for room; later ones are refused."""
    sink = Sink()
    made = batcher(sink, rows=2, waiting_rows=2)
    sink.open.clear()
    calls = [asyncio.create_task(made.add([n])) for n in range(10)]
    await ticks()
    closing = asyncio.create_task(made.close())
    await ticks()
    assert not closing.done()
    with pytest.raises(StoreError, match="closed"):
        await made.add([99])
    sink.open.set()
    await closing
    await asyncio.gather(*calls)
    assert sink.rows == list(range(10))


async def test_a_caller_that_gives_up_stops_nothing() -> None:
    """Its row may be there or not; those of the others are, and closing waits for the insert under way."""
    sink = Sink()
    made = batcher(sink)
    sink.open.clear()
    one, other = asyncio.create_task(made.add([1])), asyncio.create_task(made.add([2]))
    await ticks()
    one.cancel()
    await ticks()
    sink.open.set()
    await other
    await made.close()
    assert 2 in sink.rows


@pytest.mark.promise
async def test_every_caller_learns_what_became_of_its_rows(rng: random.Random) -> None:
    """Callers of all sizes, some with bad rows, some that give up, with limits of all sizes."""
    for _ in range(max(1, int(3 * SCALE))):
        bad = frozenset(n for n in range(2000) if rng.random() < 0.01)
        await crowd(rng, bad)


async def crowd(rng: random.Random, bad: frozenset[int]) -> None:
    sink = Sink(bad)
    sizes = {"rows": rng.choice([1, 7, 100]), "waiting_rows": rng.choice([1, 50, 500]), "splits": 10_000}
    made = batcher(sink, rng.choice([1, 50]), **sizes)
    inserted: list[range] = []
    refused: list[range] = []

    async def caller(rows: range) -> None:
        await ticks(rng.randrange(5))
        try:
            await made.add(rows)
        except Refused:
            refused.append(rows)
        else:
            inserted.append(rows)

    calls, at = [], 0
    while at < 2000:
        size = rng.choice([1, 1, 1, 3, 20])
        calls.append(asyncio.create_task(caller(range(at, at + size))))
        at += size
        if rng.random() < 0.1:
            await asyncio.sleep(0)
            rng.choice(calls).cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(*calls, return_exceptions=True)
        await made.close()
    given_up = sum(call.cancelled() for call in calls)
    assert len(inserted) + len(refused) + given_up == len(calls)
    assert {row for rows in inserted for row in rows} <= set(sink.rows)
    assert all(bad.intersection(rows) for rows in refused)
    assert len(sink.rows) == len(set(sink.rows))
    assert (made._rows, made._bytes) == (0, 0)
