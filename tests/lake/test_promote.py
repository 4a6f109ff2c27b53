"""Promotion under live traffic: cut off at every step and run again, and nothing is lost or counted twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import Row

import toril.lake.promote
import toril.runtime.generations
from tests.conftest import SCALE, Servers, emptied
from tests.lake.promoter import SMALL, STEPS, At, Settings
from tests.lake.shop import Basket, BasketInCents, Shop, Worth, archive, during, folded
from tests.queue.audit import until
from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events import DeclaredProjection, Derived, FirstBy, Sum, path
from toril.events.errors import ConfigurationError
from toril.lake.archive import GROUP
from toril.lake.errors import LakeError, NotWhole
from toril.lake.generations import Filters, Generation, Plan, find, read, table_of
from toril.lake.lake import Lake, Record
from toril.lake.live import diff_live
from toril.lake.promote import (
    Progress,
    in_portions,
    other_code,
    promote,
    refuse_other_log,
    retire,
    take_back,
    was_erased,
)
from toril.lake.replay import replay
from toril.lake.subjects import Code, code_of
from toril.log import Retention
from toril.log.upkeep import trim
from toril.runtime.generations import Generations, GenerationStanding
from toril.runtime.work import ProjectionWork
from toril.testing import standalone

pytestmark = pytest.mark.timeout(900)

BASKETS = [(tenant, f"b{number}") for tenant in ("acme", "globex") for number in range(15)]
SPOILT = ("acme", "spoilt")

KILLS = 1 if SCALE <= 1 else len(STEPS)
"""At how many of the steps a process is killed as well: Java starts for each."""

ROOT = Path(__file__).parents[2]


class Killed(Exception):
    pass


class Dies(At):
    """Ends a promotion at a step, and lets this process live."""

    def reached(self) -> None:
        raise Killed(self._step)


async def killed(settings: Settings) -> None:
    """A promotion of another process, killed with all that it has started when it has come to a step."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.lake.promoter", msgspec.json.encode(settings).decode()),
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    said = await process.stdout.readline()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert (said.decode().strip(), await process.wait()) == (settings.step, -signal.SIGKILL)


class Resumes(Progress):
    """Lets a paused processor go on when a promotion comes to a step."""

    def __init__(self, trade: Trade, name: str, at: str) -> None:
        self._trade = trade
        self._name = name
        self._at = at
        self.told: list[str] = []
        self._resuming: asyncio.Task[None] | None = None

    def _step(self, step: str) -> None:
        self.told.append(step)
        if step == self._at and self._resuming is None:
            resume = self._trade.shop.pipeline.service.resume(self._name)
            self._resuming = asyncio.get_running_loop().create_task(resume)

    def behind(self, standing: GenerationStanding, runs: bool) -> None:
        assert (standing.state, runs) == ("catching up", True)
        self._step("behind")

    def ready(self, standing: GenerationStanding) -> None:
        assert standing.state == "ready"
        self._step("ready")


class FallsBehind(Resumes):
    """Much is bought at the moment when a generation has caught up."""

    def ready(self, standing: GenerationStanding) -> None:
        if "ready" not in self.told:
            with ThreadPoolExecutor(1) as thread:  # nothing else can run meanwhile
                thread.submit(self._buy).result()
        super().ready(standing)

    def _buy(self) -> None:
        shop = Shop(self._trade.shop.url)
        during(shop, lambda: shop.buy("b0", *[1] * 50))
        self._trade.bought["acme:b0"] += [1] * 50


