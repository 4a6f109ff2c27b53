"""Generations made elsewhere, loaded beside the one that is seen, switched to and retired, under traffic."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import SCALE, Servers, emptied
from tests.queue.audit import until
from tests.runtime.generations import SERVED, Doubled, Scene, agrees, beside, hot, leftovers, look, tails
from toril.events import NewEvent
from toril.log.store import Standing
from toril.runtime import (
    Decision,
    GenerationError,
    RegisteredPipeline,
    Skipped,
    decision_in,
    skipped,
)


@pytest.mark.timeout(180 + 120 * SCALE)
@pytest.mark.parametrize("place", SERVED)
async def test_once_per_state_when_a_generation_is_promoted_under_traffic(
    servers: Servers, place: str, rng: random.Random, tmp_path: Path
) -> None:
    """Killed at every step, with cold aggregates; readers never see a mixture; nothing is left behind."""
    scene = Scene(emptied(servers.get(place)).url, rng, tmp_path)
    busy, quiet = [str(n) for n in range(12)], [f"q{n}" for n in range(30)]
    async with scene.open(busy):
        service, traffic = scene.pipeline.service, scene.traffic
        for ident in quiet:
            await traffic.send("acme", ident)
        await traffic.once()
        await agrees(scene.pipeline, traffic, "total", 1)
        seen: list[int] = []
        async with beside(traffic.run(), look(scene.pipeline, traffic, seen)):

            async def reserve(pipeline: RegisteredPipeline) -> None:
                await pipeline.service.generations.reserve("total", 2, version=2)

            assert await scene.killed_everywhere(reserve) > 3
            await traffic.once()
            (_, second) = await service.generations.standings("total")
            assert second.state == "loading"
            states = await scene.lake.states(second.cut, Doubled())
            assert len(states) == len(busy) + len(quiet)
            with pytest.raises(GenerationError, match="being loaded"):
                await service.generations.switch("total", 2, force=True)

            async def load(pipeline: RegisteredPipeline) -> None:
                await pipeline.service.generations.load("total", 2, states)

            assert await scene.killed_everywhere(load) > 10
            await traffic.once()

            async def switch(pipeline: RegisteredPipeline) -> None:
                await pipeline.service.generations.switch("total", 2, within=1000)

            async def ready() -> bool:
                return (await service.generations.ready("total", 2, within=5)).state == "ready"

            await until(ready, "the generation to catch up")
            assert set(seen) == {1}
            await scene.killed_everywhere(switch)

            async def sees(which: int) -> None:
                seen.clear()

                async def so() -> bool:
                    return seen[-3:] == [which] * 3

                await until(so, f"readers to see {which}")
                assert len([one for one, other in pairwise(seen) if one != other]) <= 1, "back and forth"

            await sees(2)
            assert await service.generations.switch("total", 1, within=1000) == 2
            await sees(1)
            assert await service.generations.switch("total", 2, within=1000) == 1
            await sees(2)
            with pytest.raises(GenerationError, match="readers see generation 2"):
                await service.generations.retire("total", 2)

            async def retire(pipeline: RegisteredPipeline) -> None:
                await pipeline.service.generations.retire("total", 1)

            assert await scene.killed_everywhere(retire) > 10
            await traffic.once()
            await sees(2)
        await agrees(scene.pipeline, traffic, "total", 2)
        assert [one.state for one in await service.generations.standings("total")] == ["retired", "current"]
        with pytest.raises(GenerationError, match="retired"):
            await service.generations.switch("total", 1, force=True)

        async def all_cold() -> bool:
            return not any(one.hot for one in await scene.log.standings())

        await until(all_cold, "all to go cold")
        assert await leftovers(scene.sourcing, scene.cold, "orders/total") == []
        # One more, of which nobody has declared the number: what is cold comes for its state, and leaves.
        third = await service.generations.reserve("total", version=2)
        states = await scene.lake.states(third.cut, Doubled())
        done = await service.generations.load("total", 3, states)
        assert (done.placed, done.there, done.gone) == (len(busy) + len(quiet), 0, 0)
        assert not await hot(scene, quiet)
        await traffic.once()
        await agrees(scene.pipeline, traffic, "total@3", 2)
        await service.generations.switch("total", 3)
        await agrees(scene.pipeline, traffic, "total", 2)


@pytest.mark.timeout(120 + 60 * SCALE)
@pytest.mark.parametrize("place", SERVED)
async def test_once_per_state_when_tenants_are_erased_and_the_log_is_resized_after_the_cut(
    servers: Servers, place: str, rng: random.Random, tmp_path: Path
) -> None:
    """Who was erased does not come back, also under the same names; what failed waits for a person."""
    scene = Scene(emptied(servers.get(place)).url, rng, tmp_path)
    async with scene.open([str(n) for n in range(10)]):
        service, traffic = scene.pipeline.service, scene.traffic
        await traffic.once(["acme", "globex", "hooli"])
        await service.store_events("umbra", "1", [NewEvent(type="n", data=data) for data in (1, "broken", 3)])
        async with beside(traffic.run()):
            reserved = await service.generations.reserve("total", version=2)
            assert reserved.number == 2
            states = await scene.lake.states(reserved.cut, Doubled())
            await service.store_events("umbra", "1", [NewEvent(type="n", data=5)])
            for tenant in ("globex", "hooli"):
                await scene.log.erase_tenant(tenant)
                for ident in traffic.idents:
                    traffic.sent.pop((tenant, ident))
            await traffic.once(["globex"])
            await scene.log.resize(5)
            await traffic.once(["acme", "globex"])
            done = await service.generations.load("total", 2, states)
            assert done.gone == 2 * len(traffic.idents)
            await scene.log.resize(2)
            await traffic.once(["acme", "globex"])

            async def ready() -> bool:
                return (await service.generations.ready("total", 2, within=5)).state == "ready"

            await until(ready, "the generation to catch up", 60)
            await service.generations.switch("total", 2)
        await agrees(scene.pipeline, traffic, "total", 2)
        assert await service.get_projection("total", "hooli", "1") is None

        async def failed() -> bool:
            return len(await service.get_failed_events("umbra", processor="total@2")) == 1

        await until(failed, "the broken event to fail")
        # Decided for the generation before, it counts for this one as well.
        await service.skip_failed("total", "umbra", "1", by="me")

        async def healed() -> bool:
            found = await service.get_projection("total", "umbra", "1")
            return found is not None and found.version == 4

        await until(healed, "what was skipped to be passed")
        state = await service.get_projection("total", "umbra", "1")
        assert state is not None
        assert state.state["sum"] == 2 * (1 + 3 + 5)
        assert await service.skipped("total@2", "umbra", "1") == {2}
        assert (await service.rebuild_projection("total@2", "umbra", "1")).state == state.state

        async def archived() -> list[tuple[str, Decision]]:
            return [found for entry in scene.lake.entries if (found := decision_in(entry.key, entry.body))]

        decided = await until(archived, "the decision to be archived")
        assert skipped(decided) == {Skipped("orders/total", "umbra:order:1", 2)}
        assert skipped(decided, "orders/total@2") == {Skipped("orders/total@2", "umbra:order:1", 2)}
        assert skipped(decided, "orders/other@2") == frozenset()


@pytest.mark.parametrize("place", SERVED)
async def test_retention_safe_from_the_cut_on_until_a_generation_has_passed(
    servers: Servers, place: str, rng: random.Random, tmp_path: Path
) -> None:
    scene = Scene(emptied(servers.get(place)).url, rng, tmp_path)
    async with scene.open([str(n) for n in range(12)]):
        generations, traffic = scene.pipeline.service.generations, scene.traffic

        async def trimmed(wanted: Callable[[Standing], bool]) -> None:
            async def so() -> bool:
                return all(wanted(one) for one in await scene.log.standings())

            await until(so, "the log to be trimmed")

        await traffic.once(count=200)
        cut = await tails(scene)
        await generations.reserve("total", 2, cut=cut)
        await traffic.once(count=200)
        await agrees(scene.pipeline, traffic, "total", 1)
        await trimmed(lambda one: one.trimmed > 0)
        await scene.log.trim()
        assert all(one.trimmed <= cut[one.partition].ordinal for one in await scene.log.standings())
        await generations.load("total", 2, await scene.lake.states(cut, Doubled()))
        await agrees(scene.pipeline, traffic, "total@2", 2)
        await trimmed(lambda one: one.trimmed > cut[one.partition].ordinal)
        before = await generations.standings()
        with pytest.raises(GenerationError, match="the cut cannot be kept in partition"):
            await generations.reserve("total", 3, cut=cut)
        assert await generations.standings() == before
        for one in await scene.log.standings():
            assert sorted(one.readers) == ["lake", "orders/total", "orders/total@2"]
