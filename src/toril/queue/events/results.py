"""Waiting for a job's result: one reader for all who wait in a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from toril.connection import Connection
from toril.errors import TorilError
from toril.queue.errors import JobMissing
from toril.queue.events.errors import JobFailed, ResultTimeout
from toril.queue.events.event import MISSED, Event, value_of
from toril.queue.events.follower import Follower, Wait
from toril.queue.events.stream import Cursor, Place, Stream, parse_place, place_text
from toril.queue.store import QueueStore

LOOK_AGAIN = 10.0
"""Seconds after which a job that is waited for is looked at. Draining a queue, for one, makes no event."""

_ENDS = {"completed": (1, "returnvalue"), "failed": (2, "failedReason"), "removed": (-1, "")}
"""The events that end the wait for a result, as a code of :meth:`QueueStore.outcome`, and what they carry."""

_End = tuple[int, bytes | None]
"""How a job ended, as :meth:`QueueStore.outcome` says it."""

FOLLOWED: WeakKeyDictionary[Connection, dict[str, Results]] = WeakKeyDictionary()
"""Who follows the queues of a connection."""


class Results(Follower):
    """Follows a queue for all who wait for results there, as long as there are any."""

    @classmethod
    def of(cls, store: QueueStore, stream: Stream) -> Results:
        """The one for a queue on a connection; a new one begins at the end of ``stream``."""
        queues = FOLLOWED.setdefault(store.redis, {})
        found = queues.get(store.keys.base)
        if found is None:
            found = queues[store.keys.base] = cls(store)
            found.cursor = Cursor(stream.last, stream.added)
            found._task = asyncio.create_task(found._run())
        return found

    def _is_wanted(self) -> bool:
        # The read that is under way when the last one leaves is not cut short: the next one may come soon.
        return bool(self._waits)

    def _end(self, problem: TorilError) -> None:
        FOLLOWED[self.store.redis].pop(self.store.keys.base)
        super()._end(problem)

    def _tell(self, events: Sequence[Event]) -> None:
        super()._tell(events)
        if any(event.name in (MISSED, "cleaned") for event in events):  # so any job may have ended
            self._wake_all()

    async def end_of(self, job_id: str, after: Place) -> _End:
        """How a job ends that had not ended at a place in the stream."""
        wait = Wait(job_id, _ENDS)
        with self.waiting(wait):
            # What happened up to the cursor, the others were told before we came.
            end = await _read_end(self.store, job_id, after) if self.cursor.place > after else None
            while end is None:
                self.check()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN):
                        await wait.woken.wait()
                wait.woken.clear()
                end = _end_in(wait.seen, job_id, after)
                if end is None:
                    end = await self._look_at(job_id, max(after, self.cursor.place))
            return end

    async def _look_at(self, job_id: str, told: Place) -> _End | None:
        code, value = await self.store.outcome(job_id)
        if code < 0:  # if it had finished before it went, an event that is on its way says how
            return await _read_end(self.store, job_id, told) or (code, None)
        return (code, value) if code else None


def _end_in(events: Iterable[Event], job_id: str, after: Place) -> _End | None:
    """How a job ended after a place in the stream; what came before was an earlier run of it."""
    for event in events:
        if event.job_id == job_id and event.name in _ENDS and parse_place(event.id) > after:
            code, field = _ENDS[event.name]
            return code, event.fields.get(field, "").encode()
    return None


async def _read_end(store: QueueStore, job_id: str, after: Place) -> _End | None:
    entries = await store.redis.command("XRANGE", store.keys.events, f"({place_text(after)}", "+")
    return _end_in(map(Event.read, entries), job_id, after)


async def result_of(store: QueueStore, job_id: str, timeout: float | None = None) -> Any:
    """What a job returns, when it is done. See :meth:`Job.result`."""
    try:
        async with asyncio.timeout(timeout):
            # In this order: what happens to the job after the second is in the stream after the first.
            stream = await Stream.look(store)
            code, value = await store.outcome(job_id)
            if code == 0:
                code, value = await Results.of(store, stream).end_of(job_id, stream.last)
            elif code < 0:
                code, value = await _read_end(store, job_id, stream.last) or (code, None)
    except TimeoutError:
        what = f"job {job_id} of queue {store.keys.name!r}"
        raise ResultTimeout(f"{what} has not finished within {timeout} s; it may still do so") from None
    if code == 1:
        return value_of(value)
    if code == 2:
        raise JobFailed(job_id, (value or b"").decode(errors="replace"))
    raise JobMissing(f"there is no job {job_id} in queue {store.keys.name!r} (any more)", -1)
