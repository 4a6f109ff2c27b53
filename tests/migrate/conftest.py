"""What the tests of the migration share: Node's BullMQ, and a process that migrates."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.conformance.oracle import NodeOracle
from tests.migrate.migrator import Migrator


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def oracle() -> AsyncIterator[NodeOracle]:
    async with NodeOracle() as made:
        yield made


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def migrator() -> AsyncIterator[Migrator]:
    async with Migrator() as made:
        yield made
