"""What positions are computed from: published a few times a second, the same for everybody who asks.

The cost of a position does not depend on how many wait, and no server is asked. Near the front it is exact.
Elsewhere people are counted by stretches of places, and everybody before somebody in the same stretch counts
as there: it is never too low, and too high by fewer than :data:`STRETCH`. For the same reason it never grows:
whatever is not known yet counts as somebody who waits.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Self, get_args

from toril.room.ticket import Lane, Mode, Phase

STRETCH = 1024
"""Places that are counted together."""


@dataclass(frozen=True, slots=True)
class Line:
    """One lane of one shard, as it was."""

    head: int
    """The last place that is settled: nobody waits there, or before it."""
    last: int
    """The last place that somebody could have."""
    issued: int
    waiting: int
    active: int
    """Let in, and not done yet."""
    observed: float
    """Admissions per second, lately, while people waited; 0: not known."""
    rate: float
    most: int
    """How many may be inside; -1: any number."""
    sealed: int
    placed: int
    counts: tuple[int, ...]
    """How many wait in each stretch from the head's on."""
    front: bytes
    """The bitmaps of the first two of them."""
    before: tuple[int, ...] = field(repr=False)
    """At most so many wait in the stretches before each."""

    @classmethod
    def read(cls, numbers: bytes, counts: bytes, front: bytes) -> Self:
        """From what ``lua/room/_snapshot.lua`` writes."""
        head, last, issued, waiting, active, observed, rate, most, sealed, placed = map(int, numbers.split())
        packed = array("H", counts)
        if sys.byteorder == "little":
            packed.byteswap()
        known = tuple(packed)
        first = head // STRETCH
        bounds = [count + max(0, (first + i + 1) * STRETCH - last) for i, count in enumerate(known)]
        return cls(
            head=head,
            last=last,
            issued=issued,
            waiting=waiting,
            active=active,
            observed=observed / 1000,
            rate=rate / 1000,
            most=most,
            sealed=sealed,
            placed=placed,
            counts=known,
            front=front,
            before=tuple(accumulate(bounds, initial=0)),
        )

    def ahead(self, place: int) -> tuple[int, bool]:
        """How many wait before a place at which somebody waits, at most; and whether that is exact."""
        return self._below(place - 1, own=1)

    def upto(self, place: int) -> tuple[int, bool]:
        """How many wait at a place and before it, at most; and whether that is exact."""
        return self._below(place, own=0)

    def _below(self, place: int, own: int) -> tuple[int, bool]:
        if place <= self.head:
            return 0, True
        first = self.head // STRETCH
        if place <= (first + 2) * STRETCH:
            known = min(place, self.last)
            return self._exactly(known - first * STRETCH) + place - known, known == place
        stretch, offset = divmod(place - 1, STRETCH)
        index = stretch - first
        if index >= len(self.counts):  # places that were given later
            return self.before[-1] + place - (first + len(self.counts)) * STRETCH, False
        here = offset + 1
        if (stretch + 1) * STRETCH <= self.last:  # nobody comes into this stretch any more
            here = min(here, self.counts[index] - (own if here < STRETCH else 0))
        return self.before[index] + here, False

    def _exactly(self, bits: int) -> int:
        """How many of the first so many places of the first two stretches somebody waits at."""
        whole, rest = divmod(bits, 8)
        count = int.from_bytes(self.front[:whole], "big").bit_count()
        if rest and whole < len(self.front):
            count += (self.front[whole] >> (8 - rest)).bit_count()
        return count


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a room was at one moment."""

    version: int
    now_ms: int
    mode: Mode
    phase: Phase
    paused: bool
    patience_ms: int
    shards: tuple[Mapping[Lane, Line], ...]
    cuts: Mapping[Lane, int]
    """How many cuts there were: see :class:`~toril.room.shards.Cuts`."""

    @classmethod
    def read(cls, said: Mapping[bytes, bytes]) -> Self:
        """From what is written down."""
        shards = []
        for shard in range(int(said.get(b"shards", 1))):
            prefix = b"%d/" % shard if b"shards" in said else b""
            lines: dict[Lane, Line] = {}
            for lane in get_args(Lane):
                name = prefix + lane.encode()
                lines[lane] = Line.read(said[name], said[name + b":counts"], said[name + b":front"])
            shards.append(lines)
        mode, phase = said[b"mode"].decode(), said[b"phase"].decode()
        return cls(
            version=int(said[b"v"]),
            now_ms=int(said[b"now"]),
            mode=next(one for one in get_args(Mode) if one == mode),
            phase=next(one for one in get_args(Phase) if one == phase),
            paused=said[b"paused"] == b"1",
            patience_ms=int(said[b"patience"]),
            shards=tuple(shards),
            cuts={lane: int(said.get(lane.encode() + b":cuts", 0)) for lane in get_args(Lane)},
        )

    @property
    def ordered(self) -> bool:
        """Whether people are let in in the order of their places."""
        return self.mode != "random"

    def waiting(self, lane: Lane) -> int:
        """How many waited."""
        return sum(lines[lane].waiting for lines in self.shards)

    def active(self, lane: Lane) -> int:
        """How many had been let in, and were not done."""
        return sum(lines[lane].active for lines in self.shards)

    def observed(self, lane: Lane) -> float:
        """Admissions per second, lately; 0: not known."""
        return sum(lines[lane].observed for lines in self.shards)

    def rate(self, lane: Lane) -> float:
        """Admissions per second, by the settings."""
        return self.shards[0][lane].rate
