"""Spans in, trace summaries out: the pipelines, in memory, on one server and on a cluster."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import toril.pipelines.spans.ingestion
from tests.conftest import MATRIX, Servers, emptied
from tests.waiting import until
from toril import connect
from toril.aggregate import Aggregate
from toril.events import AnyEvent, EventHandler, HandlerContext, NewEvent, StoreError
from toril.log import Log, MemoryColdStore, Retention
from toril.pipelines.spans.aggregation import DEBOUNCE, TRACE_SETTLED
from toril.pipelines.spans.ingestion import SETTLING, Ingestion, Recorded, safest
from toril.pipelines.spans.memory import MemorySpanTable, MemoryTraceTable
from toril.pipelines.spans.redaction import RedactRules
from toril.pipelines.spans.span import Span, SpanEvent
from toril.pipelines.spans.storage import TraceStorage
from toril.pipelines.spans.summary import recompute
from toril.pipelines.spans.tables import TraceRow
from toril.queue import Backoff
from toril.runtime import PATIENT, EngineOptions, EventSourcing, Retry
from toril.testing import standalone

OPTIONS = EngineOptions(lease=10.0, grace=5.0)
SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"


class Place:
    """An ingestion with all that belongs to it."""

    def __init__(self, url: str, **settings: Any) -> None:
        names = ("cold", "quiet", "idempotency_window")
        of_sourcing = {name: settings.pop(name) for name in names if name in settings}
        self.sourcing = EventSourcing(
            url, options=OPTIONS, partitions=None if url == "memory://" else 4, **of_sourcing
        )
        self.spans = MemorySpanTable()
        self.traces = MemoryTraceTable()
        self.ingestion = Ingestion(
            self.sourcing,
            spans=self.spans,
            traces=self.traces,
            **{"debounce": timedelta(milliseconds=20), **settings},
        )

    async def settled(self, trace_id: str, spans: int, tenant: str = "acme") -> dict[str, Any]:
        """The stored summary of a trace, once it is of so many spans."""

        async def there() -> bool:
            row = await self.traces.get(tenant, trace_id)
            return row is not None and row.summary["spans"] == spans

        await until(there)
        row = await self.traces.get(tenant, trace_id)
        assert row is not None
        return row.summary


@pytest.fixture(params=["memory", *MATRIX])
def url(request: pytest.FixtureRequest, servers: Servers) -> str:
    return "memory://" if request.param == "memory" else emptied(servers.get(request.param)).url


@asynccontextmanager
async def running(url: str, **settings: Any) -> AsyncIterator[Place]:
    place = Place(url, **settings)
    async with place.sourcing, place.sourcing.worker():
        yield place


def test_a_span_is_known_by_its_tenant_trace_and_id(rng: random.Random) -> None:
    (span,) = trace_of(rng, 1)
    again = msgspec.structs.replace(span, name="another", attributes={}, status=2)
    assert again.record_id("acme") == span.record_id("acme")
    others = [
        span.record_id("globex"),
        msgspec.structs.replace(span, trace_id=rng.randbytes(16).hex()).record_id("acme"),
        msgspec.structs.replace(span, span_id=rng.randbytes(8).hex()).record_id("acme"),
    ]
    assert len({span.record_id("acme"), *others}) == 4
    fixed = msgspec.structs.replace(span, trace_id="1" * 32, span_id="2" * 16)
    assert fixed.record_id("acme") == "span_469489362e06c727365e1e9024050502", "so others knew it"


def trace_of(chance: random.Random, spans: int, **more: Any) -> list[Span]:
    """A trace: a root, and the others below it."""
    trace_id, ids = chance.randbytes(16).hex(), [chance.randbytes(8).hex() for _ in range(spans)]
    start = 1_700_000_000_000_000_000 + chance.randrange(10**9)
    return [
        Span(
            trace_id=trace_id,
            span_id=ident,
            parent_span_id=None if place == 0 else ids[0],
            name=f"step {place}",
            kind=1,
            start=start + place,
            end=start + 1000 * place + 7,
            status=chance.randrange(3),
            attributes={
                "gen_ai.request.model": "gpt-4o",
                "gen_ai.usage.input_tokens": chance.randrange(1000),
                "gen_ai.usage.output_tokens": 0,
                "gen_ai.operation.name": "chat",
            },
            **more,
        )
        for place, ident in enumerate(ids)
    ]


async def test_spans_become_rows_and_a_summary_that_is_what_they_make(url: str, rng: random.Random) -> None:
    async with running(url) as place:
        spans = trace_of(rng, 30)
        late = spans.pop()
        rng.shuffle(spans)
        assert await place.ingestion.record("acme", spans) == Recorded(29)
        await place.settled(late.trace_id, 29)
        assert await place.ingestion.record("acme", [late]) == Recorded(1)
        summary = await place.settled(late.trace_id, 30)
        rows = await place.spans.of_trace("acme", late.trace_id)
        assert {row.span.span_id for row in rows} == {span.span_id for span in [*spans, late]}
        assert summary == recompute(rows).as_dict()
        assert summary["models"] == ["gpt-4o"]
        assert summary["output_tokens"] == 0
        assert await place.traces.get("globex", late.trace_id) is None
        assert await place.spans.count("globex") == 0


async def test_a_span_that_is_sent_again_is_recorded_once(url: str, rng: random.Random) -> None:
    async with running(url) as place:
        spans = trace_of(rng, 5)
        await place.ingestion.record("acme", spans)
        changed = msgspec.structs.replace(spans[2], name="another name")
        assert await place.ingestion.record("acme", [*spans[:2], changed]) == Recorded(3, 3)
        # Another tenant's is another span.
        assert await place.ingestion.record("globex", [spans[0]]) == Recorded(1)
        await place.settled(spans[0].trace_id, 5)
        await place.settled(spans[0].trace_id, 1, "globex")
        names = [row.span.name for row in await place.spans.of_trace("acme", spans[0].trace_id)]
        assert sorted(names) == [f"step {number}" for number in range(5)]


async def test_a_span_that_cannot_be_is_refused_and_no_other(url: str, rng: random.Random) -> None:
    async with running(url) as place:
        good, *bad = trace_of(rng, 5)
        wrong = [
            msgspec.structs.replace(bad[0], trace_id="0" * 32),
            msgspec.structs.replace(bad[1], span_id="xyz"),
            msgspec.structs.replace(bad[2], start=-1),
            msgspec.structs.replace(bad[3], status=9),
        ]
        done = await place.ingestion.record("acme", [*wrong, good])
        assert (done.accepted, len(done.refused)) == (1, 4)
        for text, field in zip(done.refused, ("trace_id", "span_id", "start", "status"), strict=True):
            assert field in text
            assert "acme" not in text
        await place.settled(good.trace_id, 1)
        assert await place.spans.count("acme") == 1


async def test_nothing_is_stored_that_is_to_be_redacted(rng: random.Random) -> None:
    """Neither by the collector nor through the queue, not even for a moment: the server's own record of all
    writes is looked at."""
    with standalone({"appendonly": "yes", "aof-use-rdb-preamble": "no"}) as server:
        async with running(server.url, redactor=RedactRules()) as place, connect(server.url) as redis:
            spans = trace_of(
                rng, 2, events=[SpanEvent(name="said", time=1, attributes={"text": f"key {SECRET}"})]
            )
            spans = [
                msgspec.structs.replace(
                    span,
                    attributes={**span.attributes, "gen_ai.input.messages": f'[{{"content": "{SECRET}"}}]'},
                )
                for span in spans
            ]
            await place.ingestion.record("acme", spans[:1])
            await place.ingestion.record_span.send(spans[1], tenant="acme")
            await place.settled(spans[0].trace_id, 2)
            await redis.command("CONFIG", "SET", "appendfsync", "always")
            seen = b"".join(file.read_bytes() for file in server.folder.rglob("*.aof"))
            assert b"[redacted:" in seen
            assert SECRET.encode() not in seen
            for row in await place.spans.of_trace("acme", spans[0].trace_id):
                assert SECRET not in str(msgspec.to_builtins(row))


async def test_where_the_redactor_fails_a_span_is_not_stored(url: str, rng: random.Random) -> None:
    def broken(tenant: str, span: Span) -> Span:
        if "3" in span.name:
            raise RuntimeError(f"{tenant} {SECRET}")
        return span

    async with running(url, redactor=broken) as place:
        spans = trace_of(rng, 5)
        done = await place.ingestion.record("acme", spans)
        assert done.accepted == 4
        (text,) = done.refused
        assert "the redactor failed (RuntimeError)" in text
        assert SECRET not in text
        await place.settled(spans[0].trace_id, 4)


async def test_spans_that_are_sent_through_the_queue_are_the_same(url: str, rng: random.Random) -> None:
    async with running(url) as place:
        one, other = trace_of(rng, 5), trace_of(rng, 5)
        await place.ingestion.record("acme", one)
        await place.ingestion.record_span.send_many([*other, one[0]], tenant="acme")
        await place.settled(one[0].trace_id, 5)
        await place.settled(other[0].trace_id, 5)
        assert await place.spans.count("acme") == 10
        for trace_id in (one[0].trace_id, other[0].trace_id):
            summary = await place.settled(trace_id, 5)
            assert summary == recompute(await place.spans.of_trace("acme", trace_id)).as_dict()


class Told(EventHandler[Any]):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    async def handle(self, event: AnyEvent, context: HandlerContext) -> None:
        assert event.type == TRACE_SETTLED
        self.seen.append((context.tenant, event.data["summary"]["spans"]))


async def test_a_summary_is_settled_when_it_has_changed_and_others_are_told(
    url: str, rng: random.Random
) -> None:
    told = Told()
    async with running(url, on_settled={"alerts": told}) as place:
        spans = trace_of(rng, 4)
        await place.ingestion.record("acme", spans)
        await place.settled(spans[0].trace_id, 4)
        # What triggers it again changes nothing about it.
        await place.ingestion.record("acme", spans)
        aggregate = place.ingestion.traces.commands.aggregate_trace
        for _ in range(3):
            done = await aggregate.execute({"trace_id": spans[0].trace_id}, tenant="acme")
            assert done is None

        async def heard() -> bool:
            return ("acme", 4) in told.seen

        await until(heard)
        counts = [count for _, count in told.seen]
        assert counts == sorted(set(counts)), "settled without having changed"
        kept = await place.ingestion.traces.service.get_projection("summary", "acme", spans[0].trace_id)
        assert kept is not None
        assert kept.state.summary["spans"] == 4


async def test_however_many_spans_come_one_command_waits_for_each_trace(
    servers: Servers, rng: random.Random
) -> None:
    url = emptied(servers.get("valkey-standalone")).url
    async with running(url, debounce=timedelta(minutes=1)) as place:
        dispatcher = await place.ingestion.traces.commands.aggregate_trace.dispatcher()
        assert dispatcher.queue is not None

        async def triggered() -> bool:
            return (await place.ingestion.spans.service.standing("trace-aggregation-trigger")).behind == 0

        for trace in (trace_of(rng, 3), trace_of(rng, 3)):
            for span in trace:
                await place.ingestion.record("acme", [span])
                await until(triggered)
        counts = await dispatcher.queue.counts()
        assert {state: count for state, count in counts.items() if count} == {"delayed": 2}
    assert timedelta(milliseconds=100) == DEBOUNCE


async def test_of_summaries_that_wait_together_the_last_is_stored() -> None:
    trace = Aggregate("acme", "trace", "5" * 32)
    events = [
        NewEvent(type=TRACE_SETTLED, data={"version": spans, "summary": {"spans": spans}}).recorded(
            trace, version=version, recorded_at=version
        )
        for version, spans in enumerate((2, 5, 9), 1)
    ]
    table = MemoryTraceTable()
    context = HandlerContext(tenant="acme", pipeline="trace_aggregation", processor="trace-storage")
    await TraceStorage(table).handle_many(events, context)
    assert await table.get("acme", trace.id) == TraceRow(
        tenant="acme", trace_id=trace.id, version=9, summary={"spans": 9}
    )


@pytest.mark.parametrize("late", ["trace_summary", "span-storage"])
async def test_a_trace_is_settled_after_its_summary_is_made_and_its_spans_are_stored(
    servers: Servers, rng: random.Random, late: str
) -> None:
    """However late they are: else it would lack spans, or a webhook would tell of what is not there yet."""
    place = Place(emptied(servers.get("valkey-standalone")).url)
    async with place.sourcing:
        service = place.ingestion.spans.service
        await service.pause(late)
        async with place.sourcing.worker() as worker:
            spans = trace_of(rng, 3)
            await place.ingestion.record("acme", spans)

            async def others_are_done() -> bool:
                names = {"trace_summary", "span-storage"} - {late}
                return all([(await service.standing(name)).behind == 0 for name in names])

            await until(others_are_done)
            (trigger,) = (one for one in worker.engines if one.work.name == "trace-aggregation-trigger")
            parts = trigger._desk.slices
            await until(lambda: len(parts) == 4)
            for part in parts.values():  # look once more, now
                part.news += 1
            trigger._desk.wake_fetch.set()
            await until(lambda: not any(part.news for part in parts.values()))
            assert not any(part.at.ordinal for part in parts.values()), "it has read what it must wait for"
            assert await place.traces.count("acme") == 0
            await service.resume(late)
            await place.settled(spans[0].trace_id, 3)


def away_for(times: int, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A method that cannot do its work so many times, and then can."""
    left = iter(range(times))

    async def call(*arguments: Any) -> Any:
        if next(left, None) is not None:
            raise StoreError("it could not be reached")
        return await real(*arguments)

    return call


