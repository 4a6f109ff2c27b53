"""The audit finds nothing where nothing is wrong, and each kind of damage that was done on purpose."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from tests.conftest import Servers, emptied
from tests.lake.filling import with_log
from tests.lake.shop import OPTIONS
from tests.lake.span_events import a_span, body_of
from tests.queue.audit import until
from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events import NewEvent, fold
from toril.lake.archive import EventsStep, Floors
from toril.lake.audit import CHECKS, Audit, Check, LiveSummaries, audit, events, summaries
from toril.lake.audit.found import SAMPLES
from toril.lake.audit.holes import Hole, _not_erased
from toril.lake.audit.looking import Looking, Trace
from toril.lake.erase import erase
from toril.lake.erasures import Stretch, note, note_stretches
from toril.lake.lake import Lake, Record
from toril.lake.live import aggregates_in
from toril.lake.report import report
from toril.lake.rollups import RollupsStep
from toril.lake.source import Door, Marks, read_log, tails
from toril.lake.spans import SpansStep
from toril.lake.steps import Step
from toril.lake.summaries import TRACE_SUMMARIES, SummariesStep
from toril.lake.tables import EVENTS, ROLLUPS
from toril.log import Log, Partition, Retention
from toril.log import resize as resizing
from toril.log.entry import Append
from toril.log.errors import GapFound
from toril.log.upkeep import trim
from toril.pipelines.spans.summary import TraceSummary, _event_of
from toril.pipelines.spans.tables import SpanRow
from toril.runtime import EventSourcing
from toril.runtime.redis import RedisBackend
from toril.testing import standalone

pytestmark = pytest.mark.timeout(900)

SPANS = 40
SUMMARY = TRACE_SUMMARIES
UNREADABLE = "ab" * 16
LATE = "late"
"""The tenant whose spans come while the audit looks."""


async def fill(log: Log) -> None:
    """Spans of two tenants, one that is none, and a tenant that was erased before the archive came."""
    spans = [a_span(number) for number in range(SPANS)]
    appends = [
        Append(Aggregate(f"t{place % 2}", "span", span.trace_id), [body_of(span)])
        for place, span in enumerate(spans)
    ]
    appends += [Append(Aggregate("gone", "span", span.trace_id), [body_of(span)]) for span in spans[:8]]
    appends.append(
        Append(Aggregate("t0", "span", UNREADABLE), [body_of(spans[0]).replace(b'"data"', b'"dada"')])
    )
    for result in await log.append_many(appends):
        assert not isinstance(result, BaseException)
    await log.erase_tenant("gone")


def folded(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]] | None]:
    """What the live class says of traces of :func:`fill`."""
    made: list[tuple[int, dict[str, Any]] | None] = []
    for row in rows:
        if row["trace_id"] == UNREADABLE:
            made.append((1, {"spans": 1}))
            continue
        if row["tenant"] == LATE:
            made.append((1000, {"spans": 1000}))
            continue
        mine = [
            (place, span)
            for place, span in enumerate(map(a_span, range(SPANS)))
            if (span.trace_id, f"t{place % 2}") == (row["trace_id"], row["tenant"])
        ]
        state = fold(
            TraceSummary,
            [
                _event_of(
                    SpanRow(
                        tenant=row["tenant"],
                        record_id=str(n),
                        version=n,
                        recorded_at=row["created_at"],
                        span=span,
                    )
                )
                for n, (_, span) in enumerate(mine, 1)
            ],
        )
        shown = state.as_dict()
        del shown["updated_at"]  # by the server's clock
        made.append((len(mine), shown))
    return made


class Folded:
    """A live store that has processed all of :func:`fill`."""

    states = staticmethod(folded)

    def positions(self) -> Marks:
        return {"00": (1000, "9-9"), "01": (1000, "9-9")}

    def waiting(self, traces: Sequence[Trace]) -> list[bool]:
        return [False for _ in traces]

    def traces(self) -> Iterator[Sequence[Trace]]:
        yield [
            {"tenant": f"t{place % 2}", "trace_id": span.trace_id}
            for place, span in enumerate(map(a_span, range(SPANS)))
        ]
        yield []
        yield [{"tenant": "t0", "trace_id": UNREADABLE}]

    def firsts(self, traces: Sequence[Trace]) -> list[tuple[str, int] | None]:
        return [("00", 1) for _ in traces]


class Wrong(Folded):
    """One that says something else of every trace, and names them one by one."""

    def __init__(self) -> None:
        self.said: WeakSet[Said] = WeakSet()
        self.most = 0

    def states(self, traces: Sequence[Trace]) -> list[tuple[int, dict[str, Any]] | None]:
        self.most = max(self.most, len(self.said))
        made: list[tuple[int, dict[str, Any]] | None] = []
        for trace, one in zip(traces, folded(traces), strict=True):
            assert one is not None
            made.append((one[0], {**one[1], "cost": (said := Said(trace))}))
            self.said.add(said)
        return made

    def traces(self) -> Iterator[Sequence[Trace]]:
        for page in super().traces():
            yield from ([one] for one in page)


class Said:
    """A value that is known as long as someone keeps it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace["trace_id"]


