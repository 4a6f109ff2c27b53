"""The rounds of :mod:`benchmarks.queue.contest`, and in each the latency under half of the greatest load."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import asdict, dataclass

from benchmarks.queue.contest import Contest, Reading, percentile
from benchmarks.queue.peers import Peer, Tuning
from benchmarks.queue.process import PlayerProcess

FLOW = 3.0
"""Seconds of a flow."""


@dataclass(frozen=True, slots=True)
class StreamReading(Reading):
    """What one round gave one peer."""

    half_rate: float
    """Jobs per second that came meanwhile: half of what was processed of a backlog."""
    half_p50: float
    half_p99: float


class StreamContest(Contest):
    """All peers on one server."""

    async def _measure(
        self, peer: Peer, tuning: Tuning, producer: PlayerProcess, worker: PlayerProcess
    ) -> StreamReading:
        reading = await super()._measure(peer, tuning, producer, worker)
        rate = reading.process / 2
        count = round(rate * FLOW)
        await worker.tell("listen", count=count)
        await worker.answer()
        flow, heard = await asyncio.gather(producer.ask("flow", count=count, rate=rate), worker.answer())
        times: list[float] = heard["times"][count // 10 :]
        return StreamReading(
            **asdict(reading),
            half_rate=count / flow["seconds"],
            half_p50=statistics.median(times),
            half_p99=percentile(times, 99),
        )
