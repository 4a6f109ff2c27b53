"""Aggregates that have left Redis get their states too, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from tests.conftest import Servers, emptied
from tests.queue.audit import until
from tests.runtime.generations import Doubled, orders
from toril.aggregate import Aggregate
from toril.events import NewEvent
from toril.log import Frozen, MemoryColdStore
from toril.runtime import EventSourcing, Rebuilt


class Asked(MemoryColdStore):
    """A cold store that counts the questions."""

    questions = 0

    async def get(self, aggregate: Aggregate) -> Frozen | None:
        self.questions += 1
        return await super().get(aggregate)

    async def get_many(self, aggregates: Sequence[Aggregate]) -> list[Frozen | None]:
        self.questions += 1
        return await super().get_many(aggregates)


async def test_the_cold_store_is_asked_for_many_aggregates_at_once(servers: Servers) -> None:
    url = emptied(servers.get("valkey-standalone")).url
    cold, names = Asked(), [f"o{number}" for number in range(96)]
    async with EventSourcing(url, partitions=2, cold=cold, quiet=timedelta(milliseconds=200)) as sourcing:
        log = sourcing.log
        assert log is not None
        pipeline = orders(sourcing)
        service = pipeline.service
        for name in names:
            await service.store_events("acme", name, [NewEvent(type="n", data=7)])

        async def all_cold() -> bool:
            await log.cool()
            return not any(one.hot for one in await log.standings())

        await until(all_cold, "all to go cold")
        cut = await service.generations.reserve("total", 2, version=2)
        state = Doubled().encode({"sum": 14, "by": 2})
        states = [Rebuilt(Aggregate("acme", "order", name), 1, state) for name in names]
        cold.questions = 0
        done = await service.generations.load("total", cut.number, states)
        assert done.placed == len(names)
        assert cold.questions <= 12, "and not one for each of them"
        await until(all_cold, "all to be cold again")
        cold.questions = 0
        assert await service.generations.retire("total", 2) == len(names)
        assert cold.questions <= 24
