"""Commands and handlers: their declarations, how they run, and the walls around them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.events.parts import FOREIGN, TRACE, event
from toril import InvalidValue
from toril.events import (
    Aggregate,
    AnyEvent,
    AnyNewEvent,
    Appended,
    Category,
    CheckpointError,
    Command,
    CommandHandler,
    ConfigurationError,
    DeclaredProjection,
    EventHandler,
    EventSourcingError,
    EventStore,
    HandlerContext,
    HandlerError,
    NewEvent,
    OrderingError,
    ProjectionError,
    PublishError,
    SecurityError,
    StoreError,
    Sum,
    ValidationError,
    VersionConflict,
    category_of,
    execute,
    execute_many,
    handle_event,
    is_retryable,
    retry_after,
)
from toril.handler import UnfitPayload
from toril.stores import MemoryEventPublisher, MemoryEventStore


class Move(msgspec.Struct):
    account: str
    amount: int
    tenant_id: str | None = None


class Balance(DeclaredProjection):
    total = Sum("data.amount")


class Overdrawn(Exception):
    """There is not so much in the account."""


class MoveMoneyCommand(CommandHandler[Move]):
    decides_on = Balance
    runs = 0

    @classmethod
    def get_aggregate_id(cls, payload: Move) -> str:
        return payload.account

    async def handle(self, command: Command[Move]) -> list[AnyNewEvent]:
        type(self).runs += 1
        await asyncio.sleep(0)
        if command.state.total + command.data.amount < 0:
            raise Overdrawn
        if not command.data.amount:
            return []
        return [NewEvent(type="money.moved", data={"amount": command.data.amount})]


def move(amount: int, **more: Any) -> Command[Move]:
    return MoveMoneyCommand.command("acme", "account", {"account": "7", "amount": amount}, **more)


ACCOUNT = Aggregate("acme", "account", "7")


async def balance(store: EventStore) -> int:
    return sum(one.data["amount"] for one in await store.read(ACCOUNT))


# ---------------------------------------------------------------------- declarations


def test_a_handlers_name_and_schema_follow_from_its_class() -> None:
    assert (MoveMoneyCommand.dispatcher_name, MoveMoneyCommand.schema) == ("move_money", Move)

    def named(name: str, **members: Any) -> str:
        made: Any = type(name, (CommandHandler,), members)
        return str(made.dispatcher_name)

    assert named("RecordSpanCommand") == "record_span"
    assert named("RecordSpanCommandHandler") == "record_span"
    assert named("RecordSpanHandler") == "record_span"
    assert named("RecordSpan") == "record_span"
    assert named("RecordHTTPSpan2Command") == "record_http_span2"
    assert named("RecordSpanCommand", dispatcher_name="other") == "other"
    assert named("Command") == "command"

    class Derived(MoveMoneyCommand):
        pass

    assert (Derived.schema, Derived.dispatcher_name) == (Move, "derived")


def test_what_a_handler_leaves_unsaid() -> None:
    assert MoveMoneyCommand.make_job_id(Move("7", 1)) is None
    assert MoveMoneyCommand.span_attributes(Move("7", 1)) == {}
    assert (MoveMoneyCommand.delay, MoveMoneyCommand.concurrency) == (None, None)
    for good in (0, 5, timedelta(seconds=1)):
        type("Fine", (CommandHandler,), {"delay": good, "concurrency": 3})


@pytest.mark.parametrize(
    "members",
    [
        {"delay": -1},
        {"delay": 1.5},
        {"delay": True},
        {"delay": timedelta(seconds=-1)},
        {"concurrency": 0},
        {"concurrency": True},
        {"dispatcher_name": ""},
        {"dispatcher_name": "a b"},
        {"dispatcher_name": "_x"},
    ],
    ids=str,
)
def test_a_command_handler_that_cannot_work_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Bad"):
        type("Bad", (CommandHandler,), members)


def test_an_event_handler_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="depends_on 'other'"):
        type("Bad", (EventHandler,), {"depends_on": "other"})
    with pytest.raises(ConfigurationError):
        type("Bad", (EventHandler,), {"event_types": ()})
    with pytest.raises(InvalidValue):
        type("Bad", (EventHandler,), {"event_types": ["no type"]})


# ---------------------------------------------------------------------- commands


def test_a_payload_must_fit() -> None:
    command = move(5)
    assert (command.aggregate, command.data, command.tenant) == (ACCOUNT, Move("7", 5), "acme")
    with pytest.raises(UnfitPayload, match="Move"):
        MoveMoneyCommand.command("acme", "account", {"account": "7", "amount": "much"})
    with pytest.raises(InvalidValue):
        MoveMoneyCommand.command("acme", "account", {"account": " ", "amount": 1})


def test_tenant_walls_a_payload_of_another_tenant_is_refused() -> None:
    for make in (
        lambda: MoveMoneyCommand.command(
            "acme", "account", {"account": "7", "amount": 1, "tenant_id": "evil-corp"}
        ),
        lambda: Untyped.command("acme", "account", {"id": "7", "tenant": "evil-corp"}),
        lambda: Untyped.command("acme", "account", {"id": "7", "tenantId": "evil-corp"}),
    ):
        with pytest.raises(SecurityError) as caught:
            make()
        assert "evil" not in str(caught.value)
        assert "acme" not in str(caught.value)
    same = {"account": "7", "amount": 1, "tenant_id": "acme"}
    assert MoveMoneyCommand.command("acme", "account", same).tenant == "acme"


class Untyped(CommandHandler[Any]):
    @classmethod
    def get_aggregate_id(cls, payload: Any) -> str:
        return str(payload["id"])

    def handle(self, command: Command[Any]) -> Sequence[AnyNewEvent]:
        assert threading.current_thread() is not threading.main_thread()
        return [NewEvent(type="thing.done", data=command.data)]


async def test_a_plain_handler_runs_in_a_thread() -> None:
    assert Untyped.schema is None
    store = MemoryEventStore()
    command = Untyped.command("acme", "thing", {"id": "7"}, metadata={"traceparent": "t", "own": 1})
    appended = await execute(Untyped(), store, command)
    assert appended is not None
    assert appended.last_version == 1
    (stored,) = await store.read(command.aggregate)
    assert stored.metadata == {"traceparent": "t", "own": 1}


async def test_a_command_is_decided_on_the_state() -> None:
    store = MemoryEventStore()
    handler = MoveMoneyCommand()
    await execute(handler, store, move(5))
    await execute(handler, store, move(-3))
    assert await execute(handler, store, move(0)) is None
    with pytest.raises(Overdrawn):
        await execute(handler, store, move(-3))
    assert await balance(store) == 2


async def test_commands_for_one_aggregate_do_not_interleave() -> None:
    """Ten want three each of ten: three get it, whatever the order of reads and writes."""
    store = MemoryEventStore()
    handler = MoveMoneyCommand()
    await execute(handler, store, move(10))
    tries = (execute(handler, store, move(-3), attempts=50) for _ in range(10))
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(answer, Appended) for answer in answers) == 3
    assert sum(isinstance(answer, Overdrawn) for answer in answers) == 7
    assert await balance(store) == 1


async def test_retries_after_a_conflict_are_bounded() -> None:
    class Busy(MemoryEventStore):
        async def append(self, aggregate: Aggregate, events: Any, **options: Any) -> Appended:
            await super().append(aggregate, [NewEvent(type="money.moved", data={"amount": 0})])
            return await super().append(aggregate, events, **options)

    MoveMoneyCommand.runs = 0
    with pytest.raises(VersionConflict):
        await execute(MoveMoneyCommand(), Busy(), move(5), attempts=3)
    assert MoveMoneyCommand.runs == 3
    with pytest.raises(ValidationError, match="attempts 0"):
        await execute(MoveMoneyCommand(), Busy(), move(5), attempts=0)


async def test_a_repeated_command_is_not_decided_again() -> None:
    """The answer of its first run, where a second decision would refuse it."""
    store = MemoryEventStore()
    handler = MoveMoneyCommand()
    await execute(handler, store, move(5))
    first = await execute(handler, store, move(-5), idempotency_key="order-9")
    again = await execute(handler, store, move(-5), idempotency_key="order-9")
    assert first is not None
    assert again is not None
    assert (first.repeated, again.repeated) == (False, True)
    assert (first.first_version, first.last_version) == (again.first_version, again.last_version)
    assert await balance(store) == 0


# ---------------------------------------------------------------------- event handlers


class Writer(EventHandler[Any]):
    event_types = frozenset({"span.recorded"})
    depends_on = ("other",)

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def handle(self, event: AnyEvent, context: HandlerContext) -> None:
        self.seen.append(context.idempotency_key(event))


class PlainWriter(Writer):
    def handle(self, event: AnyEvent, context: HandlerContext) -> None:  # type: ignore[override]
        assert threading.current_thread() is not threading.main_thread()
        self.seen.append(context.idempotency_key(event))


@pytest.mark.parametrize("kind", [Writer, PlainWriter])
async def test_a_handler_gets_the_events_it_wants(kind: type[Writer]) -> None:
    handler = kind()
    context = HandlerContext(tenant=TRACE.tenant, pipeline="spans", processor="span-storage")
    assert await handle_event(handler, event(1), context)
    assert not await handle_event(handler, event(2, type="other.thing"), context)
    assert handler.seen == ["e0001:span-storage"]
    assert TRACE.tenant not in repr(context)


async def test_tenant_walls_a_handler_gets_no_event_of_another_tenant() -> None:
    handler = Writer()
    context = HandlerContext(tenant=TRACE.tenant, pipeline="spans", processor="span-storage")
    for kind in ("span.recorded", "unwanted.type"):
        with pytest.raises(SecurityError) as caught:
            await handle_event(handler, event(1, aggregate=FOREIGN, type=kind), context)
        assert "tenant-" not in str(caught.value)
    assert not handler.seen


async def test_tenant_walls_nothing_is_published_with_an_event_of_another_tenant() -> None:
    publisher = MemoryEventPublisher()
    with pytest.raises(SecurityError, match="event 1") as caught:
        await publisher.publish(TRACE.tenant, [event(1), event(2, aggregate=FOREIGN)])
    assert caught.value.index == 1
    assert "tenant-" not in str(caught.value)
    assert not publisher.published
    await publisher.publish(TRACE.tenant, [event(1), event(2)])
    assert [one.version for one in publisher.published] == [1, 2]
    with pytest.raises(InvalidValue):
        await publisher.publish("", [])


def test_an_attempt_is_counted_from_1() -> None:
    with pytest.raises(ValidationError, match="attempt 0"):
        HandlerContext(tenant="acme", pipeline="p", processor="x", attempt=0)


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("error", "category", "retryable"),
    [
        (SecurityError("it"), "critical", False),
        (ValidationError("field", 1, "rule"), "critical", False),
        (ConfigurationError("x"), "critical", False),
        (CheckpointError("x"), "critical", False),
        (OrderingError(1, 2), "critical", False),
        (VersionConflict(1, 2), "recoverable", True),
        (StoreError("x"), "recoverable", True),
        (StoreError("x", category=Category.CRITICAL, retryable=False), "critical", False),
        (HandlerError("x"), "non-critical", True),
        (HandlerError("x", retryable=False), "non-critical", False),
        (ProjectionError("x"), "non-critical", True),
        (PublishError("x"), "non-critical", True),
        (InvalidValue("field", 1, "rule"), "critical", False),
        (UnfitPayload("x"), "critical", False),
        (OSError("x"), "recoverable", True),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Exception) else None,
)
def test_every_error_says_what_follows_from_it(error: Exception, category: str, retryable: bool) -> None:
    assert category_of(error) == category
    assert is_retryable(error) is retryable
    assert retry_after(error) is None


def test_an_error_can_say_how_long_to_wait() -> None:
    assert retry_after(HandlerError("too many requests", retry_after=30)) == 30.0
    assert issubclass(ValidationError, EventSourcingError)
    assert issubclass(ValidationError, InvalidValue)


class Note(msgspec.Struct, frozen=True):
    page: str
    text: str


class WriteNoteCommand(CommandHandler[Note]):
    @classmethod
    def get_aggregate_id(cls, payload: Note) -> str:
        return payload.page

    @classmethod
    def prepare(cls, tenant: str, payload: Note) -> Note:
        if "unspeakable" in payload.text:
            raise ValueError("it cannot be prepared")
        return msgspec.structs.replace(payload, text=payload.text.replace("secret", f"[{len(tenant)}]"))

    async def handle(self, command: Command[Note]) -> list[NewEvent[Any]]:
        return [NewEvent(type="noted", data=command.data.text)] if command.data.text else []


async def test_a_payload_is_prepared_before_it_is_decided_on() -> None:
    store = MemoryEventStore()
    command = WriteNoteCommand.command("acme", "page", {"page": "1", "text": "a secret"})
    assert command.data.text == "a [4]"
    await execute(WriteNoteCommand(), store, command)
    assert [event.data for event in await store.read(Aggregate("acme", "page", "1"))] == ["a [4]"]
    with pytest.raises(ValueError, match="prepared"):
        WriteNoteCommand.command("acme", "page", {"page": "1", "text": "unspeakable"})


async def test_many_commands_are_each_by_itself() -> None:
    store = MemoryEventStore()
    texts = [("1", "one", "k1"), ("2", "", None), ("1", "again", "k1"), ("1", "two", None)]
    commands = [
        (WriteNoteCommand.command("acme", "page", Note(page, text)), key) for page, text, key in texts
    ]
    first, nothing, repeated, last = await execute_many(WriteNoteCommand(), store, commands)
    assert isinstance(first, Appended)
    assert nothing is None
    assert repeated == replace(first, repeated=True)
    assert isinstance(last, Appended)
    assert last.last_version == 2
    assert [event.data for event in await store.read(Aggregate("acme", "page", "1"))] == ["one", "two"]
    with pytest.raises(ConfigurationError, match="MoveMoneyCommand decides on a state"):
        await execute_many(MoveMoneyCommand(), store, [])
