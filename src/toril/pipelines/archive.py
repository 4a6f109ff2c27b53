"""The archive: a copy of every event, of whatever kind, before the log may be trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toril.events import BatchEventHandler, Event, HandlerContext, NewEvent
from toril.runtime import PATIENT, EventSourcing, RegisteredPipeline
from toril.stores.history import Recorded, WritableHistory

ARCHIVE = "archive/history"
"""The reader that retention can name: what it has read is kept for good."""

AT_ONCE = 256


class Archive(BatchEventHandler[Any]):
    """Keeps a copy of events. Kept again, an event is the same row."""

    def __init__(self, history: WritableHistory) -> None:
        self._history = history

    async def handle_many(self, events: Sequence[Event[Any]], _: HandlerContext) -> None:
        await self._history.write([_kept(event) for event in events])


def _kept(event: Event[Any]) -> Recorded:
    body = NewEvent(
        type=event.type,
        data=event.data,
        id=event.id,
        schema_version=event.schema_version,
        occurred_at=event.occurred_at,
        metadata=event.metadata,
    ).to_bytes()
    return Recorded(
        aggregate=event.aggregate,
        version=event.version,
        recorded_at=event.recorded_at,
        body=body,
        event_id=event.id,
        event_type=event.type,
    )


def register_archive(sourcing: EventSourcing, history: WritableHistory) -> RegisteredPipeline:
    """Have all events of an event sourcing copied."""
    return (
        sourcing.register_pipeline()
        .with_name("archive")
        .with_any_aggregate_type()
        .with_event_handler("history", Archive(history), concurrency=AT_ONCE, retry=PATIENT)
        .build()
    )
