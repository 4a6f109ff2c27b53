"""What happens in a queue, as BullMQ's stream of events tells it, and waiting for a job's result.

A reader remembers the id of the last entry it has seen, never "now": what happens between two reads, or
while a server is away, is read afterwards. The stream is bounded, so a reader that stays away for too long
loses entries; it notices, and says how many.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from toril import codec
from toril.connection import CommandRefused, Connection, OutcomeUnknown, ScriptBusy, Unavailable, Unreachable
from toril.connection.wire import Argument
from toril.errors import InvalidValue, TorilError
from toril.keyspace import QueueKeys
from toril.queue.errors import JobMissing, QueueError
from toril.queue.store import QueueStore

log = logging.getLogger("toril.queue")

AT_ONCE = 256
"""Entries in one read."""

BLOCK = 5.0
"""Seconds that a read waits for an entry. Then it is seen whether the stream is still the same."""

LOOK_AGAIN = 10.0
"""Seconds after which a job that is waited for is looked at. Draining a queue, for one, makes no event."""

PAUSE = 1.0
"""Seconds until the next try when a server was away for longer than the connection's patience."""

MISSED = "missed"
"""The one event of Toril's own: entries were trimmed away unseen; ``fields["count"]`` says how many."""

_NOT_ENTERED = "nobody follows the events yet: use it as `async with QueueEvents(…) as events`"

_PASSING = (Unavailable, Unreachable, OutcomeUnknown, ScriptBusy)


class JobFailed(QueueError):
    """The job that was waited for has failed for good. ``reason`` says why."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id} has failed: {reason}")
        self.job_id = job_id
        self.reason = reason


class ResultTimeout(QueueError, TimeoutError):
    """What was waited for, a job's end or an event, has not come in time. It may still come."""


class EventsClosed(QueueError):
    """Nobody follows the events: the :class:`QueueEvents` was closed, or never entered."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a queue."""

    id: str
    """Its place in the stream. ``QueueEvents(after=…)`` goes on from there."""
    name: str
    """``added``, ``waiting``, ``active``, ``progress``, ``completed``, ``failed``, … (a.7)"""
    job_id: str | None
    fields: Mapping[str, str]
    """Everything else it says, as it was written."""

    @classmethod
    def read(cls, entry: Sequence[Any]) -> Event:
        """From an entry of the stream."""
        flat = [text.decode(errors="replace") for text in entry[1]]
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        return cls(entry[0].decode(), fields.pop("event", ""), fields.pop("jobId", None), fields)

    @property
    def data(self) -> Any:
        """What a job said about its progress; the text ``data`` of any other event."""
        return self._value("data", decoded_in="progress")

    @property
    def progress(self) -> Any:
        """What a job said about its progress."""
        return self.data if self.name == "progress" else None

    @property
    def return_value(self) -> Any:
        """What a completed job returned; as text where it is not JSON."""
        return self._value("returnvalue", decoded_in="completed")

    @property
    def failed_reason(self) -> str | None:
        """Why a job failed."""
        return self.fields.get("failedReason")

    @property
    def prev(self) -> str | None:
        """The state the job came from."""
        return self.fields.get("prev")

    @property
    def delay(self) -> int | None:
        """When a delayed job is due (ms since 1970, for all that its name says)."""
        text = self.fields.get("delay")
        return int(float(text)) if text is not None else None

    def _value(self, field: str, decoded_in: str) -> Any:
        text = self.fields.get(field)
        return _value_of(text) if self.name == decoded_in else text


