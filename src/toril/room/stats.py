"""How a room stands, for operators and for metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Self

from toril.room.settings import Settings
from toril.room.ticket import Lane, Phase, check_lane

WAIT_BOUNDS = (1, 5, 15, 60, 300, 900, 1800, 3600)
"""Seconds: waiting times are counted up to each, and above the last."""

ENDS = ("left", "abandoned", "lapsed", "expired", "revoked")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStats:
    """The counters of a lane, since the room was made; ``waiting`` and ``active`` are of now."""

    joined: int
    waiting: int
    active: int
    """Let in, and not done: ready or inside."""
    admitted: int
    ended: Mapping[str, int]
    """Tickets by how they ended: left, abandoned (ghosts), lapsed, expired, revoked."""
    observed_rate: float
    """Admissions per second, lately."""
    wait_counts: tuple[int, ...]
    """How many of those let in had waited up to each of :data:`WAIT_BOUNDS`; the last: longer."""
    wait_total_ms: int

    @classmethod
    def read(cls, line: Mapping[str, int], active: int) -> Self:
        """From what is written down."""
        counts = [line.get(f"waited:{bound}", 0) for bound in WAIT_BOUNDS]
        admitted = line.get("admitted", 0)
        return cls(
            joined=line.get("issued", 0),
            waiting=line.get("waiting", 0),
            active=active,
            admitted=admitted,
            ended={how: line.get(how, 0) for how in ENDS},
            observed_rate=line.get("observed", 0) / 1000,
            wait_counts=(*counts, max(0, admitted - sum(counts))),
            wait_total_ms=line.get("waited", 0),
        )

    def __add__(self, other: LaneStats) -> LaneStats:
        return LaneStats(
            joined=self.joined + other.joined,
            waiting=self.waiting + other.waiting,
            active=self.active + other.active,
            admitted=self.admitted + other.admitted,
            ended={how: self.ended[how] + other.ended[how] for how in ENDS},
            observed_rate=self.observed_rate + other.observed_rate,
            wait_counts=tuple(a + b for a, b in zip(self.wait_counts, other.wait_counts, strict=True)),
            wait_total_ms=self.wait_total_ms + other.wait_total_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """How a room stands."""

    room: str
    now_ms: int
    settings: Settings
    phase: Phase
    paused: bool
    resetting: bool
    commitment: str
    refused: int
    """Joins that were turned away: closed, or full."""
    lanes: Mapping[Lane, LaneStats]

    def with_shards(self, shards: Sequence[Stats]) -> Stats:
        """The same, with the counters of a room's shards."""
        return replace(
            self,
            refused=sum(shard.refused for shard in shards),
            lanes={lane: reduce(add, (shard.lanes[lane] for shard in shards)) for lane in self.lanes},
        )

    @classmethod
    def read(
        cls,
        room: str,
        now: int,
        meta: Mapping[str, str],
        lanes: Mapping[str, tuple[Mapping[str, int], int]],
    ) -> Self:
        """From what is written down."""
        phase = meta["phase"]
        return cls(
            room=room,
            now_ms=now,
            settings=Settings.read(meta),
            phase="gathering" if phase == "gathering" else "shuffling" if phase == "shuffling" else "open",
            paused=meta["paused"] == "1",
            resetting=meta.get("resetting") == "1",
            commitment=meta["commitment"],
            refused=int(meta.get("refused", 0)),
            lanes={check_lane(lane): LaneStats.read(line, active) for lane, (line, active) in lanes.items()},
        )