class Trade:
    """Live traffic, and readers that look all the time."""

    def __init__(self, shop: Shop, rng: random.Random) -> None:
        self.shop = shop
        self.rng = rng
        self.bought: dict[str, list[int]] = defaultdict(list)
        self.seen: list[bool] = []
        """Of each look, whether it was of prices in cents."""
        self.versions: dict[str, int] = {}
        """How far baskets of acme were when they were last looked at."""

    async def buy(self, times: int = 1) -> None:
        for _ in range(times):
            tenant, basket = self.rng.choice(BASKETS)
            prices = [self.rng.randrange(1, 10) for _ in range(self.rng.randrange(1, 4))]
            await self.shop.buy(basket, *prices, tenant=tenant)
            self.bought[f"{tenant}:{basket}"] += prices

    async def look(self) -> None:
        """All that one answer has is of one generation, and none of it is older than in the answer before."""
        service = self.shop.pipeline.service
        before = dict(self.versions)
        found = await service.get_projections(
            "basket", "acme", [name for of, name in BASKETS if of == "acme"]
        )
        self.versions |= {name: its.version for name, its in found.items()}
        back = {name: (at, self.versions[name]) for name, at in before.items() if self.versions[name] < at}
        assert not back, "back in time"
        assert before.keys() <= found.keys()
        kinds = {its.state["sum"] >= 100 * its.state["events"] for its in found.values() if its.version}
        assert len(kinds) <= 1, "a mixture of two generations"
        self.seen += kinds

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        over = asyncio.Event()

        quiet, switch = asyncio.Lock(), Generations.switch

        async def trade() -> None:
            while not over.is_set():
                async with quiet:
                    await self.buy()
                await asyncio.sleep(0.02)

        async def switched(its: Generations, name: str, number: int, **how: Any) -> int:
            # Of what comes during its last round trip a switch promises nothing: so nothing comes.
            async with quiet:
                if current := await self.shop.pipeline.service.current(name):
                    await self.done(current)
                return await switch(its, name, number, **how)

        async def read() -> None:
            while not over.is_set():
                await self.look()
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(trade())
            tasks.create_task(read())
            try:
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(Generations, "switch", switched)
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

    async def behind(self, name: str) -> int:
        """Events that a processor has not processed."""
        return (await self.shop.pipeline.service.standing(name)).behind

    async def stop(self, name: str, other: str) -> None:
        """Pause a processor, and trade until it is behind another one."""
        await self.shop.pipeline.service.pause(name)

        async def stands_still() -> bool:
            await self.buy()
            await self.done(other)
            return await self.behind(name) >= 10

        await until(stands_still, f"{name} to be paused")

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
    for portion in SMALL:
        monkeypatch.setattr(*portion)
    monkeypatch.setattr(toril.runtime.generations, "LEVEL_WITHIN", 60.0)
    dead = rng.sample(STEPS, KILLS)
    shop = Shop(url, both=True)
    trade = Trade(shop, rng)
    subject = shop.subjects["shop/basket"]
    assert subject.projection.version == 2
    service = shop.pipeline

    async def run() -> None:
        its = service.service
        await trade.buy(60)
        await shop.buy("spoilt", 5, "broken", 7, *[1] * 6)
        await shop.log.choose_retention(Retention.archived_by(GROUP))
        await asyncio.to_thread(archive, lake, url)
        await trade.buy(30)
        async with trade.going_on():
            made = await asyncio.to_thread(replay, lake, subject, url=url)
            assert (made.number, made.failed) == (2, 1)
            await asyncio.to_thread(archive, lake, url)
            await trim(shop.log)
            for step in STEPS:
                within = 1000
                if step == "behind":
                    await its.pause("basket@2")
                    await trade.buy(5)
                    within = 0
                if step in dead:
                    await killed(Settings(url=url, lake=lake.path, step=step, within=within))
                with pytest.raises(Killed, match=step):
                    await promote(lake, made, its, url=url, within=within, progress=Dies(step))
                if step == "behind":
                    await its.resume("basket@2")
                assert await its.current("basket") == "basket"
            # It is let draw level: what readers have seen, they see.
            await its.pause("basket@2")
            await until(lambda: _is_behind(trade, "basket@2", 30), "the new generation to be behind")
            resumes = Resumes(trade, "basket@2", at="ready")
            done = await promote(lake, made, its, url=url, progress=resumes)
            assert resumes.told == ["ready"]
            before = len(trade.seen)
            assert (done.number, done.before, done.loaded.placed) == (2, 1, 0), "they had come before"
            assert done.failed == 1
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
            return found is not None and found.version == 9 and found.state["sum"] == 1800

        await until(skipped, "the rest of it to be processed")
        backend = shop.sourcing.backend
        assert backend is not None
        assert not (await diff_live(lake, made, subject, its, backend)).differences
        assert await take_back(its, "basket") == (1, 2)
        await trade.look()
        assert trade.seen[-1:] == [False]
        with pytest.raises(LakeError, match="see generation 1, and saw none before it"):
            await take_back(its, "basket")
        # One that falls behind at the last moment is waited for once more.
        await trade.stop("basket@2", "basket")
        falls = FallsBehind(trade, "basket@2", at="behind")
        within = await trade.behind("basket@2") + 10
        await promote(lake, made, its, url=url, within=within, progress=falls)
        assert falls.told[:2] == ["ready", "behind"]
        assert falls.told.count("ready") == 2
        await trade.look()
        went: list[int] = []
        gone_with_it = await retire(None, None, its, "basket", 1, progress=went.append)
        assert gone_with_it == went[-1] == len(trade.bought) + 1
        await trade.buy(10)
        await trade.done("basket@2")
        assert await trade.states("basket@2") == folded(BasketInCents(), trade.bought)
        await trim(shop.log)
        moved = msgspec.structs.replace(made.plan, cut={**made.plan.cut, "00": (1, "1-0")})
        with pytest.raises(LakeError, match="has another cut here than the one that the live store"):
            await promote(lake, replace(made, plan=moved), its, url=url)
        with pytest.raises(InvalidValue, match="--log 'orders' .* was made of log 'log'"):
            refuse_other_log(made, "orders")
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


