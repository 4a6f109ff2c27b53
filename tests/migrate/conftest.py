"""What the tests of the migration share: Node's BullMQ, and a process that migrates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from zlib import crc32

import pytest
import pytest_asyncio

from tests.conformance.oracle import NodeOracle
from tests.conftest import Servers, emptied
from tests.matrix import EVERY_SERVER, PRODUCTS
from tests.migrate.migrator import Migrator
from tests.migrate.stage import Stage, open_stage

IN_TURN = "in-turn"
"""From one test to the next, another product."""


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def oracle() -> AsyncIterator[NodeOracle]:
    async with NodeOracle() as made:
        yield made


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def migrator() -> AsyncIterator[Migrator]:
    async with Migrator() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="package", params=PRODUCTS if EVERY_SERVER else [IN_TURN])
async def stage(
    request: pytest.FixtureRequest, servers: Servers, oracle: NodeOracle, tmp_path: Path
) -> AsyncIterator[Stage]:
    """On a single server: in a cluster, Node cannot use queues without a tag."""
    chosen = PRODUCTS[crc32(request.node.nodeid.encode()) % len(PRODUCTS)]
    product = chosen if request.param == IN_TURN else request.param
    server = emptied(servers.get(f"{product}-standalone"))
    async with open_stage(oracle, server, tmp_path) as made:
        yield made
