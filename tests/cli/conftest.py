"""The servers that commands are tried on."""

from __future__ import annotations

import pytest

from tests.conftest import MATRIX, Servers, emptied
from toril.testing import Cluster, Server


@pytest.fixture(params=[name for name in MATRIX if name.startswith("valkey")])
def server(request: pytest.FixtureRequest, servers: Servers) -> Server | Cluster:
    """Standalone and cluster. Each command is a process of its own, and takes its time."""
    return emptied(servers.get(request.param))
