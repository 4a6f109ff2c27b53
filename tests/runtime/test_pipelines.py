"""Pipelines, from the builder to the states: the same in memory, on one server and on a cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conftest import MATRIX, Servers, emptied
from tests.runtime.parts import QUICK, Recorder, Total
from tests.waiting import until
from toril.aggregate import Aggregate
from toril.events import (
    AnyEvent,
    CheckpointError,
    Command,
    CommandHandler,
    ConfigurationError,
    DeclaredProjection,
    EventHandler,
    HandlerContext,
    HandlerError,
    NewEvent,
    Sum,
    Upcasters,
    VersionConflict,
)
from toril.runtime import EngineOptions, EventSourcing, RegisteredPipeline
from toril.stores import MemoryEventPublisher, MemoryProjectionStore


class Place(msgspec.Struct):
    order_id: str
    amount: int


class PlaceOrder(CommandHandler[Place]):
    @classmethod
    def get_aggregate_id(cls, payload: Place) -> str:
        return payload.order_id

    def handle(self, command: Command[Place]) -> list[NewEvent[int]]:
        return [NewEvent(type="placed", data=command.data.amount)]


@pytest.fixture(params=["inline", *MATRIX])
async def sourcing(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[EventSourcing]:
    url = "memory://" if request.param == "inline" else emptied(servers.get(request.param)).url
    options = EngineOptions(lease=5, grace=2)
    made = EventSourcing(url, options=options, partitions=None if request.param == "inline" else 4)
    yield made
    await made.close()


def orders(sourcing: EventSourcing, *recorders: Recorder, store: Any = None) -> RegisteredPipeline:
    builder = (
        sourcing.register_pipeline()
        .with_name("orders")
        .with_aggregate_type("order")
        .with_command_handler(PlaceOrder)
        .with_projection("total", store, Total, retry=QUICK)
    )
    for number, recorder in enumerate(recorders):
        builder = builder.with_event_handler(f"handler-{number}", recorder, retry=QUICK)
    return builder.build()


async def state(pipeline: RegisteredPipeline, ident: str, tenant: str = "acme") -> tuple[int, int] | None:
    found = await pipeline.service.get_projection("total", tenant, ident)
    return None if found is None else (found.state["sum"], found.version)


async def test_a_command_becomes_an_event_an_effect_and_a_state(sourcing: EventSourcing) -> None:
    recorder = Recorder()
    pipeline = orders(sourcing, recorder)
    async with sourcing.worker():
        await pipeline.commands.place_order.execute({"order_id": "1", "amount": 5}, tenant="acme")
        await pipeline.command(PlaceOrder).send(Place("1", 7), tenant="acme")
        await pipeline.commands["place_order"].send_many(
            [{"order_id": "2", "amount": 1}, {"order_id": "2", "amount": 2}], tenant="acme"
        )
        await until(lambda: len(recorder.seen) == 4)

        async def built() -> bool:
            return await state(pipeline, "1") == (12, 2) and await state(pipeline, "2") == (3, 2)

        await until(built)
    assert [event.data for event in await pipeline.service.get_events("acme", "1")] == [5, 7]
    assert all(lag.events == 0 for lag in await pipeline.service.lag())


async def test_states_in_a_store_of_their_own(sourcing: EventSourcing) -> None:
    store = MemoryProjectionStore()
    pipeline = orders(sourcing, store=store)
    for _ in range(2):
        async with sourcing.worker():
            for number in range(10):
                await pipeline.service.store_events("acme", str(number), [NewEvent(type="n", data=number)])

            async def all_in() -> bool:
                return not any(lag.events for lag in await pipeline.service.lag())

            await until(all_in)
    for number in range(10):
        assert await state(pipeline, str(number)) == (2 * number, 2)


async def test_time_travel_and_rebuilding(sourcing: EventSourcing) -> None:
    pipeline = orders(sourcing)
    await sourcing.open()
    service = pipeline.service
    await service.store_events("acme", "1", [NewEvent(type="n", data=value) for value in (1, 2, 3, 4)])
    at = await service.rebuild_projection("total", "acme", "1", up_to=2)
    assert (at.state["sum"], at.version) == (3, 2)
    now = await service.rebuild_projection("total", "acme", "1")
    assert (now.state["sum"], now.version) == (10, 4)
    assert await service.get_projection("total", "acme", "1") is None  # nobody has processed it yet


async def test_replay_tells_a_handler_that_it_is_one(sourcing: EventSourcing) -> None:
    replays: list[tuple[int, bool]] = []

    class Mail(EventHandler[Any]):
        async def handle(self, event: AnyEvent, context: HandlerContext) -> None:
            replays.append((event.version, context.is_replay))

    pipeline = (
        sourcing.register_pipeline()
        .with_name("orders")
        .with_aggregate_type("order")
        .with_event_handler("mail", Mail())
        .build()
    )
    async with sourcing.worker():
        await pipeline.service.store_events("acme", "1", [NewEvent(type="n", data=1)] * 1)
        await until(lambda: len(replays) == 1)
        assert await pipeline.service.replay("mail", "acme", "1") == 1
    assert replays == [(1, False), (1, True)]


async def test_failed_events_are_listed_retried_and_skipped(sourcing: EventSourcing) -> None:
    broken = True

    async def act(event: AnyEvent, _: HandlerContext) -> None:
        if broken and event.data == "broken":
            raise RuntimeError("it is broken")

    recorder = Recorder(act)
    pipeline = orders(sourcing, recorder)
    async with sourcing.worker():
        service = pipeline.service
        for ident in ("1", "2"):
            values = (1, "broken", 3)
            await service.store_events("acme", ident, [NewEvent(type="n", data=value) for value in values])

        async def both() -> bool:
            return len(await service.get_failed_events("acme")) == 4  # the projection fails as well

        await until(both)
        checkpoint = await service.get_checkpoint("handler-0", "acme", "1")
        assert checkpoint is not None
        assert (checkpoint.status, checkpoint.version, checkpoint.attempts) == ("failed", 2, 3)
        assert str(checkpoint.key) == "acme:orders:handler-0:order:1"
        assert await service.get_checkpoint("handler-0", "acme", "9") is None
        failed = await service.get_failed_events("acme", processor="handler-0")
        assert [(one.version, one.attempts) for one in failed] == [(2, 3), (2, 3)]
        assert "it is broken" in failed[0].error
        assert await service.get_failed_events("other") == []
        broken = False
        assert await service.retry_all("handler-0", "acme", by="me", reason="fixed") == 2
        await until(lambda: recorder.versions(1) == recorder.versions(2) == [1, 2, 3])
        await service.skip_failed("total", "acme", "1")

        async def skipped() -> bool:
            return await state(pipeline, "1") == (4, 3)

        await until(skipped)
        assert await service.skipped("total", "acme", "1") == {2}
        after = await service.get_checkpoint("total", "acme", "1")
        assert after is not None
        assert (after.status, after.version, after.error) == ("processed", 3, None)
        rebuilt = await service.rebuild_projection("total", "acme", "1")
        assert (rebuilt.state["sum"], rebuilt.version) == (4, 3)  # replay decides the same
        with pytest.raises(CheckpointError, match="no failed event"):
            await service.retry_failed("handler-0", "acme", "1")


async def test_generations_side_by_side_and_one_pointer(sourcing: EventSourcing) -> None:
    class Doubled(Total):
        name = "total"
        version = 2

        def apply(self, state: dict[str, int], event: AnyEvent) -> dict[str, int]:
            return {"sum": state["sum"] + 2 * event.data, "events": state["events"] + 1}

    pipeline = (
        sourcing.register_pipeline()
        .with_name("orders")
        .with_aggregate_type("order")
        .with_projection("total", None, Total)
        .with_projection("total", None, Doubled, generation=2)
        .build()
    )
    async with sourcing.worker():
        await pipeline.service.store_events("acme", "1", [NewEvent(type="n", data=5)])

        async def both() -> bool:
            return not any(lag.events for lag in await pipeline.service.lag())

        await until(both)
        assert await state(pipeline, "1") == (5, 1)
        await pipeline.service.promote("total", 2)
        assert await state(pipeline, "1") == (10, 1)
        await pipeline.service.promote("total", 1)
        assert await state(pipeline, "1") == (5, 1)


async def test_a_publisher_is_told_and_fails_nothing(sourcing: EventSourcing) -> None:
    class Deaf:
        async def publish(self, tenant: str, events: Any) -> None:
            raise OSError(f"nobody listens to {len(events)} of {tenant}")

    heard = MemoryEventPublisher()
    for name, publisher in (("heard", heard), ("deaf", Deaf())):
        builder = sourcing.register_pipeline().with_name(name).with_aggregate_type(name)
        builder.with_event_publisher(publisher).build()
    await sourcing.open()
    for name in ("heard", "deaf"):
        service = sourcing.pipelines[name].service
        assert (await service.store_events("acme", "1", [NewEvent(type="n", data=1)])).last_version == 1
    assert len(heard.published) == 1


async def test_old_events_reach_processors_in_the_form_of_today(sourcing: EventSourcing) -> None:
    upcasters = Upcasters()
    upcasters.register("n", 1, 2, lambda data: data * 100)
    pipeline = (
        sourcing.register_pipeline()
        .with_name("orders")
        .with_aggregate_type("order")
        .with_projection("total", None, Total)
        .with_upcasters(upcasters)
        .build()
    )
    async with sourcing.worker():
        events = [NewEvent(type="n", data=1), NewEvent(type="n", data=7, schema_version=2)]
        await pipeline.service.store_events("acme", "1", events)

        async def built() -> bool:
            return await state(pipeline, "1") == (107, 2)

        await until(built)
    rebuilt = await pipeline.service.rebuild_projection("total", "acme", "1")
    assert rebuilt.state["sum"] == 107


async def test_tenant_walls_at_the_doors_of_the_service(sourcing: EventSourcing) -> None:
    pipeline = orders(sourcing)
    async with sourcing.worker():
        service = pipeline.service
        await service.store_events("acme", "1", [NewEvent(type="n", data=5)])

        async def built() -> bool:
            return await state(pipeline, "1") == (5, 1)

        await until(built)
        assert await state(pipeline, "1", "other") is None
        assert len(await service.get_events("other", "1")) == 0
        assert (await service.rebuild_projection("total", "other", "1")).version == 0
        assert await service.get_failed_events("other") == []
        with pytest.raises(VersionConflict):
            await service.store_events("other", "1", [NewEvent(type="n", data=1)], expected_version=1)
        with pytest.raises(CheckpointError) as caught:
            await service.skip_failed("total", "other", "1")
        assert "other" not in str(caught.value)


# ------------------------------------------------------------------------- the builder


def builder(sourcing: EventSourcing | None = None) -> Any:
    made = sourcing or EventSourcing("memory://")
    return made.register_pipeline().with_name("orders").with_aggregate_type("order")


def test_steps_out_of_turn_say_what_comes_first() -> None:
    sourcing: Any = EventSourcing("memory://")
    with pytest.raises(ConfigurationError, match=r"no name yet: .with_name\(…\) comes first"):
        sourcing.register_pipeline().build()
    with pytest.raises(ConfigurationError, match=r"no aggregate type yet: .with_aggregate_type\(…\)"):
        sourcing.register_pipeline().with_name("orders").with_projection("total", None, Total)


def test_unknown_names_and_circles_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"'b' in pipeline 'orders' depends on 'x', .* it has: a, b"):
        builder().with_event_handler("a", Recorder()).with_event_handler(
            "b", Recorder(), depends_on=["x"]
        ).build()
    circle = builder()
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        circle.with_event_handler(name, Recorder(), depends_on=[other])
    with pytest.raises(ConfigurationError, match="a → b → c → a"):
        circle.build()


def test_processors_come_after_those_they_depend_on() -> None:
    made = builder()
    made.with_event_handler("last", Recorder(), depends_on=["middle", "first"])
    made.with_event_handler("middle", Recorder(), depends_on=["first"])
    made.with_event_handler("first", Recorder())
    works = made.build().definition.works
    assert list(works) == ["first", "middle", "last"]
    assert [work.awaited for work in works.values()] == [True, True, False]
    assert works["last"].depends_on == ("orders/middle", "orders/first")


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (lambda b: b.with_command_handler(PlaceOrder).with_command_handler(PlaceOrder), "two commands"),
        (
            lambda b: b.with_projection("t", None, Total).with_event_handler("t", Recorder()),
            "two processors",
        ),
        (lambda b: b.with_event_handler("t", Recorder), "instance"),
        (lambda b: b.with_command_handler(PlaceOrder()), "class that extends CommandHandler"),
        (lambda b: b.with_event_handler("a:b", Recorder()), "processor name"),
        (lambda b: b.with_event_handler("a", Recorder(), concurrency=0), "concurrency"),
        (lambda b: b.with_event_handler("a", Recorder(), start="middle"), "start"),
        (lambda b: b.with_projection("a", None, Total, generation=0), "generation"),
        (lambda b: b.build() and b.build(), "two pipelines"),
    ],
)
def test_what_cannot_work_is_refused(step: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        step(builder())


def test_a_type_checker_refuses_an_incomplete_pipeline(tmp_path: Path) -> None:
    """What mypy says about wrong uses, line by line."""
    script = tmp_path / "wrong.py"
    script.write_text(
        "from tests.runtime.test_pipelines import Place, PlaceOrder\n"
        "from toril.runtime import EventSourcing\n"
        "start = EventSourcing('memory://').register_pipeline()\n"
        "start.build()\n"
        "start.with_name('a').build()\n"
        "start.with_name('a').with_projection\n"
        "pipeline = start.with_name('a').with_aggregate_type('a').with_command_handler(PlaceOrder).build()\n"
        "async def use() -> None:\n"
        "    await pipeline.command(PlaceOrder).send(Place('1', 2), tenant='acme')\n"
        "    await pipeline.command(PlaceOrder).send(7, tenant='acme')\n"
        "    await pipeline.command(PlaceOrder).send(Place('1', 2))\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(script)]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout
    lines = {
        int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line and "wrong.py" in line
    }
    assert lines == {4, 5, 6, 10, 11}, said


async def test_a_server_that_is_down_is_an_error() -> None:
    down = EventSourcing("redis://127.0.0.1:1")
    orders(down)
    with pytest.raises(Exception, match="127.0.0.1:1"):
        await asyncio.wait_for(down.open(), 60)
    with pytest.raises(ConfigurationError, match="not open yet"):
        _ = down.pipelines["orders"].service


def test_the_aggregate_of_decisions_is_in_the_same_partition() -> None:
    from toril.log.layout import Epoch
    from toril.runtime import Decision

    one = Aggregate("acme", "order", "17")
    assert Epoch(1, 64).of(one) == Epoch(1, 64).of(Decision.home(one))


@pytest.mark.parametrize("kind", ["valkey-standalone", "valkey-cluster"])
async def test_tenant_walls_erasing_a_tenant_takes_its_parked_events_along(
    kind: str, servers: Servers
) -> None:
    async def act(event: AnyEvent, _: HandlerContext) -> None:
        if event.data == "broken":
            raise RuntimeError("broken")

    sourcing = EventSourcing(emptied(servers.get(kind)).url, partitions=4)
    pipeline = orders(sourcing, Recorder(act))
    async with sourcing.worker(upkeep=False):
        for tenant in ("acme", "other"):
            events = [NewEvent(type="n", data=value) for value in ("broken", 1, 2)]
            await pipeline.service.store_events(tenant, "1", events)

        async def both() -> bool:
            failed = [len(await pipeline.service.get_failed_events(one)) for one in ("acme", "other")]
            return failed == [2, 2]

        await until(both)
    assert sourcing.log is not None
    await sourcing.log.erase_tenant("acme")
    assert sourcing.redis is not None
    left = [key async for key in sourcing.redis.scan("*acme*")]
    assert left == []
    assert await pipeline.service.get_failed_events("acme") == []
    assert len(await pipeline.service.get_failed_events("other")) == 2
    await sourcing.close()


class Deposit(msgspec.Struct):
    account: str
    amount: int
    ref: str


class Account(DeclaredProjection):
    total = Sum("data.amount")


class DepositCommand(CommandHandler[Deposit]):
    decides_on = Account

    @classmethod
    def get_aggregate_id(cls, payload: Deposit) -> str:
        return payload.account

    @classmethod
    def make_idempotency_key(cls, tenant: str, payload: Deposit) -> str:
        return f"{tenant} {payload.ref}"

    async def handle(self, command: Command[Deposit]) -> list[NewEvent[Any]]:
        return [
            NewEvent(type="deposited", data={"amount": command.data.amount, "before": command.state.total})
        ]


async def test_a_command_decides_on_what_its_processor_has_built(
    sourcing: EventSourcing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the events since, and no others; and two commands with one key are one."""
    accounts = (
        sourcing.register_pipeline()
        .with_name("accounts")
        .with_aggregate_type("account")
        .with_command_handler(DepositCommand)
        .with_projection("account", None, Account)
        .build()
    )
    deposit = accounts.command(DepositCommand)
    async with sourcing:
        for number in range(20):
            await deposit.execute(Deposit("1", 1, str(number)), tenant="acme")
        async with sourcing.worker():

            async def built() -> bool:
                found = await accounts.service.get_projection("account", "acme", "1")
                return found is not None and found.version == 20

            await until(built)
        await deposit.execute(Deposit("1", 1, "later"), tenant="acme")
        asked: list[int] = []
        store = accounts.service.store
        reading = store.read

        async def read(aggregate: Aggregate, from_version: int = 1, limit: int | None = None) -> Any:
            asked.append(from_version)
            return await reading(aggregate, from_version, limit)

        monkeypatch.setattr(store, "read", read)
        done = await deposit.execute(Deposit("1", 5, "last"), tenant="acme")
        again = await deposit.execute(Deposit("1", 5, "last"), tenant="acme")
        assert done is not None
        assert again is not None
        assert (done.last_version, again.last_version, again.repeated) == (22, 22, True)
        assert min(asked) == 21
        (event,) = await accounts.service.get_events("acme", "1", 22)
        assert event.data == {"amount": 5, "before": 21}


async def test_a_pipeline_for_any_type_gets_all_events_and_its_own_decisions(sourcing: EventSourcing) -> None:
    broken = True

    async def act(event: AnyEvent, _: HandlerContext) -> None:
        if broken and event.data == 13:
            raise HandlerError("no", retryable=False)

    recorder = Recorder(act)
    pipeline = orders(sourcing)
    archive = (
        sourcing.register_pipeline()
        .with_name("archive")
        .with_any_aggregate_type()
        .with_event_handler("history", recorder, retry=QUICK)
        .build()
    )
    async with sourcing, sourcing.worker():
        await pipeline.service.store_events("acme", "1", [NewEvent(type="placed", data=13)])
        await until(lambda: _some(archive.service.get_failed_events("acme")))
        broken = False
        await archive.service.retry_failed("history", "acme", "order:1")
        # The event, and the decision about it, which is an event as well.
        await until(lambda: sorted(recorder.seen) == [("1", 1), ("1", 1)])


async def _some(found: Awaitable[list[Any]]) -> bool:
    return bool(await found)
