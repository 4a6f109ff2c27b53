"""Reading the next portion while one is being written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


async def ahead(portions: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """The same portions in the same order; the next one is read while one is worked on, and no other."""
    coming = asyncio.create_task(_next(portions))
    try:
        while (portion := await coming) is not None:
            coming = asyncio.create_task(_next(portions))
            await asyncio.sleep(0)  # so it is asked for before the work on this one begins
            yield portion
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await portions.aclose()


async def _next(portions: AsyncGenerator[T]) -> T | None:
    return await anext(portions, None)
