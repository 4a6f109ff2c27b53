"""Servers for the whole suite: every test that touches Redis runs on each of them.

Standalone and a cluster of three masters and three replicas, of Valkey (from the wheel) and of Debian's
Redis 7.0 where that is installed (``make test`` installs it).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from toril import Connection, connect
from toril.testing import Cluster, Server, cluster, standalone

pytest_plugins = ["toril.testing.fixtures"]

SCALE = float(os.environ.get("TORIL_TEST_SCALE", "1"))
"""How much longer and larger the promise tests run: 1 for ``make test``, more for ``make storm``."""

SEED = int(os.environ.setdefault("TORIL_TEST_SEED", str(random.SystemRandom().randrange(2**32))))
"""The same in all processes that tests run in."""

os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# A JVM that lives for a minute starts with half the work, and is never as fast as it could be.

REDIS_7 = shutil.which("redis-server")
BINARIES = {"valkey": None} | ({"redis": Path(REDIS_7)} if REDIS_7 else {})
PRODUCTS = sorted(BINARIES, reverse=True)
MATRIX = [f"{product}-{shape}" for product in PRODUCTS for shape in ("standalone", "cluster")]


def pytest_report_header() -> list[str]:
    return [
        f"toril: seed {SEED} (TORIL_TEST_SEED repeats it), scale {SCALE:g}",
        f"toril: servers {', '.join(MATRIX)}" + ("" if REDIS_7 else " (redis-server is not installed)"),
    ]


PROMISES = (
    "no_job_lost",
    "no_crossslot",
    "node_agrees",
    "order_kept",
    "once_per_state",
    "gap_free",
    "live_is_batch",
    "retention_safe",
    "room_fair",
    "seat_conserved",
    "tenant_walls",
    "migrate_whole",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that carries a promise's name is marked, so that ``make storm`` finds it."""
    for item in items:
        if any(promise in item.name for promise in PROMISES):
            item.add_marker("promise")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Chance that can be repeated: the session's seed and the test's name."""
    return random.Random(f"{SEED}/{request.node.nodeid}")


class Servers:
    """The session's servers, each started when first asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._made: dict[str, Server | Cluster] = {}

    def get(self, name: str) -> Server | Cluster:
        if name not in self._made:
            product, shape = name.split("-")
            binary = BINARIES[product]
            if shape == "standalone":
                self._made[name] = self._stack.enter_context(standalone(binary=binary))
            else:
                self._made[name] = self._stack.enter_context(cluster(binary=binary))
        return self._made[name]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture(params=MATRIX)
def server(request: pytest.FixtureRequest, servers: Servers) -> Server | Cluster:
    """Every kind of server in turn, emptied."""
    return emptied(servers.get(request.param))


def emptied(made: Server | Cluster) -> Server | Cluster:
    """A server without data and scripts."""
    for primary in made.primaries() if isinstance(made, Cluster) else [made]:
        primary.ask("FLUSHALL")
        primary.ask("SCRIPT", "FLUSH")
    return made


@pytest.fixture
async def redis(server: Server | Cluster) -> AsyncIterator[Connection]:
    """A connection to every kind of server in turn."""
    async with connect(server.url) as made:
        yield made


@pytest.fixture(params=PRODUCTS)
def binary(request: pytest.FixtureRequest) -> Path | None:
    """The server binaries, for tests that start (and hurt) servers of their own."""
    return BINARIES[request.param]
