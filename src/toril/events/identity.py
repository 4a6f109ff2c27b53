"""Ids that sort by time, and the clock that says when events occurred."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Clock = Callable[[], int]
"""Gives the time: nanoseconds since 1970, as a whole number."""

_clock: ContextVar[Clock] = ContextVar("toril_clock", default=time.time_ns)


def now() -> int:
    """Nanoseconds since 1970, by the clock in use."""
    return _clock.get()()


@contextmanager
def use_clock(clock: Clock) -> Iterator[None]:
    """Within this block (and in the tasks and threads it starts), events occur at the time of this clock."""
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)


_FRACTIONS = 4096
"""Parts of a millisecond that an id can tell apart: 12 bits."""

_lock = threading.Lock()
_last = 0


def new_event_id() -> str:
    """A UUID of version 7 (RFC 9562): unique, and in one process each is greater than the one before.

    48 bits are the millisecond, 12 bits the part of it, 62 bits chance. When the clock stands still or goes
    back, the id counts on from the last one. Ids follow the computer's clock, not :func:`use_clock`.
    """
    global _last
    with _lock:
        stamp = _last = max(time.time_ns() * _FRACTIONS // 1_000_000, _last + 1)
    chance = int.from_bytes(os.urandom(8), "big") >> 2
    bits = (stamp // _FRACTIONS) << 80 | 7 << 76 | (stamp % _FRACTIONS) << 64 | 2 << 62 | chance
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