async def _is_behind(trade: Trade, name: str, count: int) -> bool:
    return await trade.behind(name) >= count


def test_events_that_wait_come_in_portions_of_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toril.lake.promote, "EVENTS_AT_ONCE", 3)
    monkeypatch.setattr(toril.lake.promote, "BYTES_AT_ONCE", 10)
    sizes = {"one": [4, 4, 4, 4, 9, 9], "two": [1, 1, 1, 1], "three": [50]}

    def row(name: str, place: int, value: bytes) -> Row:
        whose = {"tenant": "acme", "aggregate_type": "basket", "aggregate_id": name}
        return Row(**whose, reached=6, place=place, recorded_at=place, value=value)

    rows = [
        row(name, place, value)
        for name, waiting in sizes.items()
        for place, value in ((0, b"state"), *((n, b"x" * of) for n, of in enumerate(waiting, 7)))
    ]
    made = [
        (one.aggregate.id, one.state, one.after, [version for version, _, _ in one.waiting])
        for one in in_portions(rows, lambda _: False)
    ]
    assert made == [
        ("one", b"state", 0, [7, 8, 9]),
        ("one", b"", 3, [10, 11]),
        ("one", b"", 5, [12]),
        ("two", b"state", 0, [7, 8, 9]),
        ("two", b"", 3, [10]),
        ("three", b"state", 0, [7]),
    ]
    for lost, found in ((7, "version 8 of basket 'one' comes after 6"), (11, "version 12 .* comes after 10")):
        left = [each for each in rows if each["place"] != lost]
        with pytest.raises(NotWhole, match=found):
            list(in_portions(left, lambda _: False))
        erased = in_portions(left, lambda one: one.id in ("one", "two"))
        waiting = [version for one in erased if one.aggregate.id == "one" for version, _, _ in one.waiting]
        assert waiting == list(range(7, lost)), "the live store takes none of it anyway"
    with pytest.raises(NotWhole, match="version 10 of basket 'two' comes after 10"):
        list(in_portions([*rows[:12], rows[11]], lambda _: False))


def test_what_was_erased_since_the_cut_is_known_to_be(servers: Servers) -> None:
    shop = Shop(emptied(servers.get("valkey-standalone")).url, both=True)
    code = code_of(BasketInCents())
    made = Generation(Plan(projection="shop/basket", number=2, cut={}, engine="fold", code=code), 2)

    async def run() -> None:
        for tenant in ("before", "since", "never"):
            await shop.buy("b1", 1, tenant=tenant)
        await shop.log.erase_tenant("before")
        await shop.pipeline.service.generations.reserve("basket", 2)
        await shop.log.erase_tenant("since")
        known = {
            tenant: await was_erased(shop.log, made, Aggregate(tenant, "basket", "b1"))
            for tenant in ("before", "since", "never")
        }
        assert known == {"before": False, "since": True, "never": False}

    during(shop, run)


def test_what_is_taken_back_draws_level_if_workers_run_it(
    servers: Servers, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toril.runtime.generations, "LEVEL_WITHIN", 60.0)
    shop = Shop(emptied(servers.get("valkey-standalone")).url, both=True)
    trade = Trade(shop, rng)

    async def run() -> None:
        its = shop.pipeline.service
        await its.generations.reserve("basket", 2)
        await its.generations.load("basket", 2, [])
        async with shop.sourcing.worker(upkeep=False):
            await trade.buy(60)
            await trade.done("basket", "basket@2")
            assert await its.generations.switch("basket", 2) == 1
            async with trade.going_on():
                await its.pause("basket")
                await until(lambda: _is_behind(trade, "basket", 30), "the one before to be behind")
                taking = asyncio.create_task(take_back(its, "basket"))
                looked = len(trade.seen)
                await until(lambda: _seen(trade, looked + 3), "some more looks")
                assert not taking.done()
                await its.resume("basket")
                assert await taking == (1, 2)
                looked = len(trade.seen)
                await until(lambda: _seen(trade, looked + 3), "some more looks")
            assert (trade.seen[0], trade.seen[-1]) == (True, False)
            await its.generations.switch("basket", 2)
            await trade.stop("basket", "basket@2")
            await trade.look()
        # Nobody runs it: it is seen as it is, at once.
        async with asyncio.timeout(30):
            assert await take_back(its, "basket") == (1, 2)
        with pytest.raises(AssertionError, match="back in time"):
            await trade.look()

    during(shop, run)


