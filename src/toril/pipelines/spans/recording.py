"""``record_span``: a span is checked, understood, priced, redacted, and recorded as an event."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from toril.errors import InvalidValue
from toril.events import Command, CommandHandler, NewEvent
from toril.pipelines.spans.dialects import understand
from toril.pipelines.spans.prices import PriceTable, default_prices, priced
from toril.pipelines.spans.redaction import Redactor, no_redaction
from toril.pipelines.spans.span import Span, check_span

SPAN_RECORDED = "lw.obs.span.ingestion.recorded"
"""The event that a span was recorded; its data is the :class:`Span`."""


class RedactionFailed(InvalidValue):
    """A span could not be redacted, and is not stored."""


class RecordSpanCommand(CommandHandler[Span]):
    """Record a span. Its trace is the aggregate; sent again, it is recorded once."""

    redactor: ClassVar[Redactor] = staticmethod(no_redaction)
    prices: ClassVar[PriceTable] = default_prices()

    @classmethod
    def get_aggregate_id(cls, payload: Span) -> str:
        return payload.trace_id

    @classmethod
    def make_idempotency_key(cls, tenant: str, payload: Span) -> str:
        return payload.record_id(tenant)

    @classmethod
    def prepare(cls, tenant: str, payload: Span) -> Span:
        """The span as it may be stored: nothing that the redactor takes out gets any further."""
        check_span(payload)
        span = payload if payload.ai is not None else understand(payload)
        span = priced(span, cls.prices)
        try:
            return cls.redactor(tenant, span)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the span is not stored
            # What it stumbled over may be what must not be said.
            rule = f"the redactor failed ({type(problem).__name__}), so it is not stored"
            raise RedactionFailed("span", span.span_id, rule) from None

    async def handle(self, command: Command[Span]) -> list[NewEvent[Any]]:
        span = command.data
        return [
            NewEvent(
                type=SPAN_RECORDED,
                id=span.record_id(command.aggregate.tenant),
                occurred_at=span.start,
                data=span,
            )
        ]


def span_of(data: Any) -> Span:
    """The span that an event has recorded."""
    return msgspec.convert(data, Span)
