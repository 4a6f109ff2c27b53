"""The work: a backlog of spans that belong to traces, and a projection of four fields."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

from toril import connect
from toril.aggregate import Aggregate
from toril.events import (
    Count,
    DeclaredProjection,
    EventHandler,
    HandlerContext,
    Maximum,
    Minimum,
    NewEvent,
    Sum,
)
from toril.events.event import AnyEvent
from toril.log import Append, Log

PARTITIONS = 16
EVENTS = 20_000
EVENTS_EACH = 10
"""Events of one aggregate; between two of them come one of each other aggregate."""
TENANTS = 4
KIND, TYPE = "trace", "lw.obs.span.recorded"
MODEL = "4bf92f3577b34da6" * 4
BULK = 2_000


class Summary(DeclaredProjection):
    """What is made of the spans of a trace."""

    cost = Sum("data.cost")
    spans = Count()
    started_at = Minimum("data.start", int)
    ended_at = Maximum("data.end", int)


class Nothing(EventHandler):  # type: ignore[type-arg]
    """Does nothing, at once."""

    async def handle(self, event: AnyEvent, context: HandlerContext) -> None:
        pass


class Arrivals(EventHandler):  # type: ignore[type-arg]
    """Notes how long events were on their way."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    async def handle(self, event: AnyEvent, context: HandlerContext) -> None:  # noqa: ARG002
        self.delays.append(time.monotonic() - event.data["sent"])


def aggregate(number: int) -> Aggregate:
    """A trace."""
    return Aggregate(f"tenant-{number % TENANTS}", KIND, f"{number:032x}")


def span(number: int) -> dict[str, object]:
    """What is known of a span."""
    return {"cost": number % 1000, "start": number * 10, "end": number * 10 + 7, "model": MODEL}


def numbers(events: int = EVENTS) -> Iterator[tuple[int, int]]:
    """For each event in turn, the number of its aggregate and its own."""
    aggregates = events // EVENTS_EACH
    return ((number % aggregates, number) for number in range(events))


def expected(number: int, events: int = EVENTS) -> tuple[int, int, int, int]:
    """The four fields of a trace in the end: cost, spans, start, end."""
    own = range(number, events, events // EVENTS_EACH)
    return sum(one % 1000 for one in own), len(own), own[0] * 10, own[-1] * 10 + 7


async def fill(url: str) -> None:
    """Append the backlog to an empty log."""
    async with connect(url) as redis, Log(redis, "log", partitions=PARTITIONS) as log:
        appends = [
            Append(aggregate(which), [NewEvent(type=TYPE, data=span(number)).to_bytes()])
            for which, number in numbers()
        ]
        for first in range(0, len(appends), BULK):
            for done in await log.append_many(appends[first : first + BULK]):
                if isinstance(done, BaseException):
                    raise done


fresh = count()
"""Numbers of aggregates for events that come one by one."""
