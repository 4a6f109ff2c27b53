"""The promise live-is-batch: what workers build live, Spark builds again from history, field by field."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from tests.conftest import SCALE, Servers, emptied
from tests.lake.shop import archive
from tests.lake.span_parts import chance_span
from tests.queue.audit import until
from toril.events import NewEvent, Sum
from toril.lake import live as live_side
from toril.lake.diff import Diff, diff
from toril.lake.generations import Generation, read
from toril.lake.lake import Lake
from toril.lake.live import diff_live
from toril.lake.replay import replay
from toril.lake.spans import SpansStep
from toril.lake.subjects import Subject, subjects_of
from toril.pipelines.spans.ingestion import Ingestion
from toril.pipelines.spans.memory import MemorySpanTable, MemoryTraceTable
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.summary import TraceSummary
from toril.runtime import EngineOptions, EventSourcing

pytestmark = pytest.mark.timeout(900 * max(SCALE, 1))

TENANTS = ("acme", "globex")
NAME = "span_ingestion/trace_summary"


class Mutated(TraceSummary):
    """A slip of the pen in one field."""

    name = "trace_summary"
    cost = Sum("data.ai.output_tokens", default=None)


class Traffic:
    """Spans of many traces: late, shuffled, twice, and some that the summary cannot take."""

    def __init__(self, url: str, rng: random.Random, traces: int) -> None:
        self.rng = rng
        self.sourcing = EventSourcing(url, partitions=4, options=EngineOptions(lease=5.0, grace=2.0))
        self.ingestion = Ingestion(
            self.sourcing,
            spans=MemorySpanTable(),
            traces=MemoryTraceTable(),
            debounce=timedelta(seconds=60),
        )
        self.subject: Subject = subjects_of([self.ingestion.spans.definition])[NAME]
        self.traces: list[tuple[str, str]] = []
        self.begin(traces)

    def begin(self, traces: int) -> None:
        """So many traces more."""
        self.traces += [(self.rng.choice(TENANTS), self.rng.randbytes(16).hex()) for _ in range(traces)]

    async def send(self, spans: int) -> None:
        """Spans of all traces in disorder; one in five comes a second time."""
        made = [
            (tenant, chance_span(self.rng, trace_id, number))
            for tenant, trace_id in self.traces
            for number in range(self.rng.randrange(1, spans))
        ]
        made += self.rng.choices(made, k=len(made) // 5)
        self.rng.shuffle(made)
        for tenant in TENANTS:
            await self.ingestion.record(tenant, [span for whose, span in made if whose == tenant])

    async def spoil(self, *traces: tuple[str, str]) -> None:
        """Events that are no spans: of one the summary makes something, at the other it fails."""
        for tenant, trace_id in traces:
            for data in ({"span_id": "s", "start": 17, "name": "odd"}, {"span_id": "s", "start": "soon"}):
                event = NewEvent(type=SPAN_RECORDED, data=data)
                await self.sourcing.pipelines["span_ingestion"].service.store_events(
                    tenant, trace_id, [event]
                )

    async def done(self, failed: int) -> None:
        """All is processed but what has failed."""

        async def is_done() -> bool:
            its = await self.ingestion.spans.service.standing("trace_summary")
            return (its.behind, its.failed, its.retrying) == (0, failed, 0)

        await until(is_done, "the summaries to be up to date", 60)


def test_live_is_batch_for_late_shuffled_doubled_and_failing_spans(
    servers: Servers, lake: Lake, rng: random.Random
) -> None:
    url = emptied(servers.get("valkey-standalone")).url
    traffic = Traffic(url, rng, traces=round(40 * SCALE))
    skipped, waits = traffic.traces[:2]

    async def live() -> None:
        service = traffic.ingestion.spans.service
        await traffic.send(12)
        await traffic.spoil(skipped, waits)
        await traffic.done(failed=2)
        await service.skip_failed("trace_summary", *skipped, by="ann", reason="no time")
        await traffic.done(failed=1)
        await asyncio.to_thread(archive, lake, url)
        spans = SpansStep()
        await asyncio.to_thread(spans.prepare, lake)
        await asyncio.to_thread(spans.once, lake)
        await traffic.send(5)  # these are in the log alone
        await traffic.done(failed=1)
        made = {}
        for engine in ("native", "fold"):
            made[engine] = await asyncio.to_thread(
                replay, lake, traffic.subject, url=url, engine=engine, keep=False
            )
            assert made[engine].plan.engine == engine
        asked = read(lake, made["native"]).select(
            "tenant", "aggregate_id", "version", "state", "shown.spans", "shown.cost"
        )
        rows = {f"{row[0]}:{row[1]}": row[2:] for row in await asyncio.to_thread(asked.collect)}
        for one in made.values():
            found = await compared(one)
            assert found.differences == []
            assert found.compared == len(rows)
        assert len(rows) > len(traffic.traces) / 2
        # Once more by hand: every field that is shown.
        for tenant, trace_id in traffic.traces:
            shown = await service.get_projection("trace_summary", tenant, trace_id)
            assert (shown is not None) == (f"{tenant}:{trace_id}" in rows)
            if shown is None:  # all its spans were refused
                continue
            version, state, *columns = rows[f"{tenant}:{trace_id}"]
            assert TraceSummary.decode(bytes(state)).as_dict() == shown.state.as_dict()
            assert version == shown.version
            assert columns == [shown.state.spans, shown.state.cost]
        # Live goes on, with new traces too: it is compared at the versions where it is then.
        traffic.begin(5)
        await traffic.send(4)
        await traffic.done(failed=1)
        jobs, counted = lake.spark.sparkContext._jsc.sc().dagScheduler(), []
        for names in (live_side.NAMES_AT_ONCE, 1):  # the tables are not read once more for each page of names
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(live_side, "NAMES_AT_ONCE", names)
                before = jobs.numTotalJobs()
                sample = await compared(made["native"], fraction=0.5)
                counted.append((jobs.numTotalJobs() - before, sample.compared))
            assert sample.differences == []
            assert 0 < sample.compared < len(rows)
        assert counted[0] == counted[1]
        await mutated(made["native"])
        # What only live has began after the cut, or is missing.
        table = lake.sql_name(made["fold"].plan.name)
        tenant, _, trace_id = min(rows).partition(":")
        await asyncio.to_thread(lake.spark.sql, f"DELETE FROM {table} WHERE aggregate_id = '{trace_id}'")
        found = await compared(made["fold"])
        assert len(rows) < found.compared <= len(traffic.traces)  # of some, the first spans were refused
        (only,) = found.differences
        assert (only.kind, only.count, found.equal) == ("only in other", 1, found.compared - 1)
        assert [(one.tenant, one.aggregate_id) for one in only.samples] == [(tenant, trace_id)]
        assert "the lake does not go back to them, or has lost them" in only.reason

    async def compared(one: Generation, fraction: float = 1.0) -> Diff:
        service, backend = traffic.ingestion.spans.service, traffic.sourcing.backend
        assert backend is not None
        return await diff_live(lake, one, traffic.subject, service, backend, fraction=fraction, samples=3)

    async def mutated(one: Generation) -> None:
        subject = Subject(
            pipeline="span_ingestion", name="trace_summary", projection=Mutated, aggregate_type="span"
        )
        cut = one.plan.cut
        other = await asyncio.to_thread(
            replay, lake, subject, url=url, cut=cut, engine="fold", keep=False, label="slip"
        )
        found = await asyncio.to_thread(diff, lake, one, other)
        assert {(its.kind, its.field) for its in found.differences} == {("other value", "cost")}
        (only,) = found.differences
        assert "the field is declared otherwise: value data.ai.cost → data.ai.output_tokens" in only.reason
        assert only.count == found.compared - found.equal > 0

    async def run() -> None:
        async with traffic.sourcing, traffic.sourcing.worker(commands=False, upkeep=False):
            await live()

    asyncio.run(run())