def kinds(found: Audit) -> dict[str, set[str]]:
    return {check.name: {one.kind for one in check.findings} for check in found.checks if check.findings}


@contextmanager
def beside(lake: Lake, url: str, steps: Sequence[Step]) -> Iterator[Callable[[str], None]]:
    """A job that adds a batch to tables, up to the one of which a check has just seen how far it is."""
    fed: list[str] = []
    look, tables = Looking.table, [step.table.name for step in steps]

    def more(upto: str) -> None:
        fed.append(upto)
        span = a_span(1000, trace_id=f"{len(fed):032x}")
        with_log(url, lambda log: log.append(Aggregate(LATE, "span", span.trace_id), [body_of(span)]))
        for step in steps[: tables.index(upto) + 1]:
            assert step.once(lake) is not None

    def looked(work: Looking, name: str) -> Record:
        record = look(work, name)
        if name in tables and name not in fed:
            more(name)
        return record

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Looking, "table", looked)
        yield more


@contextmanager
def unsteady(more: Callable[[str], None]) -> Iterator[None]:
    """A log that goes on, and its archive, once it has said where it ends; trimmed before it is read."""
    left = ["trimmed", "archived"]

    class Grown(Door):
        def tails(self) -> Marks:
            found = super().tails()
            if "archived" in left:
                left.remove("archived")
                more(EVENTS.name)
            return found

    def read(*given: Any) -> Any:
        if "trimmed" in left:
            left.remove("trimmed")
            raise GapFound("GAP partition 00: entries 1 to 2 were trimmed before they were read here")
        return read_log(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(events, "Door", Grown)
        patched.setattr(events, "read_log", read)
        yield
    assert left == []


def test_each_damage_is_found_and_nothing_else(servers: Servers, lake: Lake) -> None:
    """A doubled row, a missing one, a changed body, a wrong cost, a rollup off by one."""
    url = emptied(servers.get("valkey-standalone")).url
    with_log(url, fill, partitions=2)
    steps: list[Step] = [EventsStep(url), SpansStep(), SummariesStep(), RollupsStep()]
    for step in steps:
        step.prepare(lake)
        assert step.once(lake) is not None
    told: list[str] = []
    with beside(lake, url, steps) as more, unsteady(more):

        def tell(_: int, __: int, what: str) -> None:
            told.append(what)
            if what == "ordinals":
                more(EVENTS.name)

        found = audit(lake, url=url, live=Folded(), told=tell)
    late = lake.read(EVENTS).where(f"tenant = '{LATE}'").count()
    assert late == 5
    assert kinds(found) == {}
    assert found.ok
    assert told == [*CHECKS, ""]
    assert {check.name: check.skipped for check in found.checks if check.skipped} == {}
    assert all(check.looked for check in found.checks)
    ordinals = next(check for check in found.checks if check.name == "ordinals")
    assert ordinals.notes == ["8 places are empty: their tenants were erased"]
    sums = next(check for check in found.checks if check.name == "rollups")
    assert sums.notes == [], "they were compared, though summaries and rollups are not at the same batch"
    live = next(check for check in found.checks if check.name == "live")
    assert "1 traces are live, and in the lake's quarantine" in live.notes
    # However many differ and however they are named, little is kept, and the tables are read as often.
    jobs = lake.spark.sparkContext._jsc.sc().dagScheduler()
    before, wrong = jobs.numTotalJobs(), Wrong()
    audit(lake, url=url, only=["live"], live=Folded())
    between = jobs.numTotalJobs()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(summaries, "AT_ONCE", 2)
        (check,) = audit(lake, url=url, only=["live"], live=wrong).checks
    assert jobs.numTotalJobs() - between <= between - before
    (differs,) = check.findings
    known = lake.read(SUMMARY).where(f"tenant <> '{LATE}'")
    assert (differs.count, len(differs.samples)) == (known.count(), SAMPLES)
    assert wrong.most <= 4
    # The archive has noted them: it is known when the log has let go of them, too.
    (alone,) = audit(lake, log=None, only=["ordinals"]).checks
    assert (alone.findings, alone.notes) == ([], ordinals.notes)
    assert sum(one.tail for one in found.figures.lag) == SPANS + 9 + 2  # when the log was asked
    assert sum(count for _, count in found.figures.volume) == SPANS + 1 + late

    spark, events = lake.spark, lake.sql_name(EVENTS)
    first, second, third = lake.read(EVENTS).where("tenant = 't1'").orderBy("entry_id").limit(3).collect()
    twice = lake.read(EVENTS).where(f"event_id = '{first['event_id']}'")
    twice.write.format("delta").mode("append").save(lake.place(EVENTS))
    spark.sql(f"DELETE FROM {events} WHERE event_id = '{second['event_id']}'")
    spark.sql(
        f"UPDATE {events} SET body = encode(replace(decode(body, 'UTF-8'), '\"kind\"', '\"kinD\"'), 'UTF-8') "
        f"WHERE event_id = '{third['event_id']}'"
    )
    trace = lake.read(SUMMARY).where("cost IS NOT NULL").first()
    assert trace is not None
    spark.sql(
        f"UPDATE {lake.sql_name(SUMMARY)} SET cost = cost + 1 "
        f"WHERE tenant = '{trace['tenant']}' AND trace_id = '{trace['trace_id']}'"
    )
    spark.sql(
        f"UPDATE {lake.sql_name(ROLLUPS)} SET errors = errors + 1 WHERE grain = 'minute' AND tenant = 't0'"
    )
    damaged = audit(lake, url=url, live=Folded())
    assert not damaged.ok
    seen = kinds(damaged)
    assert seen["versions"] >= {"version twice"}
    assert seen["ordinals"] == {"place twice", "place missing"}
    assert seen["log"] >= {"in the log and not in the lake", "differs from the log: body"}
    assert "span without an event" in seen["spans"]
    assert seen["summaries"] == {"cost is not what the spans say"}
    assert seen["live"] == {"live cost differs"}
    assert seen["rollups"] == {
        "errors is not what the spans come to",
        "the sum of cost is not that of the summaries",
    }
    value = json.loads(json.dumps(damaged.as_value()))
    assert (value["ok"], value["problems"]) == (False, damaged.problems)
    for one, title in ((found, "Log, lake and live store agree"), (damaged, "differences in 7 of 7 checks")):
        text = report(one)
        assert title in text
        assert not re.search(r"https?://|src=|href=|<script|@import|url\(", text)
    assert trace["trace_id"] in report(damaged)


def test_lost_places_are_found_among_many_that_were_erased(lake: Lake) -> None:
    """More holes than anyone would look at one by one, and holes that are very long."""
    many, far = 120_000, 10**12
    rows = lake.spark.range(1, 2 * many, 2).selectExpr(
        "1 AS log_epoch",
        "0 AS log_partition",
        "id AS ordinal",
        "concat('0-', id) AS entry_id",
        "'acme' AS tenant",
        "'note' AS aggregate_type",
        "CAST(id AS STRING) AS aggregate_id",
        "1L AS version",
        "1L AS recorded_at",
        *(f"CAST(NULL AS {kind}) AS {name}" for name, kind in UNREAD.items()),
        "encode('', 'UTF-8') AS body",
    )
    lake.ensure(EVENTS)
    positions = {"00": (far, "9-9"), "01": (7, "9-9")}
    lake.append(rows, EVENTS, Record(batch=1, positions=positions, began={"01": 4}))
    between = lake.spark.range(2, 2 * many, 2).where("id <> 200002")
    note(lake, between.selectExpr("1 AS log_epoch", "0 AS log_partition", "id AS first", "id AS last"))
    note_stretches(lake, [Stretch(1, 0, 9, 40), Stretch(1, 0, 2 * many, far - 3), Stretch(1, 1, 7, far)])
    (check,) = audit(lake, log=None, only=["ordinals"]).checks
    (lost,) = check.findings
    places = {(one["partition"], one["ordinal"]) for one in lost.samples}
    assert (lost.kind, lost.count, len(places)) == ("place missing", 6, SAMPLES)
    assert places < {("00", 200_002), *(("00", far - n) for n in range(3)), ("01", 5), ("01", 6)}
    assert f"{far - many - 3:,} places are empty: their tenants were erased" in check.notes
    # What cannot be read is found, and the rest is still told of.
    for file in Path(lake.place(EVENTS)).glob("**/part-*.parquet"):
        file.unlink()
    found = audit(lake, log=None, only=["versions"])
    assert kinds(found) == {"versions": {"not readable"}}
    assert (found.figures.volume, found.figures.tables) == ([], [(EVENTS.name, many, 1)])
    assert "not readable" in report(found)


def test_erased_places_are_seen_where_a_body_before_them_is_gone(servers: Servers) -> None:
    """Bodies that are kept outside the stream may be trimmed while it is looked at."""
    url, partition = emptied(servers.get("valkey-standalone")).url, Partition(1, 0)
    with_log(url, fill, partitions=1, inline=10)
    with_log(url, lambda log: log.redis.command("UNLINK", partition.keys("log").blob("1")))
    with Door(url, "log") as door:
        left = list(_not_erased(door, [Hole(partition, 1, SPANS + 9)]))
    assert sum(hole.size for hole in left) == SPANS + 1


def test_live_aggregates_are_seen_while_a_resize_is_unfinished(servers: Servers) -> None:
    """Until they are carried over, they are in the epoch before."""

    async def resized(log: Log) -> set[str]:
        await resizing._begin(log, await log.layout(), 3)
        return {key async for page in aggregates_in(log) for key in page}

    url = emptied(servers.get("valkey-standalone")).url
    record(url, OLD)
    assert with_log(url, resized) == {trace(number).key for number in OLD}


UNREAD = {"event_id": "STRING", "event_type": "STRING", "schema_version": "INT", "occurred_at": "BIGINT"}


def ingestion(url: str) -> EventSourcing:
    """A program that has live summaries."""
    sourcing = EventSourcing(url, partitions=2, options=OPTIONS)
    builder = sourcing.register_pipeline().with_name("span_ingestion").with_aggregate_type("span")
    builder.with_projection("trace_summary", None, TraceSummary).build()
    return sourcing


def process(url: str) -> None:
    """Have the live summaries process all there is."""

    async def work() -> None:
        sourcing = ingestion(url)
        async with sourcing, sourcing.worker(upkeep=False):
            service = sourcing.pipelines["span_ingestion"].service

            async def done() -> bool:
                return (await service.standing("trace_summary")).behind == 0

            await until(done, "all to be processed")

    asyncio.run(work())


@contextmanager
def asked(url: str) -> Iterator[LiveSummaries]:
    """The live summaries."""
    with Door(url, "log") as door:
        sourcing = ingestion(url)
        door.do(sourcing.__aenter__())
        try:
            assert isinstance(sourcing.backend, RedisBackend)
            service = sourcing.pipelines["span_ingestion"].service
            yield LiveSummaries(door, service, sourcing.backend, "trace_summary")
        finally:
            door.do(sourcing.__aexit__(None, None, None))


def trace(number: int) -> Aggregate:
    return Aggregate("acme", "span", f"{number:032x}")


def record(url: str, traces: Sequence[int], spans: int = 4) -> None:
    """More spans of traces."""

    async def work(log: Log) -> None:
        for number in traces:
            made = [a_span(span, trace_id=trace(number).id) for span in range(spans)]
            await log.append(trace(number), [body_of(span) for span in made])

    with_log(url, work, partitions=2)


def feed(lake: Lake, url: str) -> None:
    """All that is in the log, into all tables but the last."""
    steps: list[Step] = [EventsStep(url), SpansStep(), SummariesStep()]
    for step in steps:
        step.prepare(lake)
        while step.once(lake) is not None:
            pass
        step.close(lake)


def trim_all(url: str) -> None:
    """Let the log go all there is, with nobody having archived it."""

    async def work(log: Log) -> None:
        early = Floors(log, "early")
        await early.standing()
        await early.move(ends)
        await log.choose_retention(Retention.archived_by("early"))
        assert (await trim(log)).removed > 0
        await log.retire("early")
        await log.choose_retention(Retention.keep_all())

    ends = tails(url, "log")
    with_log(url, work)


def set_back(url: str, number: int, checkpoint: str) -> None:
    """Let the live processor be back in time with one trace."""

    async def work(log: Log) -> None:
        home = log.store((await log.layout()).current.of(trace(number)))
        key = home.keys.aggregate(trace(number).key)
        await log.redis.command("HSET", key, "c:span_ingestion/trace_summary", checkpoint)

    with_log(url, work)


OLD, LATER, MIXED, NOTED = range(1, 11), range(20, 30), 50, 60
"""Traces from before the archive, and from after it began; one whose events are not all spans, and one that
begins with another event."""


def record_others(url: str) -> None:
    """A span, an event of another type, one that cannot be read, a span; and only one of another type."""
    noted = NewEvent(type="noted", data=1).to_bytes()
    first, last = (body_of(a_span(number, trace_id=trace(MIXED).id)) for number in range(2))
    with_log(url, lambda log: log.append(trace(MIXED), [first, noted, b"{", last]))
    with_log(url, lambda log: log.append(trace(NOTED), [noted]))


def test_what_is_no_loss_is_noted_and_what_is_one_is_found(lake: Lake) -> None:
    """An archive that began late; live ahead, behind, lacking events; traces that only live or lake has."""
    with standalone({"stream-node-max-entries": 5}) as server:
        _noted_or_found(server.url, lake)


def _noted_or_found(url: str, lake: Lake) -> None:
    def looked() -> dict[str, Check]:
        with asked(url) as live:
            found = audit(lake, url=url, only=["versions", "ordinals", "live"], live=live)
        return {check.name: check for check in found.checks}

    record(url, OLD)
    process(url)
    trim_all(url)
    record(url, [1, 2, *LATER])
    record_others(url)
    process(url)
    lake.ensure(EVENTS)
    erase(lake, "globex")  # of whom nothing was archived, as of anybody
    feed(lake, url)
    began = lake.last(EVENTS).began
    assert sum(began.values()) > 20
    record(url, [20, 40], spans=1)  # which live has not processed, and the lake has
    feed(lake, url)
    assert lake.last(EVENTS).began == began
    found = looked()
    assert [check.findings for check in found.values()] == [[], [], []]
    assert found["ordinals"].notes == [
        f"{sum(began.values())} places are from before the archive: the log had been trimmed when it began"
    ]
    assert re.match(r"\d aggregates are older than the archive", found["versions"].notes[0])
    notes = "; ".join(found["live"].notes)
    assert "2 traces are further in the lake: the live processor has not read all that the lake has" in notes
    assert "traces are live, and older than the archive" in notes
    assert re.search(r"\b([3-9]|\d\d) traces have events that are not in spans", notes)
    assert "at a later version live" not in notes

    process(url)
    record(url, [21, 41, NOTED], spans=1)
    process(url)
    set_back(url, 22, "p3 x 0")
    set_back(url, 23, "f3 x 0")
    spark, events = lake.spark, lake.sql_name(EVENTS)
    spark.sql(f"DELETE FROM {lake.sql_name(SUMMARY)} WHERE trace_id = '{trace(24).id}'")
    spark.sql(f"DELETE FROM {events} WHERE aggregate_id = '{trace(25).id}' AND version = 2")
    name = max(began)
    first = f"log_partition = {Partition.parse(name).number} AND ordinal = {began[name] + 1}"
    spark.sql(f"DELETE FROM {events} WHERE {first}")
    found = looked()
    assert {one.kind: one.count for check in found.values() for one in check.findings} == {
        "version missing": 1,
        "place missing": 2,
        "live has fewer events": 1,
        "only live": 1,
    }
    samples = {one.kind: one.samples for check in found.values() for one in check.findings}
    assert {"partition": name, "ordinal": began[name] + 1} in samples["place missing"]
    who = {"tenant": "acme", "trace_id": trace(22).id, "version": 4}
    assert samples["live has fewer events"] == [{**who, "live": 3}]
    assert samples["only live"] == [{**who, "trace_id": trace(24).id}]
    notes = "; ".join(found["live"].notes)
    assert "1 traces are at a later version live, and were not compared" in notes
    assert "1 traces have an event live that is tried again, or waits for a person" in notes
    assert "2 traces are live, and the lake has not read their first span yet" in notes


def test_bad_input_is_refused(lake: Lake) -> None:
    """A fraction of more than all, a check that there is not, a lake without tables."""
    for given, rule in (({"fraction": 0.0}, "more than 0"), ({"only": ["everything"]}, "one of versions")):
        with pytest.raises(InvalidValue, match=rule):
            audit(lake, **given)
