"""Following the events of a queue."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from toril.connection import Connection
from toril.errors import InvalidValue, TorilError
from toril.keyspace import QueueKeys
from toril.queue.errors import QueueError
from toril.queue.events.errors import EventsClosed, ResultTimeout
from toril.queue.events.event import Event
from toril.queue.events.follower import Feed, Follower, Wait
from toril.queue.events.stream import START, Cursor, Stream, parse_place
from toril.queue.store import QueueStore

log = logging.getLogger("toril.queue")

_NOT_ENTERED = "nobody follows the events yet: use it as `async with QueueEvents(…) as events`"

Callback = Callable[[Event], object]
_C = TypeVar("_C", bound=Callback)


class QueueEvents(Follower):
    """Follows the events of a queue, Node's and Toril's, on a connection that the caller closes.

    ::

        async with QueueEvents("{mail}", redis) as events:

            @events.on("failed")
            async def tell(event: Event) -> None: ...

            async for event in events:
                print(event.name, event.job_id)

    ``after`` is the id of the last event that is known, or ``$`` for those that are yet to come. Reconnects,
    failovers and restarts are waited out, and it goes on from the last event it has seen. When events were
    trimmed from the stream before they were read, a warning is logged, and there is an event ``missed``.
    """

    def __init__(self, name: str, redis: Connection, *, prefix: str = "bull", after: str = "$") -> None:
        super().__init__(QueueStore(redis, QueueKeys(name, prefix)))
        if after != "$" and not re.fullmatch(r"[0-9]+(-[0-9]+)?", after):
            raise InvalidValue("after", after, "the id of an event, like 1700000000000-0, or $")
        self._after = None if after == "$" else parse_place(after)
        self._callbacks: dict[str, list[Callback]] = {}
        self._feed: Feed | None = None
        self._calling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._feed is not None:
            raise QueueError(f"the events of queue {self.queue!r} are followed already: make another object")
        stream = await Stream.look(self.store)
        if self._after is None:
            self.cursor = Cursor(stream.last, stream.added)
        else:
            # From the very start means from what is there: what was trimmed before is not missed.
            self.cursor = Cursor(self._after, stream.trimmed if self._after == START else None)
        missed = self.cursor.take((), stream, self.queue)
        self._feed = Feed(self, missed)
        if self._callbacks:
            self._calling = asyncio.create_task(self._call(Feed(self, missed)))
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop following; iterations end."""
        self._end(EventsClosed(f"the events of queue {self.queue!r} were closed"))
        # A callback may do this, too, and must not wait for itself.
        tasks = {task for task in (self._task, self._calling) if task is not None} - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, problem: TorilError) -> None:
        if self.problem is None and not isinstance(problem, EventsClosed):
            log.error("queue %s: its events are not followed any more: %s", self.queue, problem)
        super()._end(problem)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event. A second iteration goes on where the first was left."""
        if self._feed is None:
            raise EventsClosed(_NOT_ENTERED)
        event = await self._feed.next()
        if event is None:
            raise StopAsyncIteration
        return event

    def on(self, name: str) -> Callable[[_C], _C]:
        """Have a function called for each event of a name; it may be async.

        Calls are made one after the other, in the order of the events. What one raises is logged.
        """

        def register(callback: _C) -> _C:
            self._callbacks.setdefault(name, []).append(callback)
            if self._feed is not None and self._calling is None:
                self._calling = asyncio.create_task(self._call(Feed(self)))
            return callback

        return register

    async def _call(self, feed: Feed) -> None:
        with suppress(TorilError):  # it was logged when it ended the following
            while (event := await feed.next()) is not None:
                for callback in tuple(self._callbacks.get(event.name, ())):
                    await self._call_one(callback, event)

    async def _call_one(self, callback: Callback, event: Event) -> None:
        try:
            made = callback(event)
            if inspect.isawaitable(made):
                await made
        except (Exception, asyncio.CancelledError) as problem:
            own = asyncio.current_task()
            if isinstance(problem, asyncio.CancelledError) and own is not None and own.cancelling():
                raise  # it is we who are cancelled, not what the callback waited for
            log.exception("queue %s: a callback for event %s has failed", self.queue, event.name)

    async def wait_for(
        self, name: str | None = None, *, job_id: str | None = None, timeout: float | None = None
    ) -> Event:
        """The next event of a name, or of a job, or both, that comes from now on.

        For the end of a job, :meth:`Job.result` is better: it knows when the job is done already.
        """
        if self._feed is None:
            raise EventsClosed(_NOT_ENTERED)
        wait = Wait(job_id, () if name is None else (name,))
        try:
            with self.waiting(wait):
                async with asyncio.timeout(timeout):
                    while not wait.seen:
                        self.check()
                        await wait.woken.wait()
        except TimeoutError:
            what = f"{name or 'event'}" + (f" of job {job_id}" if job_id is not None else "")
            raise ResultTimeout(f"queue {self.queue!r}: no {what} has come within {timeout} s") from None
        return wait.seen[0]
