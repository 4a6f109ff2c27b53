"""Commands: one contract, in process, on a server and on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pydantic
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from tests.runtime.commanding import PIPELINE, TYPE, at_work, failures, quiet, stored, until, until_quiet
from tests.runtime.probes import Note, Probe
from toril import Connection, InvalidValue
from toril.connection import ConnectionFailed
from toril.errors import TorilError
from toril.events import (
    Aggregate,
    AnyNewEvent,
    Appended,
    Command,
    CommandHandler,
    ConfigurationError,
    Count,
    DeclaredProjection,
    HandlerError,
    NewEvent,
    SecurityError,
    ValidationError,
)
from toril.handler import UnfitPayload
from toril.log import Log
from toril.queue import Backoff, Queue, QueueError, UnrecoverableError
from toril.queue.telemetry import Telemetry
from toril.runtime.commands import CommandDispatcher, CommandOptions, SendFailed
from toril.stores import LogEventStore, MemoryEventStore

# ---------------------------------------------------------------------- the plain way


async def test_a_command_is_executed_here_and_now(place: Connection | None, probe: Probe) -> None:
    async with at_work(place, probe.command()) as notes:
        done = await notes.execute(Note("a", 1), tenant="acme", metadata={"correlation_id": "c"})
        assert done is not None
        assert (done.first_version, done.last_version) == (1, 1)
        again = await notes.execute({"key": "a", "n": 2}, tenant="acme", idempotency_key="k")
        same = await notes.execute({"key": "a", "n": 3}, tenant="acme", idempotency_key="k")
        assert again is not None
        assert same is not None
        assert (same.last_version, same.repeated) == (2, True)
        stream = await notes._store.read(Aggregate("acme", TYPE, "a"))
        assert stream.events[0].metadata == {"correlation_id": "c"}
        assert await stored(notes, "a") == [1, 2]


async def test_sent_commands_are_executed_by_a_worker(place: Connection | None, probe: Probe) -> None:
    async with at_work(place, probe.command(keyed=False)) as notes:
        assert notes.queue_name == "{notes/command/record_note}"
        first = await notes.send(Note("a", 1), tenant="acme", metadata={"causation_id": "x"})
        second = await notes.send({"key": "a", "n": 2}, tenant="acme")
        assert first.job_id != second.job_id, "without make_job_id, each is a job of its own"
        await until_quiet(notes)
        assert sorted(await stored(notes, "a")) == [1, 2]
        events = (await notes._store.read(Aggregate("acme", TYPE, "a"))).events
        assert {"causation_id": "x"} in [event.metadata for event in events]
        assert {run.tenant for run in probe.runs} == {"acme"}


async def test_many_are_sent_at_once_and_in_order(place: Connection | None, probe: Probe) -> None:
    gate = probe.hold("a")
    async with at_work(place, probe.command(at_once=1)) as notes:
        await notes.send(Note("a", 0), tenant="acme")
        await until(lambda: probe.runs, "the first to run")
        sent = await notes.send_many(
            [Note(key, n) for n in range(1, 151) for key in ("b", "c")], tenant="acme"
        )
        assert len(sent) == 300
        assert len({each.send_id for each in sent}) == 300
        assert len({each.job_id for each in sent}) == 2
        gate.set()
        await until_quiet(notes)
        assert probe.seen("b") == probe.seen("c") == [150]
        assert await notes.send_many([], tenant="acme") == []


async def test_nothing_is_sent_that_does_not_fit(place: Connection | None, probe: Probe) -> None:
    async with at_work(place, probe.command()) as notes:
        bad: Any = {"key": "a", "n": "one"}
        with pytest.raises(UnfitPayload, match="n"):
            await notes.send(bad, tenant="acme")
        with pytest.raises(UnfitPayload):
            await notes.send_many([Note("a", 1), bad], tenant="acme")
        with pytest.raises(InvalidValue, match="payloads"):
            await notes.send_many(bad, tenant="acme")
        with pytest.raises(InvalidValue, match="tenant"):
            await notes.send(Note("a", 1), tenant="a:b")
        with pytest.raises(InvalidValue, match="aggregate id"):
            await notes.send(Note(" ", 1), tenant="acme")
        with pytest.raises(ValidationError, match="idempotency key"):
            await notes.send(Note("a", 1), tenant="acme", idempotency_key="")
        with pytest.raises(InvalidValue, match="payload"):
            await notes.send(Note("a", 1), tenant="acme", metadata={"x": object()})
        assert await quiet(notes)
    assert not probe.runs


async def test_tenant_walls_between_equal_ids(place: Connection | None, probe: Probe) -> None:
    gate = probe.hold("a")
    async with at_work(place, probe.command()) as notes:
        for tenant in ("acme", "other", "ac/me", "acme/a"):
            await notes.send(Note("a", 1), tenant=tenant)
        gate.set()
        await until_quiet(notes)
        assert sorted(run.tenant for run in probe.runs) == ["ac/me", "acme", "acme/a", "other"]
        assert await stored(notes, "a", "other") == [1]


async def test_a_payload_of_another_tenant_is_refused(place: Connection | None) -> None:
    class Touch(CommandHandler[dict[str, Any]]):
        @classmethod
        def get_aggregate_id(cls, payload: dict[str, Any]) -> str:
            return str(payload["id"])

        def handle(self, command: Command[dict[str, Any]]) -> list[AnyNewEvent]:  # noqa: ARG002
            return []

    async with at_work(place, Touch) as touch:
        with pytest.raises(SecurityError):
            await touch.send({"id": "1", "tenant": "other"}, tenant="acme")
        await touch.send({"id": "1", "tenant": "acme"}, tenant="acme")
        await until_quiet(touch)
        assert await failures(touch) == []


async def test_a_pydantic_payload(place: Connection | None) -> None:
    class Order(pydantic.BaseModel):
        id: str
        price: float

    seen: list[Any] = []

    class PlaceOrder(CommandHandler[Order]):
        @classmethod
        def get_aggregate_id(cls, payload: Order) -> str:
            return payload.id

        async def handle(self, command: Command[Order]) -> list[AnyNewEvent]:
            seen.append(command.data)
            return []

    async with at_work(place, PlaceOrder) as place_order:
        await place_order.send(Order(id="o", price=1.5), tenant="acme")
        await until_quiet(place_order)
    assert seen == [Order(id="o", price=1.5)]


# ---------------------------------------------------------------------- attempts


class Forgetful(MemoryEventStore):
    """Stores, and then says it could not: as if the reply were lost."""

    def __init__(self) -> None:
        super().__init__()
        self.forgets = 0

    async def append(self, aggregate: Aggregate, events: Sequence[Any], **how: Any) -> Appended:
        done = await super().append(aggregate, events, **how)
        if self.forgets:
            self.forgets -= 1
            raise ConnectionError("no reply")
        return done


async def test_a_retried_command_stores_its_events_once(place: Connection | None, probe: Probe) -> None:
    store = Forgetful()
    async with at_work(place, probe.command(), store=store) as notes:
        store.forgets = 2
        await notes.send(Note("a", 1), tenant="acme")
        await until_quiet(notes)
        assert await stored(notes, "a") == [1]
        await notes.send(Note("a", 1), tenant="acme")
        await until_quiet(notes)
        assert await stored(notes, "a") == [1, 1], "another send, though of the same payload"
        await notes.send(Note("a", 2), tenant="acme", idempotency_key="mine")
        await until_quiet(notes)
        await notes.send(Note("a", 3), tenant="acme", idempotency_key="mine")
        await until_quiet(notes)
        assert await stored(notes, "a") == [1, 1, 2], "its sender says it is the same"
        assert await failures(notes) == []


@pytest.mark.parametrize(
    "problem",
    [
        ValidationError("n", 1, "it must be even"),
        SecurityError("the event"),
        ConfigurationError("badly made"),
        InvalidValue("n", 1, "it must be even"),
        UnrecoverableError("hopeless"),
    ],
    ids=lambda problem: type(problem).__name__,
)
async def test_what_trying_again_cannot_help_fails_at_once(
    place: Connection | None, probe: Probe, problem: TorilError
) -> None:
    async with at_work(place, probe.command()) as notes:
        probe.problems = [problem]
        await notes.send(Note("a", 1), tenant="acme")
        await until_quiet(notes)
        assert probe.seen() == [1]
        assert await failures(notes) == [str(problem)]


async def test_an_error_says_how_long_to_wait(place: Connection | None, probe: Probe) -> None:
    async with at_work(place, probe.command()) as notes:
        probe.problems = [HandlerError("busy", retry_after=0.3), HandlerError("busy", retry_after=0.001)]
        await notes.send(Note("a", 1), tenant="acme")
        await until_quiet(notes)
        first, second, third = probe.runs
        assert second.began - first.ended > 0.29
        assert third.began - second.ended > 0.015, "the backoff, which is longer"
        probe.problems = [HandlerError("busy", retry_after=0.001)] * 3
        await notes.send(Note("a", 2), tenant="acme")
        await until_quiet(notes)
        assert probe.seen() == [1, 1, 1, 2, 2, 2], "such an attempt counts"
        assert await failures(notes) == ["busy"]


# ---------------------------------------------------------------------- one aggregate


class Numbers(DeclaredProjection):
    """How many events there are."""

    events = Count()


class Number(CommandHandler[dict[str, Any]]):
    """Stores the number that comes next: two that read the same state would store the same."""

    decides_on = Numbers
    concurrency = 20

    @classmethod
    def get_aggregate_id(cls, payload: dict[str, Any]) -> str:
        return str(payload["id"])

    async def handle(self, command: Command[dict[str, Any]]) -> list[AnyNewEvent]:
        before = command.state.events
        await asyncio.sleep(0.001)
        return [NewEvent(type="numbered", data={"n": before + 1})]


async def test_commands_for_one_aggregate_never_interleave(place: Connection | None) -> None:
    store: Any = MemoryEventStore() if place is None else LogEventStore(Log(place, "commands"))
    options = CommandOptions(attempts=50, backoff=Backoff("fixed", 20, jitter=1))
    async with at_work(place, Number, options, store) as number:
        # Of four at once, the last one wins in its fourth round; five are allowed.
        await asyncio.gather(*(number.execute({"id": "x"}, tenant="acme") for _ in range(4)))
        await number.send_many([{"id": "x"}] * 60, tenant="acme")
        await until_quiet(number)
        assert await failures(number) == []
        assert await stored(number, "x") == list(range(1, 65))


# ---------------------------------------------------------------------- traces


async def test_a_run_is_a_trace_of_its_own_linked_to_the_send(place: Connection | None, probe: Probe) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = Telemetry(provider.get_tracer("test"))
    async with at_work(place, probe.command(), telemetry=telemetry) as notes:
        sent = await notes.send(Note("a", 1), tenant="acme")
        await until(lambda: len(spans.get_finished_spans()) == 2, "two spans")
    by_kind = {span.kind: span for span in spans.get_finished_spans()}
    producer, consumer = by_kind[SpanKind.PRODUCER], by_kind[SpanKind.CONSUMER]
    for span in (producer, consumer):
        assert span.attributes is not None
        assert span.attributes["queue.name"] == "{notes/command/record_note}"
        assert span.attributes["queue.job_name"] == "record_note"
        assert span.attributes["queue.job_id"] == sent.job_id == "acme/a"
        assert span.attributes["payload.key"] == "a"
    assert consumer.context is not None
    assert producer.context is not None
    assert consumer.context.trace_id != producer.context.trace_id
    assert [link.context.span_id for link in consumer.links] == [producer.context.span_id]


# ---------------------------------------------------------------------- in process only


async def test_closing_executes_what_waits(probe: Probe) -> None:
    options = CommandOptions(attempts=3, backoff=Backoff("fixed", 60_000))
    notes = CommandDispatcher(
        probe.command(wait=60_000),
        pipeline=PIPELINE,
        aggregate_type=TYPE,
        store=MemoryEventStore(),
        options=options,
    )
    probe.problems = [ValueError("not yet"), ValueError("not yet")]
    for key in "abc":
        await notes.send(Note(key, 1), tenant="acme")
        await notes.send(Note(key, 2), tenant="acme")
    assert notes.inline is not None
    assert notes.inline.waiting == 3
    async with asyncio.timeout(5), notes.worker():
        pass  # leaving it drains the queue
    assert len(probe.runs) == 5
    assert [await stored(notes, key) for key in "abc"] == [[2], [2], [2]]
    assert notes.inline.completed == 3
    await notes.send(Note("a", 3), tenant="acme")
    assert notes.inline.waiting == 1
    await asyncio.wait_for(notes.close(), 5)
    assert await stored(notes, "a") == [2, 3]
    with pytest.raises(QueueError, match="closed"):
        await notes.send(Note("a", 3), tenant="acme")


# ---------------------------------------------------------------------- on a server only


async def test_a_foreign_job_is_executed_once_for_each_time_it_was_added(
    redis: Connection, probe: Probe
) -> None:
    """As a sender in Node adds it: without a send's id."""
    async with at_work(redis, probe.command()) as notes:
        queue = Queue(notes.queue_name, redis)
        job = await queue.add("record_note", {"tenant": "acme", "payload": {"key": "a", "n": 1}})
        await until_quiet(notes)
        found = await queue.job(job.id)
        assert found is not None
        assert found.return_value == {"version": 1, "repeated": False}
        await found.retry("completed")
        await until_quiet(notes)
        found = await queue.job(job.id)
        assert found is not None
        assert found.return_value == {"version": 1, "repeated": True}, "it was executed already"
        await queue.add("record_note", {"tenant": "acme", "payload": {"key": "a", "n": 1}})
        await until_quiet(notes)
        assert await stored(notes, "a") == [1, 1]
        await queue.add("record_note", {"payload": {"key": "a"}})
        await queue.add("record_note", {"tenant": "a:b", "payload": {"key": "a"}})
        await queue.add("record_note", {"tenant": "acme", "payload": {"key": 1}})
        await until_quiet(notes)
        reasons = "\n".join(await failures(notes))
        assert "it is no command" in reasons
        assert "tenant" in reasons
        assert "does not fit Note" in reasons


async def test_a_server_that_is_gone_is_an_error(redis: Connection, probe: Probe) -> None:
    async with at_work(redis, probe.command()) as notes:
        await redis.close()
        with pytest.raises(ConnectionFailed):
            await notes.send(Note("a", 1), tenant="acme")
    assert not probe.runs


async def test_when_a_later_part_fails_it_is_known_what_was_sent(
    redis: Connection, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(redis, probe.command()) as notes:
        calls = 0
        run = redis.run

        async def breaks(*args: Any, **how: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise ConnectionFailed("gone")
            return await run(*args, **how)

        monkeypatch.setattr(redis, "run", breaks)
        with pytest.raises(SendFailed, match="400 of 500") as part:
            await notes.send_many([Note(f"k{n}", n) for n in range(500)], tenant="acme")
        assert [sent.job_id for sent in part.value.sent] == [f"acme/k{n}" for n in range(400)]
