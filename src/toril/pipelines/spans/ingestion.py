"""The pipelines of spans and traces, registered; and how spans come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from toril.connection import Durability, DurabilityNotReached, DurabilityRefused
from toril.connection.durability import Level
from toril.errors import InvalidValue
from toril.events import Appended, CommandHandler, EventHandler, ProjectionState
from toril.handler import UnfitPayload
from toril.log import Log
from toril.pipelines.spans.aggregation import (
    DEBOUNCE,
    TRACE_SETTLED,
    AggregateTraceCommand,
    SettledTrace,
    TraceAggregationTrigger,
)
from toril.pipelines.spans.prices import PriceTable, default_prices
from toril.pipelines.spans.recording import RecordSpanCommand
from toril.pipelines.spans.redaction import Redactor, no_redaction
from toril.pipelines.spans.span import Span
from toril.pipelines.spans.storage import SpanStorage, TraceStorage
from toril.pipelines.spans.summary import TraceSummary
from toril.pipelines.spans.tables import SpanTable, TraceTable
from toril.runtime import PATIENT, CommandOptions, EventSourcing

Handler = TypeVar("Handler", bound=CommandHandler[Any])

AT_ONCE = 256
"""Traces whose spans are stored at the same time: tables take many inserts together."""

SETTLING = CommandOptions(attempts=18)
"""After 1, 2, 4 … seconds, for more than a day: perhaps no span comes any more that has it tried again."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of spans."""

    accepted: int = 0
    """Stored as safely as was asked for, those that were stored before among them."""
    repeated: int = 0
    """Of the accepted ones, those that were stored before."""
    refused: list[str] = field(default_factory=list)
    """Why a span was not stored, and never will be."""


class Ingestion:
    """The pipelines ``span_ingestion`` and ``trace_aggregation``, and the way in.

    ::

        ingestion = Ingestion(sourcing, spans=MemorySpanTable(), traces=MemoryTraceTable())
        async with sourcing, sourcing.worker():
            await ingestion.record("acme", spans)

    ``on_settled``: handlers for settled summaries, by name; a webhook, for example.
    """

    def __init__(
        self,
        sourcing: EventSourcing,
        *,
        spans: SpanTable,
        traces: TraceTable,
        redactor: Redactor = no_redaction,
        prices: PriceTable | None = None,
        debounce: timedelta = DEBOUNCE,
        durability: Durability | Level | None = None,
        on_settled: Mapping[str, EventHandler[Any]] | None = None,
    ) -> None:
        self.durability = durability
        """How safe spans must be before they are accepted; None: as the event sourcing has it."""
        record = _configured(
            RecordSpanCommand, redactor=staticmethod(redactor), prices=prices or default_prices()
        )
        aggregate = _configured(
            AggregateTraceCommand, delay=debounce, summary_of=staticmethod(self.summary_of)
        )
        traces_builder = (
            sourcing.register_pipeline()
            .with_name("trace_aggregation")
            .with_aggregate_type("trace")
            .with_command_handler(aggregate, options=SETTLING)
            .with_event_handler("trace-storage", TraceStorage(traces), concurrency=AT_ONCE, retry=PATIENT)
            .with_projection("summary", None, SettledTrace)
        )
        for name, handler in (on_settled or {}).items():
            traces_builder.with_event_handler(name, handler, event_types=[TRACE_SETTLED], retry=PATIENT)
        self.traces = traces_builder.build()
        """The pipeline ``trace_aggregation``."""
        trigger = TraceAggregationTrigger(self.traces.command(aggregate), lambda: self.durability)
        self.spans = (
            sourcing.register_pipeline()
            .with_name("span_ingestion")
            .with_aggregate_type("span")
            .with_command_handler(record)
            .with_event_handler("span-storage", SpanStorage(spans), concurrency=AT_ONCE, retry=PATIENT)
            .with_projection("trace_summary", None, TraceSummary)
            .with_event_handler(
                "trace-aggregation-trigger",
                trigger,
                depends_on=["span-storage", "trace_summary"],
                retry=PATIENT,
            )
            .build()
        )
        """The pipeline ``span_ingestion``."""
        self.record_span = self.spans.command(record)
        """The command, for those who send it through its queue."""

    async def summary_of(self, tenant: str, trace_id: str) -> ProjectionState[TraceSummary] | None:
        """The summary of a trace as it is now, and of how many spans; None where there is none yet."""
        return await self.spans.service.get_projection("trace_summary", tenant, trace_id)

    async def record(self, tenant: str, spans: Sequence[Span]) -> Recorded:
        """Record spans, each once however often it comes. Returns when they are as safe as was asked for.

        What is wrong with a span itself is said in the answer. Where spans could not be stored, or not
        safely enough, the error is raised; then all of them can be sent again.
        """
        outcomes = await self.record_span.execute_many(spans, tenant=tenant, durability=self.durability)
        accepted = repeated = 0
        refused: list[str] = []
        problem: Exception | None = None
        for outcome in outcomes:
            if isinstance(outcome, Appended):
                accepted += 1
                repeated += outcome.repeated
            elif isinstance(outcome, InvalidValue | UnfitPayload):
                refused.append(str(outcome))
            elif isinstance(outcome, Exception):  # whatever it is, the span is not to blame
                problem = problem or outcome
        if problem is not None:
            raise problem
        return Recorded(accepted, repeated, refused)


def _configured(handler: type[Handler], **settings: Any) -> type[Handler]:
    """A command handler with its settings: dispatchers make handlers without arguments."""
    return type(handler.__name__, (handler,), settings)


async def safest(log: Log) -> Level:
    """The most that the server of a log can promise of what it accepts."""
    wanted: tuple[Level, ...] = ("replicated", "fsync")
    for level in wanted:
        try:
            await _ask(log, Durability(level, timeout=2.0))
        except (DurabilityRefused, DurabilityNotReached):
            continue
        return level
    return "memory"


async def check_durability(log: Log, wanted: Durability | Level) -> None:
    """Refuse what the server of a log cannot promise as it is set up, before the first span is."""
    with suppress(DurabilityNotReached):  # a replica may be away for a moment
        await _ask(log, Durability.of(wanted))


async def _ask(log: Log, durability: Durability) -> None:
    await log.redis.command("EXISTS", log.keys.meta, durability=durability)
