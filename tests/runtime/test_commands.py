"""Commands: one contract, in process, on a server and on a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from tests.conftest import MATRIX, Servers, emptied
from tests.runtime.probes import Note, Probe
from toril import Connection, InvalidValue, connect
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
from toril.queue.options import check_job_id
from toril.queue.telemetry import Telemetry
from toril.runtime.commands import CommandDispatcher, CommandOptions, SendFailed
from toril.runtime.job_ids import job_id_of, read_job_id
from toril.stores import LogEventStore, MemoryEventStore

QUICK = CommandOptions(attempts=3, backoff=Backoff("fixed", 20))
PIPELINE, TYPE = "notes", "note"


@pytest.fixture(params=["inline", *MATRIX])
async def place(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[Connection | None]:
    """In process, and every kind of server in turn."""
    if request.param == "inline":
        yield None
        return
    async with connect(emptied(servers.get(request.param)).url) as redis:
        yield redis


@pytest.fixture
def probe() -> Probe:
    return Probe()


@asynccontextmanager
async def at_work(
    place: Connection | None,
    handler: type[CommandHandler[Any]],
    options: CommandOptions = QUICK,
    store: Any = None,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[CommandDispatcher[Any]]:
    """A dispatcher, and a worker for what it sends."""
    dispatcher = CommandDispatcher(
        handler,
        pipeline=PIPELINE,
        aggregate_type=TYPE,
        store=store or MemoryEventStore(),
        redis=place,
        options=options,
        telemetry=telemetry,
    )
    async with dispatcher.worker():
        yield dispatcher


async def until(condition: Callable[[], Any], what: str, timeout: float = 20.0) -> None:
    end = time.monotonic() + timeout
    while True:
        found = condition()
        if await found if isinstance(found, Awaitable) else found:
            return
        assert time.monotonic() < end, f"waited {timeout:g} s in vain for {what}"
        await asyncio.sleep(0.005)


async def quiet(dispatcher: CommandDispatcher[Any]) -> bool:
    """Whether nothing waits or runs."""
    if dispatcher.inline is not None:
        return not dispatcher.inline._lanes
    assert dispatcher.queue is not None
    counts = await dispatcher.queue.counts("waiting", "active", "delayed", "waiting-children")
    return not any(counts.values())


async def until_none_runs(dispatcher: CommandDispatcher[Any]) -> None:
    """Until what ran has ended, and what comes of that is decided."""

    async def none_runs() -> bool:
        if dispatcher.inline is not None:
            return not any(lane.running for lane in dispatcher.inline._lanes.values())
        assert dispatcher.queue is not None
        return not any((await dispatcher.queue.counts("active")).values())

    await until(none_runs, "what runs to end")


async def until_quiet(dispatcher: CommandDispatcher[Any]) -> None:
    await until(lambda: quiet(dispatcher), "all commands to be done")


async def failures(dispatcher: CommandDispatcher[Any]) -> list[str]:
    """Why commands have failed for good."""
    if dispatcher.inline is not None:
        return [str(failed.error) for failed in dispatcher.inline.failed]
    assert dispatcher.queue is not None
    return [job.failed_reason or "" for job in await dispatcher.queue.jobs("failed")]


async def stored(dispatcher: CommandDispatcher[Any], key: str, tenant: str = "acme") -> list[Any]:
    """What is in the event store."""
    stream = await dispatcher._store.read(Aggregate(tenant, TYPE, key))
    return [event.data["n"] for event in stream.events]


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


# ---------------------------------------------------------------------- sent again


async def test_while_one_waits_the_last_payload_counts(place: Connection | None, probe: Probe) -> None:
    gate = probe.hold("busy")
    async with at_work(place, probe.command(at_once=1)) as notes:
        await notes.send(Note("busy"), tenant="acme")
        await until(lambda: probe.runs, "the worker to be busy")
        for n in (1, 2, 3):
            await notes.send(Note("a", n), tenant="acme")
        gate.set()
        await until_quiet(notes)
        assert probe.seen("a") == [3]
        assert await stored(notes, "a") == [3]


async def test_debounce_the_delay_starts_again_with_each_send(place: Connection | None, probe: Probe) -> None:
    async with at_work(place, probe.command(wait=1000)) as notes:
        last = 0.0
        for n in (1, 2, 3):
            last = time.monotonic()
            await notes.send(Note("a", n), tenant="acme")
            await asyncio.sleep(0.1)
        await until_quiet(notes)
        assert probe.seen("a") == [3]
        assert probe.runs[0].began - last > 0.98


async def test_debounce_ends_when_the_first_send_is_long_ago(place: Connection | None, probe: Probe) -> None:
    options = CommandOptions(max_wait=1000)
    async with at_work(place, probe.command(wait=700), options) as notes:
        began = time.monotonic()
        n = 0
        while not probe.runs:
            assert time.monotonic() - began < 20
            n += 1
            await notes.send(Note("a", n), tenant="acme")
            await asyncio.sleep(0.03)
        assert probe.runs[0].began - began > 0.95
        await until_quiet(notes)
        assert probe.seen("a")[-1] == n


async def test_while_one_runs_one_more_follows_with_the_last_payload(
    place: Connection | None, probe: Probe
) -> None:
    gate = probe.hold("a")
    async with at_work(place, probe.command(at_once=5)) as notes:
        for n in range(1, 4):
            await notes.send(Note("a", n), tenant="acme")
            await until(lambda: probe.runs, "the first to run")
        await notes.send(Note("b"), tenant="acme")
        await until(lambda: probe.seen("b"), "what came later to run")
        await notes.send(Note("a", 4), tenant="acme")
        assert probe.seen("a") == [1], "the next one waits until it has finished"
        gate.set()
        await until_quiet(notes)
        assert probe.seen("a") == [1, 4]

        def is_last(n: int) -> bool:
            return probe.seen("a")[-1] == n

        for n in range(5, 30):  # and so on: the places of an id are used in turn
            gate.clear()
            await notes.send(Note("a", n), tenant="acme")
            await until(partial(is_last, n), "it to run")
            await notes.send(Note("a", 100 + n), tenant="acme")
            gate.set()
            await until(partial(is_last, 100 + n), "what follows to run")
        await until_quiet(notes)
        assert probe.seen("a")[-1] == 129
        assert probe.overlapping() == []
        assert await stored(notes, "a") == probe.seen("a")


async def test_a_follower_is_delayed_too(place: Connection | None, probe: Probe) -> None:
    gate = probe.hold("a")
    async with at_work(place, probe.command(wait=500)) as notes:
        await notes.send(Note("a", 1), tenant="acme")
        await until(lambda: probe.runs, "it to run")
        await notes.send(Note("a", 2), tenant="acme")
        gate.set()
        await until_none_runs(notes)
        await notes.send(Note("a", 3), tenant="acme")
        await until_quiet(notes)
        assert probe.seen() == [1, 3]
        assert probe.runs[1].began - probe.runs[0].ended > 0.5


@pytest.mark.parametrize("keep", [True, False], ids=["removed", "kept"])
async def test_what_is_completed_runs_again(place: Connection | None, probe: Probe, keep: bool) -> None:
    options = CommandOptions(remove_on_complete=keep)
    async with at_work(place, probe.command(), options) as notes:
        for n in (1, 2, 3):
            sent = await notes.send(Note("a", n), tenant="acme")
            assert sent.job_id == "acme/a"
            await until_quiet(notes)
        assert await stored(notes, "a") == [1, 2, 3]


async def test_what_has_failed_runs_again_with_all_its_attempts(
    place: Connection | None, probe: Probe
) -> None:
    async with at_work(place, probe.command()) as notes:
        probe.problems = [ValueError("no")] * 3
        await notes.send(Note("a", 1), tenant="acme")
        await until_quiet(notes)
        assert await failures(notes) == ["no"]
        probe.problems = [ValueError("not yet")] * 2
        await notes.send(Note("a", 2), tenant="acme")
        await until_quiet(notes)
        assert probe.seen() == [1, 1, 1, 2, 2, 2]
        assert await stored(notes, "a") == [2]


@pytest.mark.parametrize("keep", [True, False], ids=["removed", "kept"])
async def test_a_follower_runs_however_the_first_ends(
    place: Connection | None, probe: Probe, keep: bool
) -> None:
    options = CommandOptions(attempts=1, remove_on_fail=keep, remove_on_complete=keep)
    gate = probe.hold("a")
    async with at_work(place, probe.command(), options) as notes:
        probe.problems = [ValueError("no")]
        await notes.send(Note("a", 1), tenant="acme")
        await until(lambda: probe.runs, "it to run")
        await notes.send(Note("a", 2), tenant="acme")
        gate.set()
        await until_quiet(notes)
        assert await stored(notes, "a") == [2]


async def test_between_attempts_the_last_payload_counts(place: Connection | None, probe: Probe) -> None:
    gate = probe.hold("a")
    options = CommandOptions(attempts=2, backoff=Backoff("fixed", 700))
    async with at_work(place, probe.command(), options) as notes:
        probe.problems = [ValueError("no"), ValueError("no")]
        await notes.send(Note("a", 1), tenant="acme")
        await until(lambda: probe.runs, "it to run")
        await notes.send(Note("a", 2), tenant="acme")  # to follow
        gate.set()
        await until_none_runs(notes)
        await notes.send(Note("a", 3), tenant="acme")  # takes the place of both
        await until_quiet(notes)
        assert probe.seen() == [1, 3, 3], "the next attempt is the last payload's, with all its attempts"
        assert probe.runs[1].began - probe.runs[0].ended > 0.65, "its time stays"
        assert await stored(notes, "a") == [3]
        assert await failures(notes) == []


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


# ---------------------------------------------------------------------- what is refused


def made(handler: Any, **more: Any) -> CommandDispatcher[Any]:
    given_: dict[str, Any] = {"pipeline": PIPELINE, "aggregate_type": TYPE, "store": MemoryEventStore()}
    return CommandDispatcher(handler, **(given_ | more))


async def test_a_dispatcher_that_cannot_work_is_refused(probe: Probe) -> None:
    class Needy(CommandHandler[Note]):
        def __init__(self, what: str) -> None: ...

        @classmethod
        def get_aggregate_id(cls, payload: Note) -> str:
            return payload.key

        def handle(self, command: Command[Note]) -> list[AnyNewEvent]:  # noqa: ARG002
            return []

    with pytest.raises(ConfigurationError, match="Needy must be made without arguments"):
        made(Needy)
    with pytest.raises(ConfigurationError, match="extends CommandHandler"):
        made(Note)
    with pytest.raises(InvalidValue, match="queue name"):
        made(probe.command(), pipeline="a:b")
    with pytest.raises(InvalidValue, match="max_wait 10 .*less than the delay"):
        made(probe.command(wait=100), options=CommandOptions(max_wait=10))
    assert made(probe.command(wait=100)).max_wait == 1000
    wrong: dict[str, Any]
    for wrong in ({"attempts": 0}, {"backoff": 5}, {"backoff": Backoff("own", 1)}, {"max_wait": -1}):
        with pytest.raises(InvalidValue):
            CommandOptions(**wrong)


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("", "not blank"),
        ("  ", "not blank"),
        (17, "must return text"),
        ("a\nb", "printable"),
        ("\ud800", "printable"),
        ("x" * 513, "more than 512 bytes"),
    ],
)
def test_an_id_that_is_refused_says_why(key: Any, rule: str) -> None:
    with pytest.raises(ValidationError, match=rule) as refused:
        job_id_of("acme", key)
    assert refused.value.field == "job id"
    assert refused.value.value == key
    assert "acme" not in str(refused.value), "no error names a tenant"


def test_ids_can_be_read() -> None:
    assert job_id_of("acme", "trace-123") == "acme/trace-123"
    assert job_id_of("acme", "acme:trace-123") == "acme/acme%3Atrace-123"
    assert job_id_of("acme", "17") == "acme/17"
    assert job_id_of("a/b", "c/d~2%") == "a%2Fb/c/d%7E2%25"
    assert read_job_id("acme/trace-123~2") == ("acme", "trace-123")
    with pytest.raises(ValidationError, match="two parts"):
        read_job_id("17")


printable = st.characters(exclude_categories=["C", "Z"], include_characters=" ")
texts = st.text(printable, min_size=1, max_size=30).filter(lambda text: bool(text.strip()))
tenants = texts.map(lambda text: text.replace(":", ";").strip())


@given(tenants, texts, tenants, texts)
def test_an_id_is_valid_and_belongs_to_one_tenant_and_key(
    tenant: str, key: str, other: str, other_key: str
) -> None:
    job_id = job_id_of(tenant, key)
    check_job_id(job_id)
    assert ":" not in job_id
    assert read_job_id(job_id) == (tenant, key)
    assert read_job_id(f"{job_id}~2") == (tenant, key)
    assert (job_id == job_id_of(other, other_key)) == ((tenant, key) == (other, other_key))


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


async def test_a_follower_whose_first_is_gone_is_let_go(redis: Connection, probe: Probe) -> None:
    """Somebody has deleted keys by hand."""
    gate = probe.hold("a")
    async with at_work(redis, probe.command()) as notes:
        await notes.send(Note("a", 1), tenant="acme")
        await until(lambda: probe.runs, "it to run")
        await notes.send(Note("a", 2), tenant="acme")
        queue = notes.queue
        assert queue is not None
        await redis.command("DEL", queue.keys.job("acme/a"))
        await redis.command("LREM", queue.keys.active, 0, "acme/a")
        gate.set()
        await until(lambda: probe.runs[0].ended, "it to end")
        await notes.send(Note("b"), tenant="acme")
        await until(lambda: probe.seen("b"), "what came later to run")
        assert await queue.state("acme/a~2") == "waiting-children"
        await notes.send(Note("a", 3), tenant="acme")
        await until_quiet(notes)
        assert probe.seen("a") == [1, 3]
