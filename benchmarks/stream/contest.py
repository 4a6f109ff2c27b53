"""The rounds of :mod:`benchmarks.queue.contest`, and in each the latency under half of the greatest load.

The greatest load is what producer, server and worker reach together, when the producer adds as fast as it
can while the worker takes. On a machine with fewer processors than these three it is less than what a worker
makes of a backlog, when the producer has nothing to do.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import asdict, dataclass

from benchmarks.queue.contest import Contest, Reading, percentile
from benchmarks.queue.peers import Peer, Tuning
from benchmarks.queue.process import PlayerProcess

FLOW = 3.0
"""Seconds of a flow."""

UNBOUNDED = 1e9
"""A rate that nobody reaches."""


@dataclass(frozen=True, slots=True)
class StreamReading(Reading):
    """What one round gave one peer."""

    flow_rate: float
    """Jobs per second from a producer that adds as fast as it can to a worker."""
    half_rate: float
    """Jobs per second that came while latency was measured: half of these."""
    half_p50: float
    half_p99: float


class StreamContest(Contest):
    """All peers on one server."""

    async def _measure(
        self, peer: Peer, tuning: Tuning, producer: PlayerProcess, worker: PlayerProcess
    ) -> StreamReading:
        reading = await super()._measure(peer, tuning, producer, worker)
        count = round(reading.process * FLOW / 2)
        began = time.monotonic()
        await self._flow(count, UNBOUNDED, producer, worker)
        greatest = count / (time.monotonic() - began)
        count = round(greatest / 2 * FLOW)
        rate, times = await self._flow(count, greatest / 2, producer, worker)
        times = times[count // 10 :]
        return StreamReading(
            **asdict(reading),
            flow_rate=greatest,
            half_rate=rate,
            half_p50=statistics.median(times),
            half_p99=percentile(times, 99),
        )

    async def _flow(
        self, count: int, rate: float, producer: PlayerProcess, worker: PlayerProcess
    ) -> tuple[float, list[float]]:
        """Let so many jobs come at a rate: at which they did, and the latencies when all are done."""
        await worker.tell("listen", count=count)
        await worker.answer()
        flow, heard = await asyncio.gather(producer.ask("flow", count=count, rate=rate), worker.answer())
        return count / flow["seconds"], heard["times"]
