"""What a person decided about an event that failed: retry it, or skip it.

A decision is an event itself, of an aggregate with the same tenant and id and the type ``toril.decisions``:
so it is in the same partition, processors meet it in order, and whoever replays decides the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

from toril.aggregate import Aggregate
from toril.events.event import UNREADABLE, NewEvent
from toril.events.stores import EventStore
from toril.log.entry import Entry
from toril.runtime.names import concerns, split_generation

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
    alone: bool = False
    """Whether it counts for this generation alone: readers saw a later one, and that one had taken it."""

    def concerns(self, processor: str) -> bool:
        """Whether it counts for a processor: also one about an earlier generation that readers saw."""
        return concerns(self.processor, processor) and not (self.alone and self.processor != processor)

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


async def decisions_about(store: EventStore, aggregate: Aggregate) -> list[tuple[str, Decision]]:
    """What was decided about the events of an aggregate, in order, as :func:`skipped` takes it."""
    made: list[tuple[str, Decision]] = []
    for event in await store.read(Decision.home(aggregate)):
        if event.type == EVENT_TYPE:
            with suppress(msgspec.ValidationError):  # nobody has heeded what cannot be read
                made.append((aggregate.key, msgspec.convert(event.data, Decision)))
    return [one for one in made if one[1].aggregate_type == aggregate.type]


def decision_of(entry: Entry) -> tuple[str, Decision] | None:
    """The aggregate's key and the decision about it; None for an entry that is no decision."""
    return decision_in(entry.key, entry.body)


def decision_in(key: str, body: bytes) -> tuple[str, Decision] | None:
    """The same, of an event that is not in the log any more: its aggregate's key, and its body."""
    tenant, kind, ident = key.split(":", 2)
    if kind != DECISIONS:
        return None
    try:
        decision = _decoder.decode(body).data
    except UNREADABLE:
        return None
    return f"{tenant}:{decision.aggregate_type}:{ident}", decision


class Skipped(NamedTuple):
    """An event that a person had a processor skip."""

    processor: str
    """Its full name, ``pipeline/processor``."""
    aggregate: str
    """Its key, ``tenant:type:id``."""
    version: int


def skipped(decisions: Iterable[tuple[str, Decision]], processor: str | None = None) -> frozenset[Skipped]:
    """What was skipped, by the decisions in a log: what :func:`decision_in` made of its events.

    It needs no server; those about one aggregate are in the order in which they were made. ``processor``: as
    this one decides, that is with what was decided about earlier generations of the same projection; None:
    everybody's, each by its own name.
    """
    skips: dict[Skipped, set[int]] = defaultdict(set)  # by which generations
    for key, decision in decisions:
        if processor is not None and not decision.concerns(processor):
            continue
        by = skips[Skipped(processor or decision.processor, key, decision.version)]
        generation = split_generation(decision.processor)[1]
        if decision.decision == "skip":
            by.add(generation)
        else:
            # What one generation has skipped is over for it. A later one may have been told to try it, and
            # then it is tried; where it failed again, it was skipped later, or waits.
            by -= {one for one in by if one < generation}
    return frozenset(one for one, by in skips.items() if by)
