"""Appends through Toril's event store, beside the Python library ``eventsourcing`` on two databases.

Each begins a new aggregate with 1 or 10 events, one aggregate after the other. The library is called from one
thread: its inserts take an exclusive lock on their table until they are committed, so more threads do not
make them faster. Toril is called from one task, and from as many as a busy service would have.

What is compared has the same durability: either an append is on disk when it returns (Redis
``appendfsync always`` and ``durability="fsync"``, SQLite ``synchronous=FULL``, PostgreSQL
``synchronous_commit=on``), or it may be lost for up to a second when the machine dies (``appendfsync
everysec``, ``synchronous=NORMAL``, ``synchronous_commit=off``).
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from toril import connect
from toril.aggregate import Aggregate
from toril.connection.durability import Level
from toril.events import NewEvent
from toril.log import Log
from toril.stores import LogEventStore
from toril.testing import Server, standalone

from .postgres import RELAXED, STRICT, postgres

REQUIREMENTS = Path(__file__).parents[1] / "log.requirements.txt"
TASKS = 500
PARTITIONS = 8
"""On one server, few are best: an append shares its call, and the call's fsync, with more others."""
SKU = "4bf92f3577b34da6" * 8
SIZES = (1, 10)

Safety = Literal["on disk", "within a second"]
SAFETIES: tuple[Safety, ...] = ("on disk", "within a second")
SETTINGS: Mapping[Safety, dict[str, str | int]] = {
    "on disk": {"appendonly": "yes", "appendfsync": "always", "save": ""},
    "within a second": {"appendonly": "yes", "appendfsync": "everysec", "save": ""},
}

ONE, MANY = "one task", f"{TASKS} tasks"
WAYS = (ONE, MANY)

Once = Callable[[], None]


@dataclass(slots=True)
class Readings:
    """Appends per second, by round: Toril's by way, the peers' by name."""

    toril: dict[str, list[float]] = field(default_factory=dict)
    peers: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self, way: str, peer: str) -> list[float]:
        """How much faster Toril was, round by round."""
        pairs = zip(self.toril[way], self.peers[peer], strict=True)
        return [ours / theirs for ours, theirs in pairs]


Results = dict[tuple[Safety, int], Readings]


async def measure(*, rounds: int, seconds: float, binary: Path | None = None) -> Results:
    """All ways, sizes and durabilities, in turns."""
    results: Results = {(safety, size): Readings() for safety in SAFETIES for size in SIZES}
    with ExitStack() as stack:
        servers = {
            safety: stack.enter_context(standalone(SETTINGS[safety], binary=binary)) for safety in SAFETIES
        }
        port = stack.enter_context(postgres())
        peers = {safety: stack.enter_context(_peers(safety, port)) for safety in SAFETIES}
        gc.collect()
        gc.freeze()
        for turn in range(rounds):
            for (safety, size), readings in results.items():
                calls: list[Callable[[], Any]] = [
                    partial(_read_toril, readings, way, servers[safety], safety, size, seconds)
                    for way in WAYS
                ]
                calls += [
                    partial(_read_peer, readings, name, make(size), seconds)
                    for name, make in peers[safety].items()
                ]
                first = turn % len(calls)
                for call in calls[first:] + calls[:first]:
                    if (waiting := call()) is not None:
                        await waiting
    return results


# ---------------------------------------------------------------------------- Toril


async def _read_toril(
    readings: Readings, way: str, server: Server, safety: Safety, size: int, seconds: float
) -> None:
    server.ask("FLUSHALL", "SYNC")
    level: Level = "fsync" if safety == "on disk" else "memory"
    async with (
        connect(server.url) as redis,
        Log(redis, "bench", partitions=PARTITIONS, durability=level) as log,
    ):
        store = LogEventStore(log)

        async def once() -> None:
            events = [_event(number) for number in range(size)]
            await store.append(Aggregate("acme", "order", str(uuid4())), events, expected_version=0)

        async def repeat(until: float) -> int:
            appends = 0
            while True:
                await once()
                appends += 1
                if time.perf_counter() >= until:
                    return appends

        tasks = 1 if way == ONE else TASKS
        await asyncio.gather(*(repeat(time.perf_counter() + seconds / 5) for _ in range(tasks)))
        began = time.perf_counter()
        done = await asyncio.gather(*(repeat(began + seconds) for _ in range(tasks)))
        readings.toril.setdefault(way, []).append(sum(done) / (time.perf_counter() - began))


def _event(number: int) -> NewEvent[dict[str, object]]:
    return NewEvent(type="order.item_added", data={"sku": SKU, "quantity": number})


# ---------------------------------------------------------------------------- the library


def _read_peer(readings: Readings, name: str, once: Once, seconds: float) -> None:
    def repeat(length: float) -> float:
        appends, began = 0, time.perf_counter()
        while time.perf_counter() < began + length:
            once()
            appends += 1
        return appends / (time.perf_counter() - began)

    repeat(seconds / 5)
    readings.peers.setdefault(name, []).append(repeat(seconds))


@contextmanager
def _peers(safety: Safety, port: int) -> Iterator[dict[str, Callable[[int], Once]]]:
    """The library on both databases, as an application uses it, and its recorder alone."""
    with tempfile.TemporaryDirectory(prefix="toril-bench-") as folder:
        sqlite = {
            "PERSISTENCE_MODULE": "eventsourcing.sqlite",
            "SQLITE_DBNAME": str(Path(folder) / "events.db"),
        }
        server = {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": STRICT if safety == "on disk" else RELAXED,
            "POSTGRES_HOST": "127.0.0.1",
            "POSTGRES_PORT": str(port),
            "POSTGRES_USER": "postgres",
            "POSTGRES_PASSWORD": "postgres",
            "POSTGRES_ENABLE_DB_FUNCTIONS": "y",
        }
        synchronous = "FULL" if safety == "on disk" else "NORMAL"
        apps = {
            "SQLite": _application(sqlite, synchronous),
            "PostgreSQL": _application(server, None),
        }
        try:
            made: dict[str, Callable[[int], Once]] = {}
            for database, app in apps.items():
                made[f"eventsourcing on {database}, save"] = partial(_saves, app)
                made[f"eventsourcing on {database}, recorder"] = partial(_inserts, app)
            yield made
        finally:
            for app in apps.values():
                app.close()


def _application(env: dict[str, str], synchronous: str | None) -> Any:
    application = import_module("eventsourcing.application")
    app = application.Application(env=env)
    if synchronous is not None:
        # The library has no setting for it. Called from one thread, its pool has one connection for writing.
        pool = app.recorder.datastore.pool
        connection = pool.get_connection(is_writer=True)
        connection.cursor().execute(f"PRAGMA synchronous={synchronous}", ())
        pool.put_connection(connection)
    return app


def _saves(app: Any, size: int) -> Once:
    made = import_module("benchmarks.log.order").Order

    def once() -> None:
        order = made(sku=SKU, quantity=0)
        for number in range(1, size):
            order.add(sku=SKU, quantity=number)
        app.save(order)

    return once


def _inserts(app: Any, size: int) -> Once:
    persistence: Any = import_module("eventsourcing.persistence")

    def once() -> None:
        ident = uuid4()
        stored = [
            persistence.StoredEvent(ident, number + 1, "order.item_added", _event(number).to_bytes())
            for number in range(size)
        ]
        app.recorder.insert_events(stored)

    return once


def names(results: Results) -> Sequence[str]:
    """The peers."""
    return list(next(iter(results.values())).peers)
