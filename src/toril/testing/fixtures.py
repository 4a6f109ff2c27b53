"""The servers of :mod:`toril.testing` as pytest fixtures.

Put ``pytest_plugins = ["toril.testing.fixtures"]`` into your ``conftest.py``. Each server is started
once per test session, when a test first asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toril.testing.cluster import Cluster, cluster
from toril.testing.server import Server, standalone


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """A standalone server."""
    with standalone() as server:
        yield server


@pytest.fixture(scope="session")
def redis_one_node_cluster() -> Iterator[Cluster]:
    """One server that owns all slots of a cluster: the cheapest way to see CROSSSLOT."""
    with cluster(masters=1, replicas=0) as made:
        yield made


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Cluster]:
    """A cluster of three masters and three replicas."""
    with cluster(masters=3, replicas=1) as made:
        yield made
