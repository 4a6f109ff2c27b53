"""What players do here beyond what those of ``benchmarks.queue`` do: a steady flow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks.queue.players.player import QUEUE, Payload, Player, Stage, payload
from benchmarks.queue.players.player import main as play

__all__ = ["QUEUE", "Payload", "Player", "main"]

BEAT = 0.005
"""Seconds between two batches of a flow."""

MOST = 1000
"""Jobs of a batch, however far a producer is behind."""


class StreamStage(Stage):
    """Where a player of this benchmark plays."""

    async def flow(self, count: int, rate: float) -> Any:
        """So many jobs at a steady rate per second, in a batch every few milliseconds."""
        began = time.monotonic()
        added = beats = 0
        while added < count:
            beats += 1
            await asyncio.sleep(max(0.0, began + beats * BEAT - time.monotonic()))
            due = min(count, added + MOST, round((time.monotonic() - began) * rate))
            if due > added:
                await self._player.add_bulk([payload(number) for number in range(added, due)])
                added = due
        return {"seconds": time.monotonic() - began}


def main(player: Callable[[], Player]) -> None:
    """Run a player."""
    play(player, StreamStage)
