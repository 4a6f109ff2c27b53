"""The rounds: in each, every peer does the same things on the same server, one peer after the other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from toril.testing import Server

from .peers import Peer, Tuning
from .process import PlayerProcess, play

SINGLES = 600
"""Jobs added one by one, after a sixth of that to warm up."""
TUNING_SHARE = 3
"""A run that looks for the best settings has so many times fewer jobs."""
ALL_KEYS = """
local total = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
  total = total + redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0)
end
return total
"""
GAP = 0.02
"""Seconds between two jobs where latency is measured: 50 jobs/s."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one round gave one peer."""

    add: float
    bulk: float
    process: float
    worker_cpu: float
    server_cpu: float
    rss: float
    p50: float
    p99: float
    waiting: float
    completed: float


Said = Callable[[str], None]


def percentile(times: Sequence[float], percent: int) -> float:
    """What so many percent of the times are below of."""
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1]


class NotDone(RuntimeError):
    """A peer that says it has done its jobs has not."""


class Contest:
    """All peers on one server."""

    def __init__(self, server: Server, peers: Sequence[Peer], seconds: float, say: Said) -> None:
        self._server = server
        self._peers = peers
        self._drips = round(seconds / GAP)
        self._say = say
        self.tuned = {peer.name: Tuning() for peer in peers}
        self.readings: dict[str, list[Reading]] = {peer.name: [] for peer in peers}

    async def tune(self, times: int) -> None:
        """Find each peer's best concurrency and size of a bulk: the best of some runs with each."""
        for peer in self._peers:
            found = self.tuned[peer.name]
            tries = max(len(peer.concurrencies), len(peer.batches))
            for turn in range(tries * times):
                concurrency = peer.concurrencies[turn % len(peer.concurrencies)]
                batch = peer.batches[turn % len(peer.batches)]
                bulk, rate = await self._try(peer, concurrency, batch)
                found.rates[concurrency] = max(rate, found.rates.get(concurrency, 0.0))
                found.bulk_rates[batch] = max(bulk, found.bulk_rates.get(batch, 0.0))
            found.concurrency = max(found.rates, key=found.rates.__getitem__)
            found.batch = max(found.bulk_rates, key=found.bulk_rates.__getitem__)
            rates = ", ".join(f"{size}: {rate:,.0f}/s" for size, rate in found.rates.items())
            bulks = ", ".join(f"{size or 'all'}: {rate:,.0f}/s" for size, rate in found.bulk_rates.items())
            self._say(f"{peer.name}: by concurrency {rates}; by size of a bulk {bulks}")

    async def _try(self, peer: Peer, concurrency: int, batch: int) -> tuple[float, float]:
        skip, count = peer.warm_up // TUNING_SHARE, peer.backlog // TUNING_SHARE
        async with AsyncExitStack() as stack:
            producer, worker = [
                await stack.enter_async_context(play(peer, role, self._server.url))
                for role in ("producer", "worker")
            ]
            await self._fill(peer, producer, skip, batch)
            bulk = await self._fill(peer, producer, skip + count, batch)
            worked, _ = await self._work(peer, worker, concurrency, skip, count)
        return (skip + count) / bulk, count / worked["seconds"]

    async def round(self, number: int) -> None:
        """One round; each starts with another peer."""
        first = number % len(self._peers)
        for peer in (*self._peers[first:], *self._peers[:first]):
            self.readings[peer.name].append(await self._read(peer, self.tuned[peer.name]))

    async def _read(self, peer: Peer, tuning: Tuning) -> Reading:
        async with AsyncExitStack() as stack:
            producer, worker = [
                await stack.enter_async_context(play(peer, role, self._server.url))
                for role in ("producer", "worker")
            ]
            return await self._measure(peer, tuning, producer, worker)

    async def _measure(
        self, peer: Peer, tuning: Tuning, producer: PlayerProcess, worker: PlayerProcess
    ) -> Reading:
        skip, count = peer.warm_up, peer.backlog
        self._empty()
        await producer.ask("add", count=SINGLES // 6)
        singles = await producer.ask("add", count=SINGLES)
        self._check(peer, waiting=SINGLES // 6 + SINGLES)
        await self._fill(peer, producer, skip, tuning.batch)
        bulk = await self._fill(peer, producer, skip + count, tuning.batch)
        filled = self._memory()
        worked, server_cpu = await self._work(peer, worker, tuning.concurrency, skip, count)
        done, rss = self._memory(), worker.resident()
        times = await self._listen(producer, worker)
        return Reading(
            add=SINGLES / singles["seconds"],
            bulk=(skip + count) / bulk,
            process=count / worked["seconds"],
            worker_cpu=worked["cpu"] / count * 1e6,
            server_cpu=server_cpu / count * 1e6,
            rss=rss / 1e6,
            p50=statistics.median(times),
            p99=percentile(times, 99),
            waiting=filled / (skip + count),
            completed=done / (skip + count),
        )

    def _check(self, peer: Peer, waiting: int, done: int | None = None) -> None:
        """End the benchmark if a peer has not done what it says, by what the server has."""
        found = self._server.ask("EVAL", peer.counts.waiting, 0)
        if found != waiting:
            raise NotDone(f"{peer.name}: {found} jobs wait, and {waiting} should")
        if done is not None and (found := self._server.ask("EVAL", peer.counts.done, 0)) != done:
            raise NotDone(f"{peer.name}: {found} jobs are done, and {done} should be")

    async def _fill(self, peer: Peer, producer: PlayerProcess, count: int, batch: int) -> float:
        """Add jobs in bulk to an empty server; how long it took."""
        self._empty()
        answer = await producer.ask("bulk", count=count, batch=batch)
        self._check(peer, waiting=count)
        return float(answer["seconds"])

    async def _work(
        self, peer: Peer, worker: PlayerProcess, concurrency: int, skip: int, count: int
    ) -> tuple[dict[str, Any], float]:
        """Let a worker loose on a backlog; what it measured, and the server's processor time meanwhile."""
        await worker.tell("work", concurrency=concurrency, skip=skip, count=count)
        await worker.answer()
        before = self.server_cpu()
        worked = await worker.answer()
        used = self.server_cpu() - before
        self._check(peer, waiting=0, done=skip + count)
        return worked, used

    async def _listen(self, producer: PlayerProcess, worker: PlayerProcess) -> list[float]:
        """The way of jobs that come now and then, from the call that adds one to its handler, in ms."""
        await worker.tell("listen", count=self._drips)
        await worker.answer()
        await producer.ask("drip", count=self._drips, gap=GAP)
        times: list[float] = (await worker.answer())["times"]
        return times[len(times) // 10 :]  # the first ones wake what has slept

    def _empty(self) -> None:
        self._server.ask("FLUSHALL", "SYNC")

    def _info(self, section: str, *names: str) -> float:
        lines = self._server.ask("INFO", section).decode().splitlines()
        values = dict(line.split(":", 1) for line in lines if ":" in line)
        return sum(float(values[name]) for name in names)

    def server_cpu(self) -> float:
        """Seconds that the server has worked."""
        return self._info("cpu", "used_cpu_user", "used_cpu_sys")

    def _memory(self) -> float:
        """Bytes of all keys and what is in them; buffers of connections and scripts do not count."""
        return float(self._server.ask("EVAL", ALL_KEYS, 0))
