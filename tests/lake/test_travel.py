"""Time travel: one aggregate, or all of them, as they were at a version or at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.conftest import Servers, emptied
from tests.lake.shop import Basket, Shop, archive, during, folded, states
from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.lake.errors import NotWhole
from toril.lake.lake import Lake
from toril.lake.problems import SPARKS
from toril.lake.tables import EVENTS
from toril.lake.travel import state_at, states_at

TEA = Aggregate("acme${x}", "basket", "tea${env:HOME}")  # of which Spark would make others
CUP = Aggregate("acme", "basket", "tea")


def test_an_aggregate_as_it_was_at_each_version_and_time(servers: Servers, lake: Lake) -> None:
    url = emptied(servers.get("valkey-standalone")).url
    shop = Shop(url)
    subject = shop.subjects["shop/basket"]

    async def trade(of: Aggregate, *prices: object, **said: int) -> int:
        """Buys, and says a time between what was bought before and after."""
        await shop.buy(of.id, *prices, tenant=of.tenant, **said)
        await asyncio.sleep(0.005)
        now = time.time_ns()
        await asyncio.sleep(0.005)
        return now

    async def first() -> int:
        made = await trade(TEA, 1, 2)
        await trade(CUP, 7)
        await trade(CUP, 8, schema_version=2)  # there are no upcasters: any form is taken
        await trade(TEA, 3)
        return made

    async def second() -> int:
        return await trade(TEA, 4, "broken", 6)

    early = during(shop, first)
    archive(lake, url)
    shop = Shop(url)
    late = during(shop, second)  # these are in the log alone

    def at(**when: Any) -> tuple[int, object, int | None]:
        found = state_at(lake, subject, TEA, url=url, **when)
        return found.version, found.state and found.state["sum"], found.failed_version

    assert [at(version=number) for number in (0, 2, 6)] == [(0, None, None), (2, 3, None), (4, 10, 5)]
    assert [at(at=when) for when in (early, late)] == [(2, 3, None), (4, 10, 5)]
    found = state_at(lake, subject, TEA, url=url, version=3)
    assert found.recorded_at is not None
    assert early < found.recorded_at < late
    assert at(at=found.recorded_at) == (3, 6, None), "an event that was recorded at that very time has been"
    with states_at(lake, subject, url=url, at=found.recorded_at) as rows:
        assert states(rows) == folded(Basket(), {f"{TEA.tenant}:{TEA.id}": [1, 2, 3], "acme:tea": [7, 8]})
    cup = state_at(lake, subject, CUP, url=url)
    assert (cup.version, cup.state["sum"], cup.failed) == (2, 15, None)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"version": -1}, "a whole number from 0"),
        ({"at": time.time_ns() + 10**15}, "it is in the future"),
        ({"at": 1, "version": 1}, "not both"),
    ]
    for wrong, rule in refused:
        with pytest.raises(InvalidValue, match=rule):
            state_at(lake, subject, TEA, url=url, **wrong)
    with pytest.raises(InvalidValue, match="shop/basket is of aggregates of type basket"):
        state_at(lake, subject, Aggregate("acme", "order", "1"), url=url)

    # Where the first ones are missing no state of the others is shown, whichever was asked for.
    events = lake.sql_name(EVENTS)
    lake.spark.sql(f"DELETE FROM {events} WHERE tenant = 'acme' AND version = 1").collect()
    whens: list[dict[str, Any]] = [{"version": 1}, {"version": 2}, {"at": early}, {}]
    for when in whens:
        with pytest.raises(NotWhole, match="version 2 of basket 'tea' comes after none"):
            state_at(lake, subject, CUP, url=url, **when)
    with states_at(lake, subject, url=url) as rows, pytest.raises(SPARKS, match="'tea' comes after none"):
        rows.collect()
    lake.spark.sql(f"DELETE FROM {events} WHERE tenant <> 'acme' AND version = 2").collect()
    assert at(version=1) == (1, 1, None)
    with pytest.raises(NotWhole, match="version 3 of basket .* comes after 1"):
        at(version=2)
