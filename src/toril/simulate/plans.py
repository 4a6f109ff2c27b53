"""What is going to be sent: spans as plain data, before any SDK has seen them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Value = str | bool | int | float | list[str]
Attributes = dict[str, Value]

SpanKind = Literal["internal", "server", "client", "producer", "consumer"]

SECOND = 1_000_000_000
"""Times are whole nanoseconds."""


@dataclass(frozen=True, slots=True)
class EventPlan:
    """Something that happens at one moment of a span."""

    name: str
    time: int
    """From the moment at which the run begins; negative: before."""
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """One span, and when it is sent."""

    span_id: int
    parent: int | None
    """The span above it."""
    remote: bool
    """Whether that one belongs to another service."""
    name: str
    kind: SpanKind
    service: str
    scope: str
    """The instrumentation that makes it."""
    start: int
    """From the moment at which the run begins; negative: before."""
    end: int
    attributes: Attributes
    events: tuple[EventPlan, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    """Traces and spans that it has to do with."""
    error: str | None = None
    ok: bool = False
    delay: float = 0.0
    """By how many seconds it is sent after the rest of its trace."""
    again: tuple[float, ...] = ()
    """After how many seconds it is sent once more."""


@dataclass(frozen=True, slots=True)
class TracePlan:
    """A trace: its spans, in the order in which they are sent."""

    index: int
    trace_id: int
    tenant: str
    scene: str
    """What the application does in it."""
    spans: tuple[SpanPlan, ...]

    @property
    def start(self) -> int:
        """When its first span begins."""
        return min(span.start for span in self.spans)

    @property
    def end(self) -> int:
        """When its last span ends."""
        return max(span.end for span in self.spans)
