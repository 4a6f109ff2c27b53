"""``toril queue`` and a queue, on every kind of server."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell
from toril import Connection
from toril.queue import Queue
from toril.testing import Cluster, Server


@pytest.fixture
def shell(server: Server | Cluster) -> Shell:
    return Shell(server.url)


@pytest.fixture
def queue(redis: Connection) -> Queue:
    return Queue("{shop}", redis)
