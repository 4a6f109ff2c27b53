"""Where commands are executed, and what their handlers tell. Tests of processors have places of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import MATRIX, Servers, emptied
from tests.runtime.probes import Probe
from toril import Connection, connect


@pytest.fixture(params=["inline", *MATRIX])
async def place(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[Connection | None]:
    """Where commands are: in process, and on every kind of server in turn."""
    if request.param == "inline":
        yield None
        return
    async with connect(emptied(servers.get(request.param)).url) as redis:
        yield redis


@pytest.fixture
def probe() -> Probe:
    return Probe()