async def test_an_outage_leaves_no_trace_unsettled(
    servers: Servers, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace may be cold and ClickHouse away; and no span may come any more that has it tried again."""
    monkeypatch.setattr(Ingestion, "summary_of", away_for(10, Ingestion.summary_of))
    soon = Backoff("fixed", 10)
    monkeypatch.setattr(toril.pipelines.spans.ingestion, "SETTLING", replace(SETTLING, backoff=soon))
    async with running(emptied(servers.get("valkey-standalone")).url) as place:
        spans = trace_of(rng, 2)
        await place.ingestion.record("acme", spans)
        await place.settled(spans[0].trace_id, 2)


async def test_an_outage_of_the_tables_needs_no_person(
    servers: Servers, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was accepted is stored when they are back, however often it was tried before."""
    for kind, name in ((MemorySpanTable, "insert"), (MemoryTraceTable, "insert"), (Told, "handle")):
        monkeypatch.setattr(kind, name, away_for(4 * Retry().attempts, getattr(kind, name)))
    soon = replace(PATIENT, first=0.01, longest=0.01)
    monkeypatch.setattr(toril.pipelines.spans.ingestion, "PATIENT", soon)
    told = Told()
    async with running(emptied(servers.get("valkey-standalone")).url, on_settled={"told": told}) as place:
        spans = trace_of(rng, 2)
        await place.ingestion.record("acme", spans)
        await place.settled(spans[0].trace_id, 2)

        async def is_told() -> bool:
            return ("acme", 2) in told.seen

        await until(is_told)
        assert await place.spans.count("acme") == 2


async def test_a_span_of_a_trace_that_is_cold_is_recognised(servers: Servers, rng: random.Random) -> None:
    """The trace is brought back, with its summary and with what it knows of its spans."""
    url = emptied(servers.get("valkey-standalone")).url
    cold = MemoryColdStore()
    async with running(url, cold=cold, quiet=timedelta(milliseconds=200)) as place:
        spans = trace_of(rng, 6)
        trace_id = spans[0].trace_id
        await place.ingestion.record("acme", spans[:5])
        await place.settled(trace_id, 5)
        log = place.sourcing.log
        assert log is not None

        async def all_cold() -> bool:
            await log.cool()
            return sum(standing.hot for standing in await log.standings()) == 0

        await until(all_cold)
        assert await place.ingestion.record("acme", spans) == Recorded(6, 5)
        summary = await place.settled(trace_id, 6)
        assert summary == recompute(await place.spans.of_trace("acme", trace_id)).as_dict()


@pytest.mark.parametrize(("window", "known"), [(timedelta(milliseconds=10), 0), (timedelta(days=30), 5)])
async def test_a_long_trace_knows_its_spans_for_as_long_as_it_was_told(
    servers: Servers, rng: random.Random, window: timedelta, known: int
) -> None:
    url = emptied(servers.get("valkey-standalone")).url
    async with running(url, idempotency_window=window) as place:
        spans, log = trace_of(rng, 520), place.sourcing.log
        assert log is not None
        await place.ingestion.record("acme", spans[:500])
        await place.settled(spans[0].trace_id, 500)
        await log.choose_retention(Retention.keep_for(timedelta(milliseconds=1)))

        async def trimmed() -> bool:
            await log.trim()
            return sum(standing.trimmed for standing in await log.standings()) >= 200

        await until(trimmed)
        await place.ingestion.record("acme", spans[500:])  # each makes room where it may
        again = await place.ingestion.record("acme", spans[:5])
        assert (again.accepted, again.repeated) == (5, known)


async def test_what_cannot_be_stored_is_an_error_and_not_lost(rng: random.Random) -> None:
    with standalone() as server:
        place = Place(server.url)
        async with place.sourcing:
            await place.ingestion.record("acme", trace_of(rng, 1))
            assert place.sourcing.redis is not None
            await place.sourcing.redis.command("CONFIG", "SET", "maxmemory", "1mb")
            await place.sourcing.redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
            with pytest.raises(StoreError):
                await place.ingestion.record("acme", trace_of(rng, 3))
            await place.sourcing.redis.command("CONFIG", "SET", "maxmemory", "0")
            assert (await place.ingestion.record("acme", trace_of(rng, 3))).accepted == 3


async def test_what_is_wrong_with_the_store_is_not_the_fault_of_a_span(
    servers: Servers, rng: random.Random
) -> None:
    """A span that is refused is never sent again, so only what is wrong with itself refuses it."""
    place = Place(emptied(servers.get("valkey-standalone")).url)
    async with place.sourcing:
        spans, log = trace_of(rng, 2), place.sourcing.log
        assert log is not None
        partitions = (await log.layout()).partitions()
        await log.each(lambda store: store.wall("acme", up=True), partitions)
        with pytest.raises(StoreError, match="being erased"):
            await place.ingestion.record("acme", spans)
        await log.each(lambda store: store.wall("acme", up=False), partitions)
        assert await place.ingestion.record("acme", spans) == Recorded(2, 0)


async def test_durability_is_the_most_that_a_server_can_promise(servers: Servers) -> None:
    always = {"appendonly": "yes", "appendfsync": "always"}
    for settings, expected in ((always, "fsync"), ({"appendonly": "no"}, "memory")):
        with standalone(settings) as server:
            async with connect(server.url) as redis, Log(redis) as log:
                assert await safest(log) == expected
    async with connect(emptied(servers.get("valkey-cluster")).url) as redis, Log(redis) as log:
        assert await safest(log) == "replicated"
