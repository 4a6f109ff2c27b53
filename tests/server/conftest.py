from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Servers, emptied
from tests.server.parts import Served, serving


@pytest.fixture
def redis_url(servers: Servers) -> str:
    return emptied(servers.get("valkey-standalone")).url


@pytest.fixture
async def served(redis_url: str) -> AsyncIterator[Served]:
    async with serving(redis_url) as made:
        yield made
