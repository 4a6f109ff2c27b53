"""Rollback: what the new queue has not finished returns, in order, also after kills in the middle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.conformance.dump import Dump, Key, differences
from tests.conformance.operations import Operation, Resume
from tests.conformance.oracle import NodeOracle
from tests.conformance.sides import QUEUES, NodeSide
from tests.conformance.strategies import random_sequence
from tests.conftest import SCALE, Servers, emptied
from tests.matrix import PRODUCTS
from tests.migrate import rig
from tests.migrate.migrator import Migrator
from tests.migrate.stage import NEW, Stage
from toril.migrate import GoingBack, MigrationError, rollback

pytestmark = pytest.mark.asyncio(loop_scope="package")

EXAMPLES = {"here": 5, "cluster": 2}

SAME = {name: name for name in QUEUES}


def without_counts(dump: Dump) -> dict[str, Key]:
    """A dump without what counts events: that stays where they happened."""
    kept = {}
    for name, key in dump.items():
        suffix = name.split(":", 2)[2]
        if suffix == "meta":
            key = replace(key, value={each: key.value[each] for each in key.value if "maxLen" not in each})
        if key.value and suffix.partition(":")[0] not in ("limiter", "metrics"):
            kept[name] = key
    return kept


def of_unfinished(dump: Dump, before: Dump) -> dict[str, Key]:
    """A dump without jobs that have ended since, and without what counts them."""
    kept = without_counts(rig.comparable(dump))
    was = rig.comparable(before)
    for queue in QUEUES:
        for state in ("completed", "failed"):
            name = f"bull:{queue}:{state}"
            ended = kept.pop(name, Key("zset", {}))
            old = was[name].value if name in was else {}
            still = {ident: score for ident, score in ended.value.items() if old.get(ident) == score}
            if still:
                kept[name] = replace(ended, value=still)
    return {name: key for name, key in kept.items() if not rig.is_orphan(name, kept)}


class Journey:
    """A control, and a queue that moves and comes back: on one server, or within a cluster."""

    def __init__(
        self, control: NodeSide, moved: NodeSide, end: NodeSide, url: str, migrator: Migrator
    ) -> None:
        self.control = control
        self.moved = moved
        self.end = end
        self.url = url
        self.migrator = migrator

    async def differ(self, operations: Sequence[Operation], seed: int) -> list[str]:
        """What is not the same after it has come back; all chance comes from the seed."""
        chance = random.Random(seed)
        await rig.prepare([self.control, self.moved], operations)
        await rig.on_both(self.control, self.moved, [(name, Resume()) for name in QUEUES], SAME)
        before = self.control.store.dump()
        if self.end is not self.moved:
            await rig.carry_over(self.moved, self.end, self.url, operations)
        task = {"url": self.url, "names": rig.NAMES}
        await self.migrator.run(verb="copy", **task)
        finished = [each for step in range(chance.randrange(6)) for each in rig.take_and_end(step)]
        if found := await rig.on_both(self.control, self.end, finished):
            return found
        for side in (self.control, self.end):
            rig.lose_workers(side)
        await rig.with_kills(self.migrator, chance, verb="rollback", **task)
        back = rig.of_queues(self.end.store.dump(), QUEUES)
        found = differences(
            of_unfinished(self.control.store.dump(), before),
            without_counts(rig.comparable(back)),
            names=("control", "rolled back"),
        )
        if found or self.end is not self.moved:
            return found  # in a cluster, nobody can work in queues without a tag
        for side in (self.control, self.moved):
            for name in QUEUES:
                side.store.ask("DEL", side.store.key(name, "limiter"))
        return await rig.drain_both(self.control, self.moved, SAME, steps=20)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("kind", EXAMPLES)
async def test_migrate_whole_back_and_forth(
    kind: str, product: str, servers: Servers, oracle: NodeOracle, migrator: Migrator, rng: random.Random
) -> None:
    single = emptied(servers.get(f"{product}-standalone"))
    control = await NodeSide.open(oracle, single, prefix=rig.CONTROL)
    end = moved = await NodeSide.open(oracle, single)
    url = single.url
    if kind == "cluster":
        many = emptied(servers.get(f"{product}-cluster"))
        end, url = await NodeSide.open(oracle, many), many.url
    journey = Journey(control, moved, end, url, migrator)
    try:
        for _ in range(max(1, int(EXAMPLES[kind] * SCALE))):
            seed = rng.randrange(2**32)
            operations = random_sequence(random.Random(seed), least=20, most=50)

            async def fails(some: Sequence[Operation], seed: int = seed) -> list[str]:
                return await journey.differ(some, seed)

            if found := await fails(operations):
                await rig.fail_with_the_shortest(operations, [f"seed {seed}:", *found], fails)
    finally:
        for side in {control, moved, end}:
            await side.close()


async def test_nothing_is_copied_while_a_rollback_is_under_way(stage: Stage) -> None:
    await stage.add(count=3)
    await stage.copy()
    await stage.fetch(NEW, "t")
    (done,) = await rollback(stage.redis, stage.redis, stage.moves)
    assert (done.back, done.busy, done.whole) == (2, 1, False)
    with pytest.raises(GoingBack, match="let it end first"):
        await stage.copy()
    await stage.node.call("loseLock", queue=NEW, job="1")
    (done,) = await rollback(stage.redis, stage.redis, stage.moves)
    assert (done.back, done.whole, done.resumed) == (1, True, True)
    with pytest.raises(MigrationError, match="nothing was copied from 'mail'"):
        await rollback(stage.redis, stage.redis, stage.moves)
    assert (await stage.copy()).total == 3
