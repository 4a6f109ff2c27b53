"""What a server takes at most, so that no one can fill its memory or keep others out."""

from __future__ import annotations

from dataclasses import dataclass, fields

from toril.errors import InvalidValue
from toril.pipelines.spans import otlp

MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is taken at most. Sizes are bytes, times are seconds."""

    body: int = 16 * MB
    """A request as it is sent, compressed where it is."""
    inflated: int = 32 * MB
    """A request as it is when it is not compressed."""
    in_flight: int = 128 * MB
    """All requests together that are being received, decoded or recorded, as they are not compressed."""
    receive: float = 30.0
    """How long it may take to receive a request."""
    in_thread: int = 64 * 1024
    """A larger request is decoded in a thread, so that others do not wait for it."""
    traces: int = 1000
    """Traces in one list."""
    trace_spans: int = 10_000
    """Spans of one trace that are shown."""
    decoding: otlp.Limits = otlp.DEFAULT_LIMITS
    """How many spans, and how large in their parts."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, int | float) and not value > 0:
                raise InvalidValue(f"limit {spec.name}", value, "more than 0")
        if self.body > self.inflated:
            raise InvalidValue("limit body", self.body, f"at most the limit inflated ({self.inflated})")
        if self.in_flight < 2 * self.inflated:
            rule = f"at least twice the limit inflated ({self.inflated}), or the largest request never fits"
            raise InvalidValue("limit in_flight", self.in_flight, rule)
