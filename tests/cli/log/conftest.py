"""``toril log`` and a log, on every kind of server."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell
from toril import Connection
from toril.log import Log
from toril.testing import Cluster, Server


@pytest.fixture
def shell(server: Server | Cluster) -> Shell:
    return Shell(server.url, "log")


@pytest.fixture
def log(redis: Connection) -> Log:
    return Log(redis, "shop", partitions=4)
