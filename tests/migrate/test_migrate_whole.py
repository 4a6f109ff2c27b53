"""The promise migrate-whole: every job of every state arrives once, in order, due when it was due.

Node makes the same queues twice, by generated sequences of operations. One is migrated, by a process that is
killed again and again; then Node works both off, and nothing may differ.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.conformance.operations import Operation
from tests.conformance.oracle import NodeOracle
from tests.conformance.sides import NodeSide
from tests.conformance.strategies import random_sequence
from tests.conftest import SCALE, Servers, emptied
from tests.matrix import PRODUCTS
from tests.migrate import rig
from tests.migrate.migrator import Migrator
from toril import connect
from toril.keyspace import QueueKeys
from toril.migrate import Move, Moves, verify
from toril.testing import Cluster, Server

pytestmark = pytest.mark.asyncio(loop_scope="package")

JOURNEYS = ("here", "cluster", "to-cluster")
"""On one server; within a cluster, where the old keys lie on all servers; from a server to a cluster."""

EXAMPLES = {"here": 8, "cluster": 3, "to-cluster": 3}


class Journey:
    """A control and a queue that is migrated."""

    def __init__(
        self, control: NodeSide, moved: NodeSide, end: NodeSide, migrator: Migrator, urls: Sequence[str]
    ) -> None:
        self.control = control
        self.moved = moved
        self.end = end
        self.migrator = migrator
        self.urls = {"url": urls[0]} | ({"to_url": urls[1]} if len(urls) > 1 else {})

    async def differ(
        self, operations: Sequence[Operation], seed: int, manifest: Path, *, within_cluster: bool
    ) -> list[str]:
        """What is not the same after a migration; kills and all come from the seed."""
        chance = random.Random(seed)
        await rig.prepare([self.control, self.moved], operations)
        before = self.moved.store.dump()
        if within_cluster:
            await rig.carry_over(self.moved, self.end, self.urls["url"], operations)
        elif self.end is not self.moved:
            await rig.reset_to(self.end, operations)
        task = {**self.urls, "names": rig.NAMES}
        await rig.with_kills(self.migrator, chance, verb="copy", **task)
        found = rig.state_differences(
            self.control.store.dump(), rig.of_queues(self.end.store.dump(), list(rig.NAMES.values()))
        )
        found += await self._unsafe()
        if not found and chance.random() < 0.5:
            await rig.with_kills(self.migrator, chance, verb="cleanup", manifest=str(manifest), **task)
            where = self.end if within_cluster else self.moved
            left = rig.of_queues(where.store.dump(), list(rig.NAMES))
            old = rig.of_queues(before, list(rig.NAMES))
            found += [f"cleanup left {name}" for name in left if not rig.is_orphan(name, old)]
            written = await asyncio.to_thread(manifest.read_text)
            jobs = [name for name, key in old.items() if key.kind == "hash" and name not in left]
            found += [f"the manifest lacks {name}" for name in jobs if name not in written]
        return found or await rig.drain_both(self.control, self.end)

    async def _unsafe(self) -> list[str]:
        moves = Moves(
            (Move(QueueKeys(old), QueueKeys(new)) for old, new in rig.NAMES.items()), other_server=True
        )
        url = self.urls["url"]
        async with connect(url) as source, connect(self.urls.get("to_url", url)) as destination:
            checks = await verify(source, destination, moves)
        return [reason for check in checks for reason in check.reasons()]


@asynccontextmanager
async def journey(
    kind: str, product: str, servers: Servers, oracle: NodeOracle, migrator: Migrator
) -> AsyncIterator[Journey]:
    single = emptied(servers.get(f"{product}-standalone"))
    control = await NodeSide.open(oracle, single, prefix=rig.CONTROL)
    moved = await NodeSide.open(oracle, single)
    end, urls = moved, [single.url]
    if kind != "here":
        many: Server | Cluster = emptied(servers.get(f"{product}-cluster"))
        end = await NodeSide.open(oracle, many)
        urls = [many.url] if kind == "cluster" else [single.url, many.url]
    try:
        yield Journey(control, moved, end, migrator, urls)
    finally:
        for side in {control, moved, end}:
            await side.close()


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("kind", JOURNEYS)
async def test_migrate_whole_with_kills(
    kind: str,
    product: str,
    servers: Servers,
    oracle: NodeOracle,
    migrator: Migrator,
    rng: random.Random,
    tmp_path: Path,
) -> None:
    within_cluster = kind == "cluster"
    async with journey(kind, product, servers, oracle, migrator) as made:
        for example in range(max(1, int(EXAMPLES[kind] * SCALE))):
            seed = rng.randrange(2**32)
            operations = random_sequence(random.Random(seed), least=20, most=60)
            manifest = tmp_path / f"{example}.jsonl"

            async def fails(
                some: Sequence[Operation], seed: int = seed, manifest: Path = manifest
            ) -> list[str]:
                return await made.differ(some, seed, manifest, within_cluster=within_cluster)

            if found := await fails(operations):
                await rig.fail_with_the_shortest(operations, [f"seed {seed}:", *found], fails)
