"""Processors while the log gets another number of partitions, and while quiet aggregates leave Redis."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PRODUCTS, SCALE, Servers, emptied
from tests.queue.audit import until
from tests.runtime.parts import QUICK, Recorder, Total
from tests.waiting import until_quiet
from toril.events import AnyEvent, HandlerContext, NewEvent
from toril.runtime import EngineOptions, EventSourcing, RegisteredPipeline
from toril.stores.sqlite import SqliteColdStore

SHAPES = ("standalone", "cluster")
OPTIONS = EngineOptions(lease=5.0, grace=2)


def orders(sourcing: EventSourcing, recorder: Recorder) -> RegisteredPipeline:
    return (
        sourcing.register_pipeline()
        .with_name("orders")
        .with_aggregate_type("order")
        .with_projection("total", None, Total, retry=QUICK)
        .with_event_handler("mail", recorder, retry=QUICK)
        .build()
    )


async def check(pipeline: RegisteredPipeline, recorder: Recorder, idents: list[str]) -> None:
    """Every state is what its events give, and each event was handled once and in order."""
    for ident in idents:
        rebuilt = await pipeline.service.rebuild_projection("total", "acme", ident)
        found = await pipeline.service.get_projection("total", "acme", ident)
        assert found == rebuilt, ident
        assert recorder.versions(int(ident)) == list(range(1, rebuilt.version + 1)), ident


@pytest.mark.timeout(120 + 60 * SCALE)
@pytest.mark.parametrize("shape", SHAPES)
async def test_once_per_state_and_order_kept_when_the_log_is_resized(
    servers: Servers, shape: str, rng: random.Random
) -> None:
    """With aggregates whose events are tried again meanwhile, and some that wait for a person."""
    url = emptied(servers.get(f"{PRODUCTS[0]}-{shape}")).url
    failing = {"3", "11"}
    """Aggregates whose second event fails until it is mended."""
    attempts: dict[tuple[str, int], int] = defaultdict(int)

    async def act(event: AnyEvent, _: HandlerContext) -> None:
        attempts[event.aggregate_id, event.version] += 1
        if event.aggregate_id in failing and event.version == 2:
            raise RuntimeError("broken")
        if rng.random() < 0.05 and attempts[event.aggregate_id, event.version] < 3:
            raise RuntimeError("for now")
        await asyncio.sleep(0)

    recorder = Recorder(act)
    idents = [str(number) for number in range(30)]
    async with (
        EventSourcing(url, partitions=4, options=OPTIONS) as sourcing,
        EventSourcing(url, options=OPTIONS) as other,
    ):
        pipeline = orders(sourcing, recorder)
        orders(other, recorder)
        service = pipeline.service

        async def write(rounds: int) -> None:
            for _ in range(rounds):
                for ident in rng.sample(idents, len(idents)):
                    await service.store_events(
                        "acme", ident, [NewEvent(type="n", data=rng.randrange(100)) for _ in range(2)]
                    )

        async def failed() -> bool:
            return len(await service.get_failed_events("acme")) == 2

        async def done() -> bool:
            return not any(lag.events for lag in await service.lag())

        async with sourcing.worker(upkeep=False), other.worker(upkeep=False):
            await write(3)
            await until(failed, "two events to fail")
            assert sourcing.log is not None
            for partitions in (7, 3):
                writing = asyncio.create_task(write(round(4 * SCALE)))
                await sourcing.log.resize(partitions)
                await writing
                await until(done, "both epochs to be processed", 60)
                assert await failed()
            failing.clear()
            assert await service.retry_all("mail", "acme") == 2
            await write(1)

            async def all_seen() -> bool:
                return len(recorder.seen) >= sum(
                    [(await service.get_events("acme", ident)).version for ident in idents]
                )

            await until(all_seen, "what failed to be processed", 30)
            await until(done, "all to be processed", 30)
    async with EventSourcing(url) as looking:
        await check(orders(looking, recorder), recorder, idents)


@pytest.mark.timeout(120 + 60 * SCALE)
@pytest.mark.parametrize("shape", SHAPES)
async def test_once_per_state_and_order_kept_when_aggregates_go_cold(
    servers: Servers, shape: str, rng: random.Random, tmp_path: Path
) -> None:
    """They leave Redis between events, also before a processor has seen them; states and checkpoints too."""
    url = emptied(servers.get(f"{PRODUCTS[0]}-{shape}")).url
    recorder = Recorder()
    idents = [str(number) for number in range(25)]
    cold = SqliteColdStore(tmp_path / "cold.db")
    settings: dict[str, Any] = {"cold": cold, "quiet": timedelta(milliseconds=40), "options": OPTIONS}
    async with EventSourcing(url, partitions=4, **settings) as sourcing:
        pipeline = orders(sourcing, recorder)
        log, service = sourcing.log, pipeline.service
        assert log is not None

        async def write() -> None:
            for ident in rng.sample(idents, len(idents)):
                await service.store_events("acme", ident, [NewEvent(type="n", data=rng.randrange(100))])

        async def done() -> bool:
            return not any(lag.events for lag in await service.lag())

        left = 0
        for _ in range(round(3 * SCALE)):
            await write()
            await until_quiet(log)
            left += await log.cool()  # before anyone has processed them
            async with sourcing.worker(upkeep=False, commands=False):
                await until(done, "all to be processed", 30)
                await until_quiet(log)
                left += await log.cool()
                await write()
                await until(done, "all to be processed", 30)
            await until_quiet(log)
            left += await log.cool()
        assert left >= 3 * len(idents)
        await check(pipeline, recorder, idents)
    cold.close()
