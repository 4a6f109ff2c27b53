from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.server.room.parts import RoomServed, room_served
from toril.testing import Cluster, Server


@pytest.fixture
async def served(server: Server | Cluster) -> AsyncIterator[RoomServed]:
    """On every kind of server in turn."""
    async with room_served(server.url) as made:
        yield made