def _value_of(text: str | bytes | None) -> Any:
    """A value as JSON has it; text that is not JSON as it is."""
    if text is None:
        return None
    try:
        return codec.decode(text.encode() if isinstance(text, str) else text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text if isinstance(text, str) else text.decode(errors="replace")


# ---------------------------------------------------------------------------- places in a stream

_Id = tuple[int, int]
_START: _Id = (0, 0)


def _parse(text: str) -> _Id:
    time, _, sequence = text.partition("-")
    return int(time), int(sequence or 0)


def _text(place: _Id) -> str:
    return f"{place[0]}-{place[1]}"


class _Stream(NamedTuple):
    """A stream as it was at one moment."""

    first: _Id | None
    last: _Id
    """The id that was given last, also when that entry is trimmed away."""
    length: int
    added: int
    """How many entries were ever added."""

    @property
    def trimmed(self) -> int:
        """How many entries came before the first one that is there."""
        return self.added - self.length

    @classmethod
    async def look(cls, store: QueueStore) -> _Stream:
        """A queue's events, now."""
        try:
            flat = await store.redis.command("XINFO", "STREAM", store.keys.events, repeatable=True)
        except CommandRefused as problem:
            if "no such key" not in str(problem):
                raise
            return cls(None, _START, 0, 0)
        said = dict(zip(flat[::2], flat[1::2], strict=True))
        entry = said[b"first-entry"]
        first = _parse(entry[0].decode()) if entry else None
        last = _parse(said[b"last-generated-id"].decode())
        return cls(first, last, said[b"length"], said[b"entries-added"])


@dataclass(slots=True)
class _Cursor:
    """How far a reader is."""

    place: _Id
    count: int | None = None
    """How many entries were added up to there; None where nobody knows."""
    seen: _Stream | None = None
    """The stream as it was last seen."""

    def take(self, entries: Sequence[Any], stream: _Stream, queue: str) -> list[Event]:
        """Go past entries that were read just before ``stream`` was seen; their events.

        What was lost before (or already after) them is logged, and is an event.
        """
        before = self.place
        events = [Event.read(entry) for entry in entries]
        old, self.seen = self.seen or stream, stream
        # A stream that was trimmed stays so, and the first entry of any other remains the first.
        made_anew = not stream.trimmed and (old.trimmed > 0 or old.first not in (None, stream.first))
        if made_anew and (stream.first is None or stream.first <= before):
            # Its ids have begun again below ours: all of it is new, and what was read of it comes again.
            events = events if stream.first is None else []
            self.place, self.count, lost = _START, 0, None
        else:
            lost = self._pass([_parse(event.id) for event in events], stream)
        if lost == 0:
            return events
        what = "events may have gone unseen: its stream was trimmed, deleted or set back"
        if lost is not None:
            what = f"{lost} events were trimmed from its stream before they were read"
        log.warning("queue %s: after event %s, %s", queue, _text(before), what)
        fields = {} if lost is None else {"count": str(lost)}
        return [Event(_text(before), MISSED, None, fields), *events]

    def _pass(self, read: Sequence[_Id], stream: _Stream) -> int | None:
        """How many entries were lost; None: perhaps some."""
        before, known = self.place, None if self.count is None else self.count + len(read)
        self.place = read[-1] if read else before
        if stream.last < self.place:  # a failover has taken its end away
            self.place, self.count = stream.last, stream.added
            return None
        if stream.first is not None and stream.first <= before:
            # Trimming begins at the front, so nothing is lost behind an entry that is there.
            self.count = stream.added if self.place == stream.last else known
            return 0
        gone = sum(1 for each in read if stream.first is None or each < stream.first)
        self.count = stream.trimmed + len(read) - gone
        if stream.first is None:
            self.place = stream.last
        if known is None or self.count < known:  # the latter is another stream, made since
            return None if stream.trimmed or known else 0
        return self.count - known


# ---------------------------------------------------------------------------- following


class _Wait:
    """Someone who waits for events of one job, or of any."""

    def __init__(self, job_id: str | None, names: Collection[str]) -> None:
        self.job_id = job_id
        self.names = names
        self.seen: list[Event] = []
        self.woken = asyncio.Event()


class _Follower:
    """Reads a queue's events in a task of its own, one blocking read at a time, and tells who waits."""

    def __init__(self, store: QueueStore) -> None:
        self.store = store
        self.queue = store.keys.name
        self.cursor = _Cursor(_START)
        self.batch: Sequence[Event] = ()
        """What was read last."""
        self.turn = 0
        """How many batches were read."""
        self.problem: TorilError | None = None
        """Why it does not read any more."""
        self._waits: dict[str | None, set[_Wait]] = {}
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    async def _run(self) -> None:
        try:
            while self._is_wanted():
                await self._read()
        except TorilError as problem:
            self._end(problem)
        except BaseException:
            self._end(EventsClosed(f"the events of queue {self.queue!r} are not followed any more"))
            raise
        else:
            self._end(EventsClosed(f"nobody waits for events of queue {self.queue!r}"))

    async def _read(self) -> None:
        where = ("STREAMS", self.store.keys.events, _text(self.cursor.place))
        block = ("BLOCK", round(BLOCK * 1000))
        found = await self.fetch("XREAD", "COUNT", AT_ONCE, *block, *where, blocks_for=BLOCK)
        if found is None:
            return
        reply, stream = found
        events = self.cursor.take(reply[0][1] if reply else (), stream, self.queue)
        if events:
            self.batch, self.turn = events, self.turn + 1
            self._tell(events)
        self._pulse()

    async def fetch(self, *read: Argument, blocks_for: float | None = None) -> tuple[Any, _Stream] | None:
        """A reply, and the stream just after it; None when they cannot be had now, but perhaps soon."""
        redis = self.store.redis
        try:
            reply = await redis.command(*read, blocks_for=blocks_for, repeatable=True)
            return reply, await _Stream.look(self.store)
        except _PASSING as problem:
            log.warning("queue %s: its events cannot be read, trying again: %s", self.queue, problem)
            await asyncio.sleep(PAUSE)
            return None

    def _is_wanted(self) -> bool:
        return True

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            for key in {event.job_id, None}:
                for wait in self._waits.get(key, ()):
                    if event.name in wait.names or not wait.names:
                        wait.seen.append(event)
                        wait.woken.set()

    def _pulse(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _end(self, problem: TorilError) -> None:
        """Nothing more comes."""
        self.problem = self.problem or problem
        self._wake_all()
        self._pulse()

    def check(self) -> None:
        """Raise what has ended it, if anything has."""
        if self.problem is not None:
            raise self.problem.with_traceback(None)  # it is raised for many, who would all add to it

    def _wake_all(self) -> None:
        for wait in chain.from_iterable(self._waits.values()):
            wait.woken.set()

    @contextmanager
    def waiting(self, wait: _Wait) -> Iterator[None]:
        """Tell someone of the events that come meanwhile."""
        waits = self._waits.setdefault(wait.job_id, set())
        waits.add(wait)
        try:
            yield
        finally:
            waits.discard(wait)
            if not waits:
                del self._waits[wait.job_id]

    async def move(self) -> None:
        """Return after the next read."""
        await self._moved.wait()


class _Feed:
    """What one consumer has yet to see. One that does not keep up reads the stream by itself."""

    def __init__(self, follower: _Follower, first: Sequence[Event] = ()) -> None:
        self._follower = follower
        self._cursor, self._turn = replace(follower.cursor), follower.turn
        self._page = deque(first)

    async def next(self) -> Event | None:
        """The next event; None when the follower was closed."""
        follower = self._follower
        while not isinstance(follower.problem, EventsClosed):
            if self._page:
                return self._page.popleft()
            follower.check()
            if self._turn == follower.turn:
                await follower.move()
            elif self._turn == follower.turn - 1:
                self._page.extend(follower.batch)
                self._cursor, self._turn = replace(follower.cursor), follower.turn
            else:
                await self._load()
        return None

    async def _load(self) -> None:
        follower, before = self._follower, self._cursor.place
        goal, turn = replace(follower.cursor), follower.turn
        span = (f"({_text(before)}", _text(goal.place))
        found = await follower.fetch("XRANGE", follower.store.keys.events, *span, "COUNT", AT_ONCE)
        if found is None:
            return
        entries, stream = found
        if before <= goal.place and (stream.first is None or stream.first > goal.place):
            # What is lost beyond the goal is for the follower to count.
            stream = _Stream(None, goal.place, 0, goal.count or 0)
        self._page.extend(self._cursor.take(entries, stream, follower.queue))
        if len(entries) < AT_ONCE and before <= self._cursor.place:
            self._cursor, self._turn = goal, turn


Callback = Callable[[Event], object]
_C = TypeVar("_C", bound=Callback)


class QueueEvents(_Follower):
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
        self._after = None if after == "$" else _parse(after)
        self._callbacks: dict[str, list[Callback]] = {}
        self._feed: _Feed | None = None
        self._calling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._feed is not None:
            raise QueueError(f"the events of queue {self.queue!r} are followed already: make another object")
        stream = await _Stream.look(self.store)
        if self._after is None:
            self.cursor = _Cursor(stream.last, stream.added)
        else:
            # From the very start means from what is there: what was trimmed before is not missed.
            self.cursor = _Cursor(self._after, stream.trimmed if self._after == _START else None)
        missed = self.cursor.take((), stream, self.queue)
        self._feed = _Feed(self, missed)
        if self._callbacks:
            self._calling = asyncio.create_task(self._call(_Feed(self, missed)))
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
                self._calling = asyncio.create_task(self._call(_Feed(self)))
            return callback

        return register

    async def _call(self, feed: _Feed) -> None:
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
        wait = _Wait(job_id, () if name is None else (name,))
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


# ---------------------------------------------------------------------------- results

_ENDS = {"completed": (1, "returnvalue"), "failed": (2, "failedReason"), "removed": (-1, "")}
"""The events that end the wait for a result, as a code of :meth:`QueueStore.outcome`, and what they carry."""

_End = tuple[int, bytes | None]
"""How a job ended, as :meth:`QueueStore.outcome` says it."""

_RESULTS: WeakKeyDictionary[Connection, dict[str, _Results]] = WeakKeyDictionary()
"""Who follows the queues of a connection."""


class _Results(_Follower):
    """Follows a queue for all who wait for results there, as long as there are any."""

    @classmethod
    def of(cls, store: QueueStore, stream: _Stream) -> _Results:
        """The one for a queue on a connection; a new one begins at the end of ``stream``."""
        queues = _RESULTS.setdefault(store.redis, {})
        found = queues.get(store.keys.base)
        if found is None:
            found = queues[store.keys.base] = cls(store)
            found.cursor = _Cursor(stream.last, stream.added)
            found._task = asyncio.create_task(found._run())
        return found

    def _is_wanted(self) -> bool:
        # The read that is under way when the last one leaves is not cut short: the next one may come soon.
        return bool(self._waits)

    def _end(self, problem: TorilError) -> None:
        _RESULTS[self.store.redis].pop(self.store.keys.base)
        super()._end(problem)

    def _tell(self, events: Sequence[Event]) -> None:
        super()._tell(events)
        if any(event.name in (MISSED, "cleaned") for event in events):  # so any job may have ended
            self._wake_all()

    async def end_of(self, job_id: str, after: _Id) -> _End:
        """How a job ends that had not ended at a place in the stream."""
        wait = _Wait(job_id, _ENDS)
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

    async def _look_at(self, job_id: str, told: _Id) -> _End | None:
        code, value = await self.store.outcome(job_id)
        if code < 0:  # if it had finished before it went, an event that is on its way says how
            return await _read_end(self.store, job_id, told) or (code, None)
        return (code, value) if code else None


def _end_in(events: Iterable[Event], job_id: str, after: _Id) -> _End | None:
    """How a job ended after a place in the stream; what came before was an earlier run of it."""
    for event in events:
        if event.job_id == job_id and event.name in _ENDS and _parse(event.id) > after:
            code, field = _ENDS[event.name]
            return code, event.fields.get(field, "").encode()
    return None


async def _read_end(store: QueueStore, job_id: str, after: _Id) -> _End | None:
    entries = await store.redis.command("XRANGE", store.keys.events, f"({_text(after)}", "+")
    return _end_in(map(Event.read, entries), job_id, after)


async def result_of(store: QueueStore, job_id: str, timeout: float | None = None) -> Any:
    """What a job returns, when it is done. See :meth:`Job.result`."""
    try:
        async with asyncio.timeout(timeout):
            # In this order: what happens to the job after the second is in the stream after the first.
            stream = await _Stream.look(store)
            code, value = await store.outcome(job_id)
            if code == 0:
                code, value = await _Results.of(store, stream).end_of(job_id, stream.last)
            elif code < 0:
                code, value = await _read_end(store, job_id, stream.last) or (code, None)
    except TimeoutError:
        what = f"job {job_id} of queue {store.keys.name!r}"
        raise ResultTimeout(f"{what} has not finished within {timeout} s; it may still do so") from None
    if code == 1:
        return _value_of(value)
    if code == 2:
        raise JobFailed(job_id, (value or b"").decode(errors="replace"))
    raise JobMissing(f"there is no job {job_id} in queue {store.keys.name!r} (any more)", -1)
