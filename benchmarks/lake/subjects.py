"""The projections that are replayed: one small and one large that are declared, and one in Python."""

from __future__ import annotations

import msgspec

from toril.events import (
    AnyEvent,
    Count,
    DeclaredProjection,
    FirstBy,
    FoldProjection,
    Maximum,
    Minimum,
    SetOf,
    Sum,
    path,
)
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.summary import TraceSummary

__all__ = ["Brief", "Pauses", "TraceSummary"]


class Brief(DeclaredProjection):
    """Numbers, a set, and a first: what one would ask of traces in a line of SQL."""

    name = "brief"
    event_types = frozenset({SPAN_RECORDED})

    spans = Count()
    errors = Count(where=path("data.status").equals(2))
    started_at = Minimum("data.start", int)
    ended_at = Maximum("data.end", int)
    input_tokens = Sum("data.ai.input_tokens")
    output_tokens = Sum("data.ai.output_tokens")
    cost = Sum("data.ai.cost")
    models = SetOf("data.ai.response_model", str, limit=64)
    trace_name = FirstBy("data.name", str, order=("data.start", "data.span_id"), order_kind=(int, str))


class Pause(msgspec.Struct, frozen=True):
    """What :class:`Pauses` knows of a trace."""

    ended: int = 0
    longest: int = 0
    pauses: int = 0
    after: str = ""


class Pauses(FoldProjection[Pause]):
    """The longest time from the end of a span to the start of the next one that came: order matters."""

    name = "pauses"
    state_type = Pause
    event_types = frozenset({SPAN_RECORDED})

    def initial(self) -> Pause:
        """Nothing yet."""
        return Pause()

    def apply(self, state: Pause, event: AnyEvent) -> Pause:
        """One more span."""
        data = event.data
        pause = data["start"] - state.ended if state.ended else 0
        if pause <= 0:
            return Pause(max(state.ended, data["end"]), state.longest, state.pauses, state.after)
        if pause <= state.longest:
            return Pause(data["end"], state.longest, state.pauses + 1, state.after)
        return Pause(data["end"], pause, state.pauses + 1, data["name"])
