"""A small program whose projections are replayed and promoted: baskets, and what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from toril.aggregate import Aggregate
from toril.events import (
    AnyEvent,
    DeclaredProjection,
    FirstBy,
    FoldProjection,
    NewEvent,
    ProjectionStore,
    Sum,
    fold,
)
from toril.lake.archive import EventsStep
from toril.lake.lake import Lake
from toril.lake.source import tails
from toril.lake.subjects import Subject, subjects_of
from toril.log import Log
from toril.runtime import EngineOptions, EventSourcing, RegisteredPipeline, Retry

T = TypeVar("T")

OPTIONS = EngineOptions(lease=2.0, grace=2.0)
QUICK = Retry(attempts=2, first=0.01, longest=0.02)
PARTITIONS = 4


class Basket(FoldProjection[dict[str, int]]):
    """The sum of what is in a basket, and of how many events."""

    name = "basket"
    state_type = dict[str, int]
    times = 1

    def initial(self) -> dict[str, int]:
        return {"sum": 0, "events": 0}

    def apply(self, state: dict[str, int], event: AnyEvent) -> dict[str, int]:
        if event.data["price"] == "broken":
            raise ValueError("broken")
        return {"sum": state["sum"] + self.times * event.data["price"], "events": state["events"] + 1}


class BasketInCents(Basket):
    """What it becomes."""

    version = 2
    times = 100


class Worth(DeclaredProjection):
    """A projection that is new."""

    name = "worth"
    total = Sum("data.price")
    first = FirstBy("data.price", int, order="version")


class Shop:
    """The program, on a server."""

    def __init__(
        self,
        url: str,
        *,
        both: bool = False,
        worth: bool = False,
        store: ProjectionStore | None = None,
        **settings: Any,
    ) -> None:
        self.url = url
        self.sourcing = EventSourcing(url, partitions=PARTITIONS, options=OPTIONS, **settings)
        builder = (
            self.sourcing.register_pipeline()
            .with_name("shop")
            .with_aggregate_type("basket")
            .with_projection("basket", store, Basket, retry=QUICK)
        )
        if both:
            builder.with_projection("basket", None, BasketInCents, retry=QUICK, generation=2, start="loaded")
        if worth:
            builder.with_projection("worth", None, Worth, retry=QUICK, start="loaded")
        self.pipeline: RegisteredPipeline = builder.build()
        self.subjects: dict[str, Subject] = subjects_of([self.pipeline.definition])

    @property
    def log(self) -> Log:
        assert self.sourcing.log is not None
        return self.sourcing.log

    async def buy(self, basket: str, *prices: Any, tenant: str = "acme", schema_version: int = 1) -> None:
        """Events of a basket."""
        events = [
            NewEvent(type="bought", data={"price": price}, schema_version=schema_version) for price in prices
        ]
        await self.pipeline.service.store_events(tenant, basket, events)


def during(shop: Shop, work: Callable[[], Awaitable[T]], *, worker: bool = False) -> T:
    """Do something with the program while it is open, and perhaps runs."""

    async def opened() -> T:
        async with shop.sourcing:
            if not worker:
                return await work()
            async with shop.sourcing.worker(upkeep=False):
                return await work()

    return asyncio.run(opened())


def archive(lake: Lake, url: str) -> None:
    """Everything that is in the log now, into the lake."""
    step = EventsStep(url, until=tails(url, "log"))
    step.prepare(lake)
    try:
        while step.once(lake) is not None:
            pass
    finally:
        step.close(lake)


def states(rows: DataFrame) -> dict[str, tuple[int, Any]]:
    """By aggregate, version and stored state."""
    return {
        f"{row['tenant']}:{row['aggregate_id']}": (
            row["version"],
            None if row["state"] is None else bytes(row["state"]),
        )
        for row in rows.collect()
    }


def folded(projection: Any, prices: dict[str, list[Any]]) -> dict[str, tuple[int, bytes]]:
    """The same, worked out by hand: by aggregate (``tenant:id``), what was bought."""
    made = {}
    for key, bought in prices.items():
        tenant, _, ident = key.partition(":")
        aggregate = Aggregate(tenant, "basket", ident)
        events = [
            NewEvent(type="bought", id=f"e{n}", data={"price": price}).recorded(
                aggregate, version=n, recorded_at=n
            )
            for n, price in enumerate(bought, 1)
        ]
        made[key] = (len(bought), projection.encode(fold(projection, events)))
    return made


def run(what: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(what)
