"""The promise retention-safe: the log is trimmed all the time, and nothing is trimmed that is still needed.

Events flow, live processors and the archive run, and replays read from the log what the lake does not have.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import pytest
from pyspark.sql import Row

from tests.conftest import SCALE
from tests.lake.shop import Basket, Shop, folded, states
from tests.waiting import until
from toril.lake.archive import GROUP, EventsStep
from toril.lake.generations import Generation, Plan, read
from toril.lake.lake import Lake
from toril.lake.replay import Progress, replay
from toril.lake.source import Door, Marks, between, read_log
from toril.lake.tables import EVENTS
from toril.log import GapFound, Partition, Retention
from toril.log.upkeep import trim
from toril.testing import standalone

BASKETS = 20
HOT = 20
"""Events, at least, that a replay takes from the log."""

Bought = dict[str, list[int]]


class Sales:
    """Events of some baskets, one after the other, until it is over."""

    def __init__(self, shop: Shop, rng: random.Random) -> None:
        self.shop = shop
        self.rng = rng
        self.bought: Bought = defaultdict(list)
        self.over = asyncio.Event()

    async def run(self) -> None:
        while not self.over.is_set():
            tenant, basket = self.rng.choice(("acme", "globex")), f"b{self.rng.randrange(BASKETS)}"
            prices = [self.rng.randrange(1, 100) for _ in range(self.rng.randrange(1, 4))]
            await self.shop.buy(basket, *prices, tenant=tenant)
            self.bought[f"{tenant}:{basket}"] += prices
            await asyncio.sleep(0.01)


class Archive:
    """The step that archives, in a thread; it can be held."""

    def __init__(self, lake: Lake, url: str) -> None:
        self.lake = lake
        self.url = url
        self.over = threading.Event()
        self.batches = 0
        self._gate = threading.Lock()
        self._held = False

    def hold(self) -> Marks:
        """Let it archive nothing more; says how far it is."""
        self._gate.acquire()
        self._held = True
        return self.lake.last(EVENTS).positions

    def go_on(self) -> None:
        if self._held:
            self._held = False
            self._gate.release()

    def run(self) -> None:
        step = EventsStep(self.url)
        step.prepare(self.lake)
        try:
            while True:
                last = self.over.is_set()
                with self._gate:
                    record = step.once(self.lake)
                if record is not None:
                    self.batches += 1
                    for name, (trimmed, _) in self._firsts().items():
                        has = record.positions.get(name, (0, ""))[0]
                        assert trimmed <= has, "trimmed, and not in the table"
                elif last:
                    return
                else:
                    self.over.wait(0.05)
        finally:
            step.close(self.lake)

    def _firsts(self) -> Marks:
        with Door(self.url, "log") as door:
            return door.firsts()


class Begun(Progress):
    """Lets the archive go on as soon as a replay has begun to read."""

    def __init__(self, archive: Archive, have: Marks) -> None:
        self._archive = archive
        self._have = have
        self.hot = 0

    def began(self, plan: Plan, events: int, done: int) -> None:
        assert (done, events) == (0, between({}, plan.cut))
        self.hot = between(self._have, plan.cut)
        self._archive.go_on()


@pytest.mark.promise
@pytest.mark.timeout(300 + 60 * SCALE)
def test_retention_safe_while_archive_processors_and_replays_run(
    lake: Lake, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    with standalone({"stream-node-max-entries": 5}) as server:  # whole nodes are trimmed
        said = asyncio.run(_all_at_once(server.url, lake, rng))
    with capsys.disabled():
        print(f"\n  retention of a lake: {said}")


async def _all_at_once(url: str, lake: Lake, rng: random.Random) -> str:
    began = time.monotonic()
    shop = Shop(url)
    sales, archive = Sales(shop, rng), Archive(lake, url)
    made: list[Generation] = []
    removed = hot = 0
    going = True

    async def trim_on() -> None:
        nonlocal removed
        while going:
            removed += (await trim(shop.log, at_once=rng.choice((10, 100, 10_000)))).removed
            await asyncio.sleep(0.002)

    async def replay_now(*, last: bool = False) -> None:
        """From the lake and the log. The last one keeps its place, and is of all there is."""
        nonlocal hot
        have = await asyncio.to_thread(archive.hold)
        begun = Begun(archive, have)

        async def enough() -> bool:
            tails = sum(one.tail.ordinal for one in await shop.log.standings())
            return tails >= between({}, have) + HOT

        await until(enough)
        if last:
            sales.over.set()
            await selling
        one = await asyncio.to_thread(
            replay, lake, shop.subjects["shop/basket"], url=url, keep=last, progress=begun
        )
        assert begun.hot >= HOT
        hot += begun.hot
        made.append(one)

    async with shop.sourcing, shop.sourcing.worker(upkeep=False):
        await shop.log.choose_retention(Retention.archived_by(GROUP))
        async with asyncio.TaskGroup() as tasks:
            selling = tasks.create_task(sales.run())
            tasks.create_task(trim_on())
            archiving = tasks.create_task(asyncio.to_thread(archive.run))
            try:
                await until(lambda: archive.batches > 0 and removed > 0, 60)
                for _ in range(max(1, round(SCALE))):
                    await replay_now()
                await replay_now(last=True)
            finally:
                archive.over.set()
                sales.over.set()
                archive.go_on()
            await archiving
            going = False
        service = shop.pipeline.service

        async def processed() -> bool:
            return (await service.standing("basket")).behind == 0

        await until(processed)
        live = {}
        for key in sales.bought:
            its = await service.get_projection("basket", *key.split(":"))
            assert its is not None
            live[key] = (its.version, Basket().encode(its.state))
        removed += (await trim(shop.log)).removed
        trimmed = {str(one.partition): one.trimmed for one in await shop.log.standings()}
    assert live == folded(Basket(), sales.bought)
    await asyncio.to_thread(_check, url, lake, sales.bought, made, trimmed)
    total = sum(map(len, sales.bought.values()))
    assert removed > total / 2
    return (
        f"{total} events, {removed} of them trimmed, {archive.batches} batches archived, {len(made)} replays "
        f"took {hot} events from the log, {time.monotonic() - began:.1f} s"
    )


def _check(url: str, lake: Lake, bought: Bought, made: list[Generation], trimmed: dict[str, int]) -> None:
    """Every event is in the lake once, and replays are of all events up to their cuts."""
    rows = lake.read(EVENTS).orderBy("tenant", "aggregate_id", "version").collect()
    assert _upto(rows, None) == bought
    for one in made:
        assert states(read(lake, one)) == folded(Basket(), _upto(rows, one.plan.cut))
    assert states(read(lake, made[-1])) == folded(Basket(), bought), "the last one is of everything"
    # What comes after its cut is kept for it.
    assert all(trimmed[name] <= ordinal for name, (ordinal, _) in made[-1].plan.cut.items())
    with Door(url, "log") as door:
        ends = door.tails()
    gone = {name: (1, "1-0") for name, ordinal in trimmed.items() if ordinal > 1}
    for start in ({}, gone):
        with pytest.raises(GapFound, match=r"entries \d+ to \d+ were trimmed before they were read here"):
            read_log(lake.spark, url, "log", start, ends)


def _upto(rows: Sequence[Row], cut: Marks | None) -> Bought:
    """What was bought up to a cut, as events in order say."""
    found: Bought = defaultdict(list)
    for row in rows:
        place = str(Partition(row["log_epoch"], row["log_partition"]))
        if cut is None or row["ordinal"] <= cut[place][0]:
            price = msgspec.json.decode(bytes(row["body"]))["data"]["price"]
            found[f"{row['tenant']}:{row['aggregate_id']}"].append(price)
    return found
