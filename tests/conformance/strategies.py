"""Sequences of operations: drawn by hypothesis, or by chance; and a way to make a failing one short.

Hypothesis finds and shrinks well but likes to vary what it has, and is slow. :func:`random_sequence` draws
the same intents evenly and in no time; :func:`shortest` shortens what fails by leaving operations out.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.conformance.author import Author
from tests.conformance.intents import Below, Intent, choices
from tests.conformance.operations import Operation

NOTHING_LEFT_OUT: frozenset[str] = frozenset()


def sequences(
    *, without: frozenset[str] = NOTHING_LEFT_OUT, parts: int = 4
) -> SearchStrategy[list[Operation]]:
    """Sequences of some 15 to 50 operations; ``without`` leaves kinds of ``intents.KINDS`` out.

    A list of hypothesis has five elements on average when it may shrink to none. Several in a row are
    longer, and shrink as well.
    """
    first, later = (_steps(some) for some in choices(without))
    return st.tuples(st.lists(first, max_size=12), *[st.lists(later, max_size=12)] * parts).map(_written)


@st.composite
def _steps(draw: st.DrawFn, some: list[Callable[[Below], Intent]]) -> Intent:
    def below(bound: int) -> int:
        return draw(_NUMBERS[bound]) if bound > 1 else 0

    return some[draw(st.integers(0, len(some) - 1))](below)


class _Numbers(dict[int, SearchStrategy[int]]):
    """Strategies for numbers below a bound: making one takes longer than drawing from it."""

    def __missing__(self, bound: int) -> SearchStrategy[int]:
        self[bound] = st.integers(0, bound - 1)
        return self[bound]


_NUMBERS = _Numbers()


def random_sequence(
    chance: random.Random, *, without: frozenset[str] = NOTHING_LEFT_OUT, least: int = 15, most: int = 40
) -> list[Operation]:
    """One sequence, about so long."""
    first, later = choices(without)
    length = chance.randint(least, most)
    author = Author()
    for _ in range(chance.randint(2, 6)):
        chance.choice(first)(chance.randrange)(author)
    while len(author.operations) < length:
        chance.choice(later)(chance.randrange)(author)
    return author.operations


def _written(parts: Sequence[Sequence[Intent]]) -> list[Operation]:
    author = Author()
    for part in parts:
        for intent in part:
            intent(author)
    return author.operations


async def shortest(
    operations: Sequence[Operation], fails: Callable[[Sequence[Operation]], Awaitable[object]]
) -> list[Operation]:
    """Leave operations out for as long as the rest still fails: by halves, quarters, … one by one."""
    left = list(operations)
    size = max(len(left) // 2, 1)
    while True:
        place, shorter = 0, False
        while place < len(left):
            without = left[:place] + left[place + size :]
            if without and await fails(without):
                left, shorter = without, True
            else:
                place += size
        if size == 1 and not shorter:
            return left
        size = max(size // 2, 1)
