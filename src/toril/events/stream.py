"""The events of one aggregate, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toril.aggregate import Aggregate
from toril.events.errors import OrderingError, ValidationError
from toril.events.event import AnyEvent
from toril.events.tenancy import check_aggregate_of


@dataclass(frozen=True, slots=True)
class StreamMetadata:
    """What can be said of a stream without its events."""

    event_count: int
    first_occurred_at: int | None
    """When its first event happened (ns); None where it has none."""
    last_occurred_at: int | None
    """When its last event happened (ns). Events are in the order in which they were stored."""


@dataclass(frozen=True, slots=True)
class EventStream:
    """Events of one aggregate: all of this aggregate, with versions that follow each other without a gap."""

    aggregate: Aggregate
    events: tuple[AnyEvent, ...] = ()
    after: int = 0
    """The version that the first event follows: 0 for a stream from the beginning."""

    def __post_init__(self) -> None:
        if type(self.after) is not int or self.after < 0:
            raise ValidationError("after", self.after, "a version, or 0 for the beginning")
        for index, event in enumerate(self.events):
            check_aggregate_of(event, self.aggregate, index)
            if event.version != self.after + index + 1:
                raise OrderingError(self.after + index + 1, event.version)

    @classmethod
    def of(cls, aggregate: Aggregate, events: Sequence[AnyEvent], after: int = 0) -> EventStream:
        """A stream of any sequence of events."""
        return cls(aggregate, tuple(events), after)

    def __iter__(self) -> Iterator[AnyEvent]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def tenant(self) -> str:
        """Whose events they are."""
        return self.aggregate.tenant

    @property
    def version(self) -> int:
        """The version of the last event; without events, the version before the place where they would be."""
        return self.after + len(self.events)

    @property
    def metadata(self) -> StreamMetadata:
        """How many there are, and when the first and the last one happened."""
        if not self.events:
            return StreamMetadata(0, None, None)
        return StreamMetadata(len(self.events), self.events[0].occurred_at, self.events[-1].occurred_at)
