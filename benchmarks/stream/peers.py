"""Who takes part: how a peer is started, and what is tried with it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.queue.peers import TORIL, Counts, Peer

REQUIREMENTS = Path(__file__).parents[1] / "stream.requirements.txt"

BARE = "bare loop"
REDIS_PY = "bare loop on redis-py 8.1.0"


def counts(stream: str) -> Counts:
    """Jobs by what the stream's only group says: 6 not yet acknowledged, 10 read, 12 not yet read."""
    there = f"redis.call('EXISTS', '{stream}') == 1"
    group = f"local group = {there} and redis.call('XINFO', 'GROUPS', '{stream}')[1]"
    return Counts(
        f"{group} return group and group[12] or redis.call('XLEN', '{stream}')",
        f"{group} return group[10] - group[6]",
    )


@dataclass(frozen=True, slots=True)
class StreamPeer(Peer):
    """One queue on streams, and how much it is asked for."""

    @property
    def command(self) -> list[str]:
        """What starts a player."""
        return [sys.executable, "-m", f"benchmarks.stream.players.{self.module}"]


STREAQ_COUNTS = counts("streaq:{bench}:queues:normal")
FAST, SLOW = 30_000, 4_000
BATCHES = (25, 50, 100)
"""Jobs that a bare loop reads at once."""
CONCURRENCIES = tuple(2 * batch for batch in BATCHES)
"""Toril has two calls under way, each with half of its concurrency: the same batches."""
TORIL_COUNTS = counts("toril:stream:{bench}:s:0")

PEERS = (
    StreamPeer(TORIL, "toril", FAST, CONCURRENCIES, (1000,), counts=TORIL_COUNTS),
    StreamPeer(BARE, "bare", FAST, BATCHES, (1000,), counts=counts("{bench}")),
    StreamPeer(REDIS_PY, "redis_py", FAST, BATCHES, (1000,), counts=counts("{bench}")),
    StreamPeer("streaq 7.2.0", "streaq", SLOW, (10, 50, 100), (100, 500), counts=STREAQ_COUNTS),
    StreamPeer("taskiq-redis 1.2.4", "taskiq", SLOW, (10, 50, 100), (20, 100), counts=counts("{bench}")),
)
QUEUES = tuple(peer.name for peer in PEERS[3:])
"""The peers that are queues."""
