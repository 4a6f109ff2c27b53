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
from tests.conformance.strategies import random_sequence, shortest
from tests.conftest import SCALE, Servers, emptied
from tests.matrix import PRODUCTS
from tests.migrate import rig
from tests.migrate.migrator import Migrator
from tests.migrate.stage import NEW, Stage
from toril.migrate import GoingBack, MigrationError, rollback

pytestmark = pytest.mark.asyncio(loop_scope="package")

SAME = {name: name for name in QUEUES}


def of_unfinished(dump: Dump, before: Dump) -> dict[str, Key]:
    """A dump without jobs that have ended since, and without what counts them."""
    kept = {
        name: key
        for name, key in rig.comparable(dump).items()
        if name.split(":", 2)[2].partition(":")[0] not in ("limiter", "metrics")
    }
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


async def differ(
    control: NodeSide,
    moved: NodeSide,
    migrator: Migrator,
    url: str,
    operations: Sequence[Operation],
    seed: int,
) -> list[str]:
    chance = random.Random(seed)
    await rig.prepare([control, moved], operations)
    resumed = [(name, Resume()) for name in QUEUES]
    await rig.on_both(control, moved, resumed, SAME)
    before = control.store.dump()
    task = {"url": url, "names": rig.NAMES}
    await migrator.run(verb="copy", **task)
    finished = [each for step in range(chance.randrange(6)) for each in rig.take_and_end(step)]
    if found := await rig.on_both(control, moved, finished):
        return found
    for side in (control, moved):
        rig.lose_workers(side)
    await rig.with_kills(migrator, chance, verb="rollback", **task)
    control_now, moved_now = control.store.dump(), moved.store.dump()
    found = differences(
        of_unfinished(control_now, before),
        rig.comparable(
            {
                name: key
                for name, key in rig.of_queues(moved_now, QUEUES).items()
                if name.split(":", 2)[2].partition(":")[0] not in ("limiter", "metrics")
            }
        ),
        names=("control", "rolled back"),
    )
    if found:
        return found
    for side in (control, moved):
        for name in QUEUES:
            side.store.ask("DEL", side.store.key(name, "limiter"))
    return await rig.drain_both(control, moved, SAME, steps=20)


@pytest.mark.parametrize("product", PRODUCTS)
async def test_migrate_whole_back_and_forth(
    product: str, servers: Servers, oracle: NodeOracle, migrator: Migrator, rng: random.Random
) -> None:
    single = emptied(servers.get(f"{product}-standalone"))
    control = await NodeSide.open(oracle, single, prefix=rig.CONTROL)
    moved = await NodeSide.open(oracle, single)
    try:
        for _ in range(max(1, int(6 * SCALE))):
            seed = rng.randrange(2**32)
            operations = random_sequence(random.Random(seed), least=20, most=50)

            async def fails(some: Sequence[Operation], seed: int = seed) -> list[str]:
                return await differ(control, moved, migrator, single.url, some, seed)

            if found := await fails(operations):
                small = await shortest(operations, fails)
                pytest.fail("\n".join([f"seed {seed}:", *map(repr, small), *(await fails(small) or found)]))
    finally:
        await control.close()
        await moved.close()


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
