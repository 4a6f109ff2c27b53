"""Reading ahead: one portion, not more, in order, and nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from toril.migrate.ahead import ahead


class Source:
    """Portions 0 … 9, or an error in place of one; notes what was asked for."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.asked: list[int] = []
        self.closed = False
        self._fails_at = fails_at

    async def portions(self) -> AsyncGenerator[int]:
        try:
            for number in range(10):
                self.asked.append(number)
                await asyncio.sleep(0)
                if number == self._fails_at:
                    raise ConnectionError("the server is gone")
                yield number
        finally:
            self.closed = True


async def test_order_kept_and_one_portion_is_read_ahead() -> None:
    source, seen = Source(), list[int]()
    async for number in ahead(source.portions()):
        assert source.asked == list(range(min(number + 2, 10)))  # asked for before the work begins
        await asyncio.sleep(0.001)
        assert source.asked == list(range(min(number + 2, 10)))  # and no other, however long it takes
        seen.append(number)
    assert seen == list(range(10))
    assert source.closed


async def test_an_error_comes_after_what_was_read_before_it() -> None:
    source, seen = Source(fails_at=3), list[int]()

    async def work() -> None:
        async for number in ahead(source.portions()):
            await asyncio.sleep(0.001)
            seen.append(number)

    with pytest.raises(ConnectionError, match="the server is gone"):
        await work()
    assert seen == [0, 1, 2]


async def test_stopping_in_the_middle_stops_the_reading() -> None:
    source = Source()

    async def work() -> None:
        async with aclosing(ahead(source.portions())) as portions:
            async for number in portions:
                if number == 2:
                    raise ValueError("it cannot be written")

    with pytest.raises(ValueError, match="cannot be written"):
        await work()
    assert source.closed
    assert source.asked == [0, 1, 2, 3]
    assert len(asyncio.all_tasks()) == 1
