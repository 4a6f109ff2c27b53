"""The event store on Toril's event log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import toril.log
from toril.aggregate import Aggregate
from toril.connection import Durability
from toril.connection.durability import Level
from toril.connection.errors import ConnectionFailed, DurabilityNotReached, OutcomeUnknown, OutOfMemory
from toril.events.errors import StoreError, VersionConflict
from toril.events.event import AnyEvent, AnyNewEvent, restore_event
from toril.events.stores import Appended, NewAppend, check_append, check_idempotency_key, check_read
from toril.events.stream import EventStream
from toril.log import Entry, HistoryTrimmed, Log, LogError, LogFull


class LogEventStore:
    """An :class:`~toril.events.EventStore` on a :class:`~toril.log.Log`.

    ::

        store = LogEventStore(Log(redis, "shop"))
        await store.append(Aggregate("acme", "order", "17"), [NewEvent(type="placed", data={})])
    """

    def __init__(self, log: Log) -> None:
        self.log = log

    async def append(
        self,
        aggregate: Aggregate,
        events: Sequence[AnyNewEvent],
        *,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
        durability: Durability | Level | None = None,
    ) -> Appended:
        """As :meth:`EventStore.append`; without ``durability``, the log's own counts."""
        check_append(aggregate, events, expected_version, idempotency_key)
        try:
            done = await self.log.append(
                aggregate,
                [event.to_bytes() for event in events],
                expected_version=expected_version,
                idempotency_key=idempotency_key,
                durability=durability,
            )
        except Exception as problem:
            said = _said(problem)
            if said is problem:
                raise
            raise said from problem
        return _appended(done)

    async def append_many(
        self, appends: Sequence[NewAppend], *, durability: Durability | Level | None = None
    ) -> list[Appended | Exception]:
        """As :meth:`EventStore.append_many`: those of a partition travel together."""
        outcomes: list[Appended | Exception] = []
        good: list[toril.log.Append] = []
        places: list[int] = []
        for place, one in enumerate(appends):
            try:
                check_append(one.aggregate, one.events, one.expected_version, one.idempotency_key)
                bodies = [event.to_bytes() for event in one.events]
                good.append(
                    toril.log.Append(one.aggregate, bodies, one.expected_version, one.idempotency_key)
                )
            except Exception as problem:  # noqa: BLE001 - it is the outcome of this one
                outcomes.append(problem)
            else:
                outcomes.append(_NOTHING_YET)
                places.append(place)
        for place, done in zip(places, await self.log.append_many(good, durability=durability), strict=True):
            if isinstance(done, toril.log.Appended):
                outcomes[place] = _appended(done)
            elif isinstance(done, Exception):
                outcomes[place] = _said(done)
            else:
                raise done
        return outcomes

    async def find_append(self, aggregate: Aggregate, idempotency_key: str) -> Appended | None:
        """As :meth:`EventStore.find_append`."""
        check_idempotency_key(idempotency_key)
        found = await self.log.find_append(aggregate, idempotency_key)
        return None if found is None else _appended(found)

    async def read(
        self, aggregate: Aggregate, from_version: int = 1, limit: int | None = None
    ) -> EventStream:
        """As :meth:`EventStore.read`, from the log, and where that was trimmed, from its history."""
        check_read(from_version, limit)
        try:
            entries = await self.log.read(aggregate, from_version, most=limit)
            # Where there is nothing from that version on, the stream says where it ends.
            after = from_version - 1
            if not entries:
                after = min(after, await self.log.version(aggregate))
        except (HistoryTrimmed, LogError) as problem:
            raise StoreError(str(problem), retryable=False) from problem
        except ConnectionFailed as problem:
            raise StoreError(f"the events could not be read: {problem}") from problem
        return EventStream.of(aggregate, [event_of(entry) for entry in entries], after)


def event_of(entry: Entry) -> AnyEvent:
    """The event that an entry of the log holds."""
    return restore_event(entry.body, entry.key, version=entry.version, recorded_at=entry.recorded_at)


_NOTHING_YET = StoreError("nothing is known of the append")


def _said(problem: Exception) -> Exception:
    """What the log said, as event stores say it."""
    match problem:
        case toril.log.VersionConflict():
            return VersionConflict(problem.expected, problem.actual)
        case LogFull():
            return StoreError(str(problem), retry_after=problem.retry_after)
        case DurabilityNotReached():
            there = cast("toril.log.Appended", problem.result)
            return DurabilityNotReached(str(problem), _appended(there))
        case ConnectionFailed() | OutcomeUnknown() | OutOfMemory():
            return StoreError(f"the events could not be appended: {problem}")
        case LogError():
            return StoreError(str(problem), retryable=False)
        case _:
            return problem


def _appended(done: toril.log.Appended) -> Appended:
    return Appended(done.first_version, done.version, done.recorded_at, done.repeated)
