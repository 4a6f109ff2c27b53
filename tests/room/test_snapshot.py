"""Positions: never too low, too high by less than a stretch, exact in front; and they never grow."""

from __future__ import annotations

import random
import struct
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from toril.room import STRETCH, Line


def line_of(alive: set[int], head: int, last: int) -> Line:
    """What the scripts would write of people who wait at these places."""
    first, end = head // STRETCH, max(last - 1, 0) // STRETCH
    waits = Counter((place - 1) // STRETCH for place in alive)
    counts, front = [waits[stretch] for stretch in range(first, end + 1)], bytearray(2 * STRETCH // 8)
    for place in alive:
        if (at := place - 1 - first * STRETCH) < 2 * STRETCH:
            front[at // 8] |= 128 >> at % 8
    numbers = f"{head} {last} {last} {len(alive)} 0 0 1000 -1 0 0".encode()
    return Line.read(numbers, struct.pack(f">{len(counts)}H", *counts), bytes(front))


@given(st.integers(0, 2**32), st.integers(1, 6 * STRETCH), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_room_fair_positions_are_bounded_exact_in_front_and_never_grow(
    chance: int, last: int, share: float
) -> None:
    """A line shrinks and grows at its end; whoever waits sees a number that only falls."""
    rng = random.Random(chance)
    alive = {place for place in range(1, last + 1) if rng.random() < share}
    told: dict[int, int] = {}
    head = 0
    for _ in range(8):
        head = min(alive, default=last + 1) - 1
        line = line_of(alive, head, last)
        joining = last + rng.randrange(STRETCH * 2)  # came after the snapshot
        ranks = {place: rank for rank, place in enumerate(sorted(alive))}
        watched = rng.sample(sorted(alive), min(len(alive), 40))
        for place in watched + [place for place in told if place in alive]:
            ahead, exact = line.ahead(place)
            assert 0 <= ahead - ranks[place] < STRETCH
            assert ahead <= told.setdefault(place, ahead)
            told[place] = ahead
            if place <= (head // STRETCH + 2) * STRETCH:
                assert exact
                assert ahead == ranks[place]
            upto, _ = line.upto(place)
            assert 0 <= upto - ranks[place] - 1 < STRETCH
        told[joining + 1] = line.ahead(joining + 1)[0]
        assert told[joining + 1] >= len(alive)
        # Some go, from anywhere; some come.
        gone = set(rng.sample(sorted(alive), rng.randrange(len(alive) + 1)))
        if rng.random() < 0.5:
            gone = {place for place in alive if place <= head + rng.randrange(2 * STRETCH)}
        alive -= gone
        alive |= set(range(last + 1, joining + 2))
        last = joining + 1
