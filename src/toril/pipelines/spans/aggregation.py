"""From spans to the settled summary of a trace.

The summary itself is the projection ``trace_summary`` of the spans. When spans came in and it is quiet for a
moment, ``aggregate_trace`` records the summary as an event of the trace, so that alerts, evaluations or a
webhook can hang on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import msgspec

from toril.connection import Durability
from toril.connection.durability import Level
from toril.events import (
    BatchEventHandler,
    Command,
    CommandHandler,
    DeclaredProjection,
    Event,
    HandlerContext,
    LastBy,
    Maximum,
    NewEvent,
    ProjectionState,
)
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.summary import TraceSummary
from toril.runtime import PipelineCommand

TRACE_SETTLED = "lw.obs.trace.aggregation.settled"
"""The event that a trace's summary was settled; its data is a :class:`Settled`."""

DEBOUNCE = timedelta(milliseconds=100)
"""How long a trace must be quiet before its summary is settled; after ten times that it is settled anyhow."""

SummaryOf = Callable[[str, str], Awaitable[ProjectionState[TraceSummary] | None]]
"""The summary of a trace by tenant and trace id, as it is now."""


class Settled(msgspec.Struct, frozen=True):
    """A trace's summary when it was settled."""

    version: int
    """How many span events are in it."""
    summary: dict[str, Any]


class SettledTrace(DeclaredProjection):
    """The last settled summary of a trace."""

    spans_version = Maximum("data.version", int, of=TRACE_SETTLED, default=0)
    summary = LastBy("data.summary", object, order="data.version", of=TRACE_SETTLED)


class AggregateTrace(msgspec.Struct, frozen=True):
    """The trace whose summary is to be settled."""

    trace_id: str


class AggregateTraceCommand(CommandHandler[AggregateTrace]):
    """Record the summary of a trace where it has changed. Sent again and again, the last one counts."""

    decides_on = SettledTrace
    delay = DEBOUNCE
    concurrency = 50
    summary_of: ClassVar[SummaryOf]

    @classmethod
    def get_aggregate_id(cls, payload: AggregateTrace) -> str:
        return payload.trace_id

    @classmethod
    def make_job_id(cls, payload: AggregateTrace) -> str:
        return payload.trace_id

    async def handle(self, command: Command[AggregateTrace]) -> list[NewEvent[Settled]]:
        found = await type(self).summary_of(command.aggregate.tenant, command.data.trace_id)
        if found is None or found.version <= command.state.spans_version:
            return []
        return [NewEvent(type=TRACE_SETTLED, data=Settled(found.version, found.state.as_dict()))]


class TraceAggregationTrigger(BatchEventHandler[Any]):
    """Has the summary of a trace settled after its spans came in.

    ``durability``: how safe the command must be before spans count as passed, asked for each time.
    """

    event_types = frozenset({SPAN_RECORDED})

    def __init__(
        self,
        aggregate_trace: PipelineCommand[AggregateTrace],
        durability: Callable[[], Durability | Level | None] = lambda: None,
    ) -> None:
        self._aggregate_trace = aggregate_trace
        self._durability = durability

    async def handle_many(self, events: Sequence[Event[Any]], context: HandlerContext) -> None:
        if not context.is_replay:
            trace_id = events[0].aggregate_id
            await self._aggregate_trace.send(
                AggregateTrace(trace_id), tenant=context.tenant, durability=self._durability()
            )
