"""What a person decided about an event that failed: retry it, or skip it.

A decision is an event itself, of an aggregate with the same tenant and id and the type ``toril.decisions``:
so it is in the same partition, processors meet it in order, and whoever replays decides the same.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from toril.aggregate import Aggregate
from toril.events.event import NewEvent
from toril.events.stream import EventStream
from toril.log.entry import Entry

DECISIONS = "toril.decisions"
"""The type of the aggregates that decisions belong to."""

EVENT_TYPE = "toril.processor.decided"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What is to become of a failed event."""

    processor: str
    """Its full name, ``pipeline/processor``."""
    aggregate_type: str
    version: int
    """The version of the event that failed."""
    decision: Literal["retry", "skip"]
    by: str = ""
    """Who decided."""
    reason: str = ""

    def to_event(self) -> NewEvent[Decision]:
        """As an event."""
        return NewEvent(type=EVENT_TYPE, data=self)

    @staticmethod
    def home(aggregate: Aggregate) -> Aggregate:
        """The aggregate that decisions about another one belong to."""
        return Aggregate(aggregate.tenant, DECISIONS, aggregate.id)


class _Recorded(msgspec.Struct):
    type: str
    data: Decision


_decoder = msgspec.json.Decoder(_Recorded)


def decisions_in(stream: EventStream) -> list[Decision]:
    """The decisions that a stream of events has."""
    return [msgspec.convert(event.data, Decision) for event in stream if event.type == EVENT_TYPE]


def decision_of(entry: Entry) -> tuple[str, Decision] | None:
    """The aggregate's key and the decision about it; None for an entry that is no decision."""
    tenant, kind, ident = entry.key.split(":", 2)
    if kind != DECISIONS:
        return None
    try:
        decision = _decoder.decode(entry.body).data
    except msgspec.MsgspecError:
        return None
    return f"{tenant}:{decision.aggregate_type}:{ident}", decision
