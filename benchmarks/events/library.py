"""The same projection by the Python library ``eventsourcing``, on two databases, in a process of its own.

On PostgreSQL its ``ProjectionRunner`` follows the application through a subscription. Its SQLite recorder
has no subscriptions, so there the loop is ours: it selects notifications in pages and hands each to the
projection. Either way each event is one transaction: one statement for the state, one for the position. What
is gained by putting many events into one transaction, which the library leaves to its user, is measured
beside it.

All may lose up to a second when the machine dies (``synchronous_commit=off``, ``synchronous=NORMAL``, and
``appendfsync everysec`` for Toril), which is the fastest for all of them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from benchmarks.log.library import SETTINGS
from benchmarks.log.postgres import RELAXED, postgres

from .speed import Player

__all__ = ["PEERS", "SERVER", "peers"]

SERVER = SETTINGS["within a second"]
"""How Toril's server is set where it is beside the library."""
EVENTS = {"ProjectionRunner": 1_500, "pages": 3_000, "transactions of 500": 10_000}
"""So many that a run takes about a second."""
MOST = max(EVENTS.values())
PEERS = {
    "eventsourcing on PostgreSQL, ProjectionRunner": 5.0,
    "eventsourcing on PostgreSQL, transactions of 500": None,
    "eventsourcing on SQLite, pages": 5.0,
    "eventsourcing on SQLite, transactions of 500": None,
}
"""With what Toril's advantage should be at least."""
PAGE = 500


@contextmanager
def peers() -> Iterator[Mapping[str, Callable[[], float]]]:
    """The peers, each a function that runs it once and says how many events it did in a second."""
    with tempfile.TemporaryDirectory(prefix="toril-bench-") as folder, postgres() as port:
        environments = {
            "SQLite": {
                "PERSISTENCE_MODULE": "eventsourcing.sqlite",
                "SQLITE_DBNAME": str(Path(folder) / "events.db"),
            },
            "PostgreSQL": {
                "PERSISTENCE_MODULE": "eventsourcing.postgres",
                "POSTGRES_DBNAME": RELAXED,
                "POSTGRES_HOST": "127.0.0.1",
                "POSTGRES_PORT": str(port),
                "POSTGRES_USER": "postgres",
                "POSTGRES_PASSWORD": "postgres",
                "POSTGRES_ENABLE_DB_FUNCTIONS": "y",
            },
        }
        context = get_context("spawn")
        processes, players = [], {}
        try:
            for database, environment in environments.items():
                ours, theirs = context.Pipe()
                process = context.Process(target=_play, args=(theirs, database, environment), daemon=True)
                process.start()
                processes.append(process)
                theirs.close()
                players[database] = Player(ours)
            for player in players.values():
                player.hear()
            yield {name: partial(_ask, players, name) for name in PEERS}
        finally:
            for process in processes:
                process.kill()
                process.join()


def _ask(players: Mapping[str, Player], name: str) -> float:
    database, way = name.removeprefix("eventsourcing on ").split(", ")
    players[database].tell(way)
    rate: float = players[database].hear()
    return rate


# ---------------------------------------------------------------------------- in the peer's process


def _play(pipe: Pipe, database: str, environment: dict[str, str]) -> None:
    views = import_module("benchmarks.events.views")
    place = views.place(database, environment)
    place.fill(MOST)
    pipe.send("ready")
    while True:
        way = pipe.recv()
        place.forget()
        events = EVENTS[way]
        run = {
            "ProjectionRunner": place.follow,
            "pages": partial(place.page_through, PAGE),
            "transactions of 500": partial(place.page_through_together, PAGE),
        }[way]
        began = time.perf_counter()
        took = run(events) or time.perf_counter() - began
        place.check(events)
        pipe.send(events / took)
