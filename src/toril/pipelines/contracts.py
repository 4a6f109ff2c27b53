"""What every table of spans and traces must do, as tests, like those of :mod:`toril.events.contracts`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any

from toril.errors import InvalidValue
from toril.events.contracts.parts import OTHER_TENANT, TENANT, refused
from toril.pipelines.spans.span import Ai, Link, Resource, Scope, Span, SpanEvent
from toril.pipelines.spans.tables import SpanRow, SpanTable, TraceOrder, TraceRow, TraceTable

LATEST = 2**63 - 1
TRACE_ID, OTHER_TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000001"
ODD = "a'b\\c`{x}\x00\n\té😀"


def span(number: int, trace_id: str = TRACE_ID, **more: Any) -> Span:
    """A span with little in it."""
    given: dict[str, Any] = {
        "trace_id": trace_id,
        "span_id": f"{number:016x}",
        "name": f"step {number}",
        "kind": 1,
        "start": 1_700_000_000_000_000_000 + number,
        "end": 1_700_000_000_000_000_500,
        "status": 0,
    }
    return Span(**given | more)


def row(
    made: Span, version: int = 1, tenant: str = TENANT, recorded_at: int = 1_700_000_000_123_456_789
) -> SpanRow:
    """The row of a span."""
    return SpanRow(
        tenant=tenant, record_id=made.record_id(tenant), version=version, recorded_at=recorded_at, span=made
    )


FULL = span(
    1,
    parent_span_id="00f067aa0ba902b7",
    trace_state="a=b",
    flags=257,
    name=ODD,
    kind=5,
    start=0,
    end=LATEST,
    status=2,
    status_message=ODD,
    attributes={
        "text": ODD,
        "empty": "",
        "zero": 0,
        "false": False,
        "whole": -(2**63),
        "fraction": 0.1,
        "whole fraction": 1.0,
        "tiny": 5e-324,
        "list": [1, "2", None, [True]],
        "object": {"deep": {"er": [0]}},
        "bytes": {"$bytes": "AP8="},
        "nan": {"$double": "NaN"},
        ODD: ODD,
    },
    events=[SpanEvent(name="exception", time=0, attributes={"exception.message": ODD}, dropped_attributes=1)],
    links=[
        Link(
            trace_id=OTHER_TRACE_ID,
            span_id="00f067aa0ba902b7",
            trace_state="x=y",
            flags=1,
            attributes={"a": 0},
        )
    ],
    dropped_attributes=1,
    dropped_events=2,
    dropped_links=3,
    resource=Resource(
        attributes={"service.name": ODD, "zero": 0}, dropped_attributes=4, schema_url="https://r"
    ),
    scope=Scope(name="lib", version="1", attributes={"a": []}, dropped_attributes=5, schema_url="https://s"),
    ai=Ai(
        kind="llm",
        provider="openai",
        request_model="m",
        response_model="m-1",
        input_tokens=0,
        output_tokens=LATEST,
        tokens_estimated=False,
        first_token=0,
        input=[{"role": "user", "content": ODD}],
        output={"a": None},
        labels=["x", ODD],
        cost=0,
        cost_from="span",
    ),
    rules=["one", "two"],
)
"""A span that says all that one can say."""


class SpanTableContract(ABC):
    """Tests for a :class:`~toril.pipelines.spans.tables.SpanTable`."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[SpanTable]:
        """A fresh, empty table."""

    async def test_a_span_comes_back_as_it_was(self) -> None:
        """Zeros, the last nanosecond, every kind of value; and the least that a span can be."""
        async with self.open() as table:
            await table.insert([])
            assert await table.of_trace(TENANT, TRACE_ID) == []
            least = span(2, start=0, end=0, kind=0, name="")
            backwards = span(3, start=LATEST, end=0)
            rows = [row(FULL, recorded_at=0), row(least, 2**53, recorded_at=LATEST), row(backwards)]
            await table.insert(rows)
            assert await table.of_trace(TENANT, TRACE_ID) == rows

    async def test_spans_stand_by_start_and_id(self) -> None:
        """Whatever the order in which they came; and only those of the trace, no more than were asked for."""
        async with self.open() as table:
            spans = [span(n, start=start) for n, start in ((9, 1), (1, 2), (2, 2), (3, 2), (0, 3))]
            await table.insert([row(spans[place]) for place in (4, 1, 3)])
            await table.insert([row(spans[place]) for place in (0, 2)])
            await table.insert([row(span(5, OTHER_TRACE_ID))])
            assert [found.span for found in await table.of_trace(TENANT, TRACE_ID)] == spans
            assert [found.span for found in await table.of_trace(TENANT, TRACE_ID, limit=2)] == spans[:2]

    async def test_what_is_inserted_again_is_there_once(self) -> None:
        """In the same call, in another one, and at the same time."""
        async with self.open() as table:
            rows = [row(span(n), n) for n in range(50)]
            await table.insert(rows + rows)
            await asyncio.gather(*(table.insert(rows[n : n + 10]) for n in range(45)))
            assert await table.of_trace(TENANT, TRACE_ID) == rows
            assert await table.count(TENANT) == 50

    async def test_of_two_that_were_recorded_the_first_counts(self) -> None:
        """Whichever is inserted first, and months later."""
        first, second = row(span(1, name="first"), 3), row(span(1, name="second"), 8, recorded_at=LATEST)
        for order in ((first, second), (second, first)):
            async with self.open() as table:
                for one in order:
                    await table.insert([one])
                assert await table.of_trace(TENANT, TRACE_ID) == [first]
                assert await table.count(TENANT) == 1

    async def test_tenant_walls_spans_are_a_tenants_own(self) -> None:
        """To read, to count and to erase; and what is inserted after an erasure is there."""
        async with self.open() as table:
            mine = [row(span(1)), row(span(2)), row(span(3, OTHER_TRACE_ID))]
            theirs = row(span(1), tenant=OTHER_TENANT)
            await table.insert(mine)
            assert await table.of_trace(OTHER_TENANT, TRACE_ID) == []
            await table.insert([theirs, *mine])
            assert await table.of_trace(OTHER_TENANT, TRACE_ID) == [theirs]
            assert await table.erase(TENANT) == 3
            assert await table.of_trace(TENANT, TRACE_ID) == []
            assert (await table.count(TENANT), await table.count(OTHER_TENANT)) == (0, 1)
            await table.insert(mine[:1])
            assert await table.of_trace(TENANT, TRACE_ID) == mine[:1]
            assert await table.erase("nobody") == 0

    async def test_bad_input_is_refused(self) -> None:
        """A limit is a whole number from 1; a tenant must be named."""
        async with self.open() as table:
            for wrong in (0, -1, True):
                with refused(InvalidValue):
                    await table.of_trace(TENANT, TRACE_ID, limit=wrong)
            with refused(InvalidValue):
                await table.erase("")


