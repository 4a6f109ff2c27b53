"""Servers for the whole suite: every test that touches Redis runs on a standalone one and on a cluster.

The cluster has three masters and three replicas. They are Valkey (from the wheel) and Debian's Redis 7.0
where that is installed (``make test`` installs it); ``matrix.py`` says who runs on which.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import java
from tests.matrix import BINARIES, EVERY_SERVER, MATRIX, PRODUCTS, SCALE, left_out
from toril import Connection, connect
from toril.testing import Cluster, Server, cluster, standalone

__all__ = ["MATRIX", "PRODUCTS", "SCALE", "SEED", "Servers", "emptied"]

pytest_plugins = ["toril.testing.fixtures"]

SEED = int(os.environ.setdefault("TORIL_TEST_SEED", str(random.SystemRandom().randrange(2**32))))
"""The same in all processes that tests run in."""

os.environ.setdefault("SPARK_SUBMIT_OPTS", java.SHORT)
if SCALE <= 1:  # and a storm is in the weather that there is
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark"))


settings.register_profile(
    "toril",
    max_examples=max(1, round(50 * SCALE)),
    deadline=None,  # a busy machine is no mistake
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("toril")


def pytest_report_header() -> list[str]:
    each = "all for each test" if EVERY_SERVER or len(PRODUCTS) == 1 else "two of them for each test"
    return [
        f"toril: seed {SEED} (TORIL_TEST_SEED repeats it), scale {SCALE:g}",
        f"toril: servers {', '.join(MATRIX)}, {each}"
        + ("" if "redis" in PRODUCTS else " (redis-server is not installed)"),
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


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # files are given to processes in the order of the collection


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that carries a promise's name is marked, so that ``make storm`` finds it.

    Files with such tests, or with one that has a time of its own, come first: they are the long ones, and one
    that is begun last is waited for.
    """
    for item in items:
        if any(promise in item.name for promise in PROMISES):
            item.add_marker("promise")
    long = {
        item.path
        for item in items
        if item.get_closest_marker("promise") or item.get_closest_marker("timeout")
    }
    items.sort(key=lambda item: item.path not in long)
    if others := set(left_out(items)):
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)


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