def test_what_is_taken_back_is_what_readers_saw(servers: Servers) -> None:
    shop = Shop(emptied(servers.get("valkey-standalone")).url, both=True)

    async def run() -> None:
        its = shop.pipeline.service
        for number in (2, 3, 4):
            await its.generations.reserve("basket", number)
            await its.generations.load("basket", number, [])
        for number in (2, 4):
            await its.generations.switch("basket", number)
        assert await take_back(its, "basket") == (2, 4), "nobody ever saw the third"
        await its.generations.switch("basket", 4)
        await its.generations.retire("basket", 2)
        assert await take_back(its, "basket") == (1, 4), "nobody can see the second any more"
        await its.generations.switch("basket", 4)
        # As it was left where it was retired by an earlier release, until it is retired once more.
        await shop.log.redis.command("HSET", shop.log.keys.generations, "shop/basket before", "1 2")
        with pytest.raises(LakeError, match="saw generation 2 of basket before, and it is retired"):
            await take_back(its, "basket")
        assert await its.current("basket") == "basket@4"
        await its.generations.retire("basket", 2)
        assert await take_back(its, "basket") == (1, 4)

    during(shop, run)


def test_once_per_state_when_a_new_projection_is_filled_from_the_beginning(
    lake: Lake, rng: random.Random
) -> None:
    with standalone({"stream-node-max-entries": 5}) as server:
        _filled(server.url, lake, rng)


class NetWorth(DeclaredProjection):
    """The same version of what was declared otherwise."""

    name = "worth"
    total = Sum("data.net")
    first = FirstBy("data.price", int, order="version")


class Codes(Progress):
    """Which code has made a generation, and by which it goes on."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def other_code(self, made_by: Code, goes_on_by: Code) -> None:
        self.said.append((made_by.digest, goes_on_by.digest))


def by_code(made: Generation, code: Code) -> Generation:
    """A generation, as if other code had made it."""
    return replace(made, plan=msgspec.structs.replace(made.plan, code=code))


def test_a_generation_goes_on_by_the_code_that_made_it_or_it_is_said() -> None:
    definition = Shop("redis://nowhere", both=True, worth=True).pipeline.definition
    plan = Plan(projection="shop/worth", number=7, cut={}, engine="fold", code=code_of(Worth))
    made = Generation(plan, 2)

    class More(Worth):
        name = "worth"
        nothing = Derived(path("total") - path("total"), int)

    assert other_code(made, definition) is None
    assert other_code(by_code(made, code_of(More)), definition) == code_of(Worth), "it has the same states"
    wrong = (
        r"generation 7 of shop/worth was made by worth version 1 with other fields than this program has "
        r"\(total\): its states would be of both; replay again with this code, or give the projection another"
    )
    with pytest.raises(LakeError, match=wrong):
        other_code(by_code(made, code_of(NetWorth)), definition)
    with pytest.raises(LakeError, match=r"\(first, total\)"):
        other_code(by_code(made, msgspec.structs.replace(plan.code, digest="", fields={})), definition)
    # Of the version that made it; where the program does not have that, others go on with it.
    assert other_code(by_code(made, Code(projection="worth version 2", digest="2")), definition) is None
    for number, projection in ((2, BasketInCents()), (3, BasketInCents()), (1, Basket()), (3, Basket())):
        basket = msgspec.structs.replace(
            plan, projection="shop/basket", number=number, code=code_of(projection)
        )
        assert other_code(replace(made, plan=basket), definition) is None
    under_its_number = msgspec.structs.replace(
        plan, projection="shop/basket", number=2, code=code_of(Basket())
    )
    assert other_code(replace(made, plan=under_its_number), definition) == code_of(BasketInCents())


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
            await its.pause("worth")
            await trade.buy(5)
            with pytest.raises(LakeError, match="events behind after 0.1 s"):
                await promote(lake, made, its, url=url, within=0, patience=0.1)
            assert await its.get_projection("worth", *BASKETS[0]) is None, "nobody sees it before it is level"
            await its.resume("worth")
            declared = by_code(made, code_of(NetWorth))
            with pytest.raises(LakeError, match=r"worth version 1 with other fields .* \(total\): .* replay"):
                await promote(lake, declared, its, url=url)
            assert await its.get_projection("worth", *BASKETS[0]) is None
            told = Codes()
            edited = by_code(made, msgspec.structs.replace(made.plan.code, digest="0" * 64))
            done = await promote(lake, edited, its, url=url, progress=told)
            assert told.said == [("0" * 64, made.plan.code.digest)]
            assert (done.number, done.before) == (1, 0)
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
