"""Spans by hand, for the tests of dialects."""

from __future__ import annotations

from typing import Any

from toril.pipelines.spans.dialects import understand
from toril.pipelines.spans.span import Ai, Span, SpanEvent

START = 1_700_000_000_000_000_000


def span(attributes: dict[str, Any], *, name: str = "step", events: list[SpanEvent] | None = None) -> Span:
    return Span(
        trace_id="0" * 31 + "1",
        span_id="0" * 15 + "1",
        name=name,
        kind=1,
        start=START,
        end=START + 1_000_000_000,
        status=0,
        attributes=attributes,
        events=events or [],
    )


def said(attributes: dict[str, Any], **more: Any) -> Ai:
    """What is understood of a span with these attributes."""
    ai = understand(span(attributes, **more)).ai
    assert ai is not None
    return ai