def trace(number: int, version: int = 1, tenant: str = TENANT, **summary: Any) -> TraceRow:
    """A trace with a number for an id."""
    return TraceRow(
        tenant=tenant, trace_id=f"{number:032x}", version=version, summary={"spans": version, **summary}
    )


class TraceTableContract(ABC):
    """Tests for a :class:`~toril.pipelines.spans.tables.TraceTable`."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[TraceTable]:
        """A fresh, empty table."""

    async def test_a_summary_comes_back_as_it_was(self) -> None:
        """With sums that no 64 bits hold, zeros, what is not known, and fields that no column has."""
        async with self.open() as table:
            await table.insert([])
            assert await table.get(TENANT, f"{1:032x}") is None
            full = trace(
                1,
                2**53,
                started_at=0,
                ended_at=LATEST,
                duration=LATEST,
                input_tokens=2**64 * LATEST,
                output_tokens=0,
                cost=2**70,
                tokens_per_second=None,
                failed=False,
                ok=True,
                errors=0,
                models=["a", ODD],
                labels=[],
                input=ODD,
                output=None,
                trace_name=ODD,
                attributes={"metadata.n": 0, "t": ODD, "l": [1, None]},
                another={"field": [1.5]},
            )
            await table.insert([full, trace(2)])
            assert await table.get(TENANT, full.trace_id) == full
            assert await table.get(TENANT, f"{2:032x}") == trace(2)

    async def test_the_summary_with_more_events_counts(self) -> None:
        """Whatever the order; the later of two with as many."""
        versions = [trace(1, version, cost=version) for version in (1, 2, 3)]
        for order in (versions, versions[::-1], [versions[1], versions[2], versions[0]]):
            async with self.open() as table:
                for one in order:
                    await table.insert([one])
                assert await table.get(TENANT, versions[0].trace_id) == versions[2]
                assert await table.find(TENANT, order="dearest") == [versions[2]]
                assert await table.count(TENANT) == 1
        async with self.open() as table:
            await table.insert(versions)
            await table.insert([trace(1, 3, cost=99)])
            assert await table.get(TENANT, versions[0].trace_id) == trace(1, 3, cost=99)

    async def test_traces_are_listed_in_each_order(self) -> None:
        """What is not known comes last; of equal ones, the last begun comes first."""
        async with self.open() as table:
            rows = [
                trace(1, started_at=100, duration=5, cost=2**70, errors=0),
                trace(2, started_at=300, duration=50, cost=0, errors=2),
                trace(3, started_at=200, duration=50, cost=None, errors=1),
                trace(4, started_at=None, duration=None, cost=2**70 + 1, errors=1),
                trace(5, started_at=200, duration=0, cost=0, errors=0),
            ]
            await table.insert(rows[3:])
            await table.insert(rows[:3])
            orders: dict[TraceOrder, list[int]] = {
                "latest": [2, 3, 5, 1, 4],
                "slowest": [2, 3, 1, 5, 4],
                "dearest": [4, 1, 2, 5, 3],
                "failing": [2, 3, 4],
            }
            for order, numbers in orders.items():
                expected = [rows[number - 1] for number in numbers]
                assert await table.find(TENANT, order=order) == expected, order
                assert await table.find(TENANT, order=order, limit=2) == expected[:2], order

    async def test_traces_are_found_by_when_they_began(self) -> None:
        """From the first nanosecond to before the last; one that began at no time is in no span of time."""
        async with self.open() as table:
            rows = [trace(n, started_at=when) for n, when in enumerate((0, 10, 11, LATEST - 1, None))]
            await table.insert(rows)

            async def numbers(**bounds: Any) -> list[int]:
                return [int(found.trace_id, 16) for found in await table.find(TENANT, **bounds)]

            assert await numbers(since=0) == [3, 2, 1, 0]
            assert await numbers(since=10, until=11) == [1]
            assert await numbers(since=11) == [3, 2]
            assert await numbers(until=11) == [1, 0]
            assert await numbers(since=5, until=5) == []
            assert await numbers(until=LATEST) == [3, 2, 1, 0]
            assert await numbers(since=-1, until=2**64) == [3, 2, 1, 0]

    async def test_a_trace_that_changed_is_found_as_it_is_now(self) -> None:
        """Not by what it was."""
        async with self.open() as table:
            await table.insert([trace(1, 1, started_at=500, errors=3)])
            await table.insert([trace(1, 2, started_at=100, errors=0)])
            assert await table.find(TENANT, order="failing") == []
            assert await table.find(TENANT, since=400) == []
            assert len(await table.find(TENANT, until=400)) == 1

    async def test_tenant_walls_traces_are_a_tenants_own(self) -> None:
        """To get, to find, to count and to erase; and what is inserted after an erasure is there."""
        async with self.open() as table:
            mine = [trace(1, 9, started_at=1), trace(2, started_at=2)]
            theirs = trace(1, tenant=OTHER_TENANT, started_at=3)
            await table.insert(mine)
            assert await table.get(OTHER_TENANT, theirs.trace_id) is None
            assert await table.find(OTHER_TENANT) == []
            await table.insert([theirs])
            assert await table.find(OTHER_TENANT) == [theirs]
            assert await table.find(TENANT) == mine[::-1]
            assert await table.erase(TENANT) == 2
            assert await table.find(TENANT) == []
            assert (await table.count(TENANT), await table.count(OTHER_TENANT)) == (0, 1)
            await table.insert([trace(1, 1, started_at=7)])
            assert await table.get(TENANT, theirs.trace_id) == trace(1, 1, started_at=7)

    async def test_bad_input_is_refused(self) -> None:
        """A limit is a whole number from 1; an order has a name."""
        async with self.open() as table:
            wrong: Any
            for wrong in (0, -1, True):
                with refused(InvalidValue):
                    await table.find(TENANT, limit=wrong)
            wrong = "cheapest"
            with refused(InvalidValue):
                await table.find(TENANT, order=wrong)
