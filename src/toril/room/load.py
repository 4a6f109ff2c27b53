"""Admission that follows a load: the room feeds whatever works behind it as fast as that can take it.

What is behind the room says how it stands (:class:`LoadSignal`); the rate is set by one rule,

    rate = throughput + (throughput × target − lag) / settle

which lets in as many as are being finished, more while less than ``target`` seconds of work is waiting
there, and fewer while more is. Where nothing is waiting, throughput is only what was let in, and the rate
grows until something waits; where the workers become slower, what waits is worked off within a few
``settle``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from toril.errors import InvalidValue
from toril.room.ticket import Lane


@dataclass(frozen=True, slots=True)
class Load:
    """How a queue behind the room stands."""

    lag: int
    """Pieces of work that nobody has begun."""
    throughput: float
    """Pieces of work finished per second, lately: over a second or two."""
    oldest_age: float = 0.0
    """Seconds for which the oldest piece of work has been waiting; 0 where that is not known."""


class LoadSignal(Protocol):
    """Says how a queue stands. A job queue or a stream queue is one with three lines around it."""

    async def load(self) -> Load:
        """How it stands now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """How the rate of a lane follows a load."""

    signal: LoadSignal
    least: float = 1.0
    """The rate never falls below this, so that it is seen when work gets done again; and at least so many
    pieces of work should be waiting, so that a rate that is small grows too."""
    most: float = 1000.0
    target: float = 0.5
    """Seconds of work that should be waiting: enough that nobody behind the room is idle."""
    settle: float = 1.0
    """Seconds in which two thirds of what is too much, or missing, is made up for."""
    every: float = 0.5
    """Seconds between two looks."""
    lane: Lane = "main"

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.most:
            raise InvalidValue("least", self.least, "more than 0, and no more than `most`")
        for what in ("target", "settle", "every"):
            if getattr(self, what) <= 0:
                raise InvalidValue(what, getattr(self, what), "a time in seconds, more than 0")

    def rate(self, load: Load) -> float:
        """The rate that a load asks for."""
        waiting = max(float(load.lag), load.oldest_age * load.throughput)
        wanted_there = max(load.throughput * self.target, self.least)
        wanted = load.throughput + (wanted_there - waiting) / self.settle
        return round(min(self.most, max(self.least, wanted)), 3)
