"""Promotion under live traffic: cut off at every step and run again, and nothing is lost or counted twice."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest

import toril.runtime.generations
from tests.lake.shop import Basket, BasketInCents, Shop, Worth, archive, folded
from tests.queue.audit import until
from toril.events.errors import ConfigurationError
from toril.lake.archive import GROUP
from toril.lake.errors import LakeError
from toril.lake.generations import Filters, Generation, find, read, table_of
from toril.lake.lake import Lake, Record
from toril.lake.live import diff_live
from toril.lake.promote import Progress, promote, retire, take_back
from toril.lake.replay import replay
from toril.log import Retention
from toril.log.upkeep import trim
from toril.runtime.generations import GenerationStanding, Loaded
from toril.runtime.work import ProjectionWork
from toril.testing import standalone

pytestmark = pytest.mark.timeout(900)

BASKETS = [(tenant, f"b{number}") for tenant in ("acme", "globex") for number in range(15)]
SPOILT = ("acme", "spoilt")


class Killed(Exception):
    pass


class Dies(Progress):
    """Ends a promotion at a step, as a signal would."""

    def __init__(self, at: str) -> None:
        self._at = at

    def _step(self, name: str) -> None:
        if name == self._at:
            raise Killed(name)

    def loading(self, loaded: Loaded, of: int) -> None:
        assert loaded.placed + loaded.there + loaded.gone <= of
        self._step("loading")

    def loaded(self, loaded: Loaded) -> None:
        assert loaded.gone == 0
        self._step("loaded")

    def behind(self, standing: GenerationStanding, runs: bool) -> None:
        assert standing.behind > 0 or not runs
        self._step("behind")

    def ready(self, standing: GenerationStanding) -> None:
        assert standing.state in ("ready", "current")
        self._step("ready")


class Trade:
    """Live traffic, and readers that look all the time."""

    def __init__(self, shop: Shop, rng: random.Random) -> None:
        self.shop = shop
        self.rng = rng
        self.bought: dict[str, list[int]] = defaultdict(list)
        self.seen: list[bool] = []
        """Of each look, whether it was of prices in cents."""

    async def buy(self, times: int = 1) -> None:
        for _ in range(times):
            tenant, basket = self.rng.choice(BASKETS)
            prices = [self.rng.randrange(1, 10) for _ in range(self.rng.randrange(1, 4))]
            await self.shop.buy(basket, *prices, tenant=tenant)
            self.bought[f"{tenant}:{basket}"] += prices

    async def look(self) -> None:
        """All that one answer has is of one generation."""
        service = self.shop.pipeline.service
        found = await service.get_projections(
            "basket", "acme", [name for of, name in BASKETS if of == "acme"]
        )
        kinds = {its.state["sum"] >= 100 * its.state["events"] for its in found.values() if its.version}
        assert len(kinds) <= 1, "a mixture of two generations"
        self.seen += kinds

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        over = asyncio.Event()

        async def trade() -> None:
            while not over.is_set():
                await self.buy()
                await asyncio.sleep(0.02)

        async def read() -> None:
            while not over.is_set():
                await self.look()
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(trade())
            tasks.create_task(read())
            try:
                yield
            finally:
                over.set()

    async def states(self, name: str) -> dict[str, tuple[int, bytes]]:
        service = self.shop.pipeline.service
        work = self.shop.pipeline.definition.works[name]
        assert isinstance(work, ProjectionWork)
        found = {}
        for key in self.bought:
            tenant, _, basket = key.partition(":")
            its = await service.get_projection(name, tenant, basket)
            assert its is not None
            found[key] = (its.version, work.projection.encode(its.state))
        return found

    async def done(self, *names: str) -> None:
        async def is_done() -> bool:
            standings = [await self.shop.pipeline.service.standing(name) for name in names]
            return all(its.behind == 0 and its.retrying == 0 for its in standings)

        await until(is_done, "all to be processed", 60)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with standalone({"stream-node-max-entries": 5}) as server:  # whole nodes are trimmed
        yield server.url


def test_once_per_state_when_a_replay_is_promoted_under_traffic(
    url: str, lake: Lake, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toril.runtime.generations, "AT_ONCE", 7)
    shop = Shop(url, both=True)
    trade = Trade(shop, rng)
    subject = shop.subjects["shop/basket"]
    assert subject.projection.version == 2
    service = shop.pipeline

    async def run() -> None:
        its = service.service
        await trade.buy(60)
        await shop.buy("spoilt", 5, "broken", 7)
        await shop.log.choose_retention(Retention.archived_by(GROUP))
        await asyncio.to_thread(archive, lake, url)
        await trade.buy(30)
        async with trade.going_on():
            made = await asyncio.to_thread(replay, lake, subject, url=url)
            assert made.number == 2
            await asyncio.to_thread(archive, lake, url)
            await trim(shop.log)
            for step in ("loading", "loaded", "behind", "ready"):
                within = 1000
                if step == "behind":
                    await its.pause("basket@2")
                    await trade.buy(5)
                    within = 0
                with pytest.raises(Killed, match=step):
                    await promote(lake, made, its, url=url, within=within, progress=Dies(step))
                if step == "behind":
                    await its.resume("basket@2")
                assert await its.current("basket") == "basket"
            done = await promote(lake, made, its, url=url)
            before = len(trade.seen)
            assert (done.number, done.before, done.loaded.placed) == (2, 1, 0), "they had come before"
            await until(lambda: _seen(trade, before + 5), "some more looks")
        assert (trade.seen[0], trade.seen[-1]) == (False, True)
        assert trade.seen == sorted(trade.seen), "first the one, then the other"
        await trade.done("basket", "basket@2")
        assert await trade.states("basket@2") == folded(BasketInCents(), trade.bought)
        # What could not be taken waits for a person in the new generation too.
        failed = [one for one in await its.get_failed_events("acme") if one.processor == "basket@2"]
        assert [(one.aggregate.id, one.version) for one in failed] == [("spoilt", 2)]
        await its.skip_failed("basket@2", "acme", "spoilt", by="ann")

        async def skipped() -> bool:
            found = await its.get_projection("basket", *SPOILT)
            return found is not None and found.version == 3 and found.state["sum"] == 1200

        await until(skipped, "the rest of it to be processed")
        backend = shop.sourcing.backend
        assert backend is not None
        assert not (await diff_live(lake, made, subject, its, backend)).differences
        assert await take_back(its, "basket") == (1, 2)
        await trade.look()
        assert trade.seen[-1:] == [False]
        with pytest.raises(LakeError, match="none before it is there"):
            await take_back(its, "basket")
        await promote(lake, made, its, url=url)
        assert await retire(None, None, its, "basket", 1) == len(trade.bought) + 1
        await trade.buy(10)
        await trade.done("basket@2")
        assert await trade.states("basket@2") == folded(BasketInCents(), trade.bought)
        await trim(shop.log)
        part = await asyncio.to_thread(a_part, lake, made, "globex")
        with pytest.raises(LakeError, match="is of a part of history .tenant globex."):
            await promote(lake, part, its, url=url)
        gone = await asyncio.to_thread(find, lake, "shop/basket", part.number)
        await retire(lake, gone, its, "basket", part.number)
        again = await asyncio.to_thread(find, lake, "shop/basket", part.number)
        assert again.state == "retired"
        with pytest.raises(LakeError, match="is retired: its states are gone"):
            read(lake, again)

    async def opened() -> None:
        async with shop.sourcing, shop.sourcing.worker(upkeep=False):
            await run()

    asyncio.run(opened())


def a_part(lake: Lake, of: Generation, tenant: str) -> Generation:
    """A generation of one tenant, as a replay would have made it."""
    plan = msgspec.structs.replace(of.plan, number=of.number + 1, filters=Filters(tenant=tenant))
    table = table_of(plan)
    lake.ensure(table)
    rows = read(lake, of).where(f"tenant = '{tenant}'")
    lake.append(rows, table, Record(batch=plan.portions + 1, positions=plan.cut))
    return find(lake, plan.projection, plan.number)


async def _seen(trade: Trade, count: int) -> bool:
    return len(trade.seen) >= count


def test_once_per_state_when_a_new_projection_is_filled_from_the_beginning(
    lake: Lake, rng: random.Random
) -> None:
    with standalone({"stream-node-max-entries": 5}) as server:
        _filled(server.url, lake, rng)


def _filled(url: str, lake: Lake, rng: random.Random) -> None:
    before, trade = Shop(url), Trade(Shop(url), rng)

    async def history() -> None:
        trade.shop = before
        async with before.sourcing, before.sourcing.worker(upkeep=False):
            await trade.buy(60)
            await trade.done("basket")
            await before.log.choose_retention(Retention.archived_by(GROUP))
            await asyncio.to_thread(archive, lake, url)
            assert (await trim(before.log)).removed > 0, "the log alone has not all of it any more"

    asyncio.run(history())
    shop = Shop(url, worth=True)
    trade.shop = shop
    subject = shop.subjects["shop/worth"]

    async def run() -> None:
        its = shop.pipeline.service
        await trade.buy(20)
        assert await its.get_projection("worth", *BASKETS[0]) is None
        async with trade.going_on():
            made = await asyncio.to_thread(replay, lake, subject, url=url)
            assert made.number == 1, "the first one of a projection that had none"
            done = await promote(lake, made, its, url=url)
            assert (done.number, done.before) == (1, 1)
        await trade.done("worth", "basket")
        found = await trade.states("worth")
        assert {key: Worth.decode(state).total for key, (_, state) in found.items()} == {
            key: sum(prices) for key, prices in trade.bought.items()
        }
        assert {key: version for key, (version, _) in found.items()} == {
            key: len(prices) for key, prices in trade.bought.items()
        }
        assert await trade.states("basket") == folded(Basket(), trade.bought)
        with pytest.raises(ConfigurationError, match="has no projection 'nothing'"):
            await its.generations.ready("nothing", 1)

    async def opened() -> None:
        async with shop.sourcing, shop.sourcing.worker(upkeep=False):
            await run()

    asyncio.run(opened())
