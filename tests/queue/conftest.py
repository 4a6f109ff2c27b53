"""A queue at a time that stands, and what is in its server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.sides import open_store
from tests.conformance.store import Store
from tests.queue.by_hand import NAME, Clock
from toril import Connection
from toril.queue import Queue
from toril.testing import Cluster, Server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(redis: Connection, clock: Clock) -> Queue:
    return Queue(NAME, redis, clock=clock)


@pytest.fixture
def store(server: Server | Cluster) -> Iterator[Store]:
    made = open_store(server)
    yield made
    made.close()
