"""What a migration says of itself: to a progress bar, and at the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

MOST_PROBLEMS = 1000
"""So many are kept to be shown; the others are counted."""

Told = Callable[[str, int, int], None]
"""Hears how far a queue is: its name, so many jobs, of so many."""


def tell_nobody(queue: str, done: int, of: int) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong with one job."""

    queue: str
    job: str
    what: str


@dataclass(slots=True)
class QueueReport:
    """What became of one queue."""

    source: str
    destination: str
    copied: Counter[str] = field(default_factory=Counter)
    """Jobs that arrived, by state."""
    already: int = 0
    """Jobs that had arrived before."""
    renumbered: int = 0
    superseded: int = 0
    """Next runs of schedulers that were there already."""
    missing: int = 0
    """Ids in the old queue without a job."""
    busy: int = 0
    """Jobs that old workers are working on."""
    later: int = 0
    """Children whose parents are not there yet."""
    schedulers: int = 0
    dedup_keys: int = 0
    workers: list[str] | None = field(default_factory=list)
    """Old workers that are connected; None where the server does not tell."""
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    @property
    def left(self) -> int:
        """Jobs that are still only in the old queue."""
        return self.busy + self.later + self.problem_count

    @property
    def total(self) -> int:
        """Jobs that arrived."""
        return self.copied.total()

    def problem(self, job: str, what: str) -> None:
        """Note what went wrong with a job."""
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(self.source, job, what))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self) | {"copied": dict(self.copied), "total": self.total, "left": self.left}


class Pace:
    """Not more than so many a second."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._free_at = time.monotonic()

    async def take(self, count: int) -> None:
        """Wait until so many more may go."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
        self._free_at = max(now, self._free_at) + count / self._rate
