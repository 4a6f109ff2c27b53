"""Handlers: many events at once, those of one aggregate in order, tenants in turns over all partitions."""

from __future__ import annotations

import asyncio
import logging
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from toril.events.errors import HandlerError
from toril.events.event import AnyEvent
from toril.runtime.backend import Begin, Done
from toril.runtime.desk import LOOK_ANYWAY, Desk
from toril.runtime.fair import Turns
from toril.runtime.processing import line_up
from toril.runtime.slice import Chain, Slice, Slot
from toril.runtime.trouble import Troubles
from toril.runtime.work import HandlerWork

logger = logging.getLogger("toril.runtime")

AT_ONCE = 50
"""Events that one task handles, one after the other, where the handler waits for nothing."""

IN_A_ROW = 4
"""Events of one aggregate among them before it is another's turn: they are one change to commit."""

MANY, MANY_BYTES = 500, 4 * 1024 * 1024
"""Events of an aggregate that a handler takes together, and their bytes, passed by one event at most."""

QUICK = 0.001
"""Seconds after which a task takes no other event, so that others have their turn."""

T = TypeVar("T")


class Turn:
    """Which aggregate's event a task handles."""

    __slots__ = ("chain", "waited")

    def __init__(self, chain: Chain) -> None:
        self.chain: Chain | None = None
        self.waited = False
        """Whether the handler has waited for something."""
        self.begin(chain)

    def begin(self, chain: Chain) -> None:
        """Begin with an event of this one."""
        self.chain = chain
        chain.part.running += 1


class Handling:
    """See the module's text."""

    def __init__(self, desk: Desk, work: HandlerWork, troubles: Troubles) -> None:
        self._desk = desk
        self._work = work
        self._troubles = troubles
        self._line: Turns[Chain] = Turns()

    def stand_in_line(self, chain: Chain) -> None:
        """Handlers have one line for all partitions."""
        self._line.put(chain.tenant, chain)

    async def run(self) -> None:
        """Run handlers, until it is cancelled."""
        desk = self._desk
        while True:
            desk.wake_work.clear()
            # Whoever tries a parked event again needs one as well: it is kept only for as long as it is used.
            await desk.free.acquire()
            chain = None if desk.is_paused() else self._take_turn()
            if chain is not None:
                turn = Turn(chain)
                task = desk.spawn(chain.part, self._handle_some(turn))
                task.add_done_callback(partial(self._ended, turn))
                await asyncio.sleep(0)  # it begins before another is chosen, so that turns stay turns
                continue
            desk.free.release()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_ANYWAY):
                    await desk.wake_work.wait()

    def _ended(self, turn: Turn, task: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before it began never comes to its end.
        self._desk.free.release()
        self._leave(turn, task)

    def _leave(self, turn: Turn, task: asyncio.Task[None]) -> None:
        """A task is done with an event of an aggregate."""
        chain = turn.chain
        if chain is not None:
            turn.chain = None
            chain.part.running -= 1
            chain.part.tasks.discard(task)
            line_up(self._desk, self, chain)

    async def _handle_some(self, turn: Turn) -> None:
        """Handle an event, and where the handler waited for nothing, more of those that are in line."""
        task = asyncio.current_task()
        assert task is not None
        until = time.monotonic() + QUICK
        in_a_row = 0
        for _ in range(AT_ONCE):
            chain = turn.chain
            assert chain is not None
            await apart(self._handle(chain), turn)
            if turn.waited or time.monotonic() > until or task.cancelling():
                return
            if not chain.part.is_ours() or self._desk.is_paused():
                return
            in_a_row += 1
            if chain.slots and in_a_row < IN_A_ROW:
                continue
            in_a_row = 0
            self._leave(turn, task)
            following = self._take_turn()
            if following is None:
                return
            turn.begin(following)
            following.part.tasks.add(task)

    def _take_turn(self) -> Chain | None:
        """The next aggregate, of the tenant whose turn it is, in whatever partition."""
        held_up: list[Chain] = []
        found: Chain | None = None
        while self._line and found is None:
            chain = self._line.take()
            if not self._desk.still_has(chain.part):
                chain.rest()
            elif chain.part.running >= chain.part.room:
                held_up.append(chain)
            elif self._desk.tenant_is_paused(chain.key):
                self._troubles.park_paused(chain)
            else:
                found = chain
        for chain in held_up:
            self._line.put(chain.tenant, chain)
        return found

    async def _handle(self, chain: Chain) -> None:
        part = chain.part
        if not self._desk.still_has(part):  # the process has slept for longer than the lease, say
            return
        if self._work.takes_many and part.room > 1 and await self._handle_many(chain):
            return
        slot = chain.slots[0]
        entry = slot.entry
        try:
            event = self._work.event(entry)
            if part.room == 1:
                await part.noted(Begin(chain.key, entry.version))
            await self._work.handle(event, 1)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._troubles.park_failed(part, chain.give_up(), HandlerError("the handler was cancelled"))
        except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
            self._troubles.park_failed(part, chain.give_up(), problem)
        else:
            chain.slots.popleft()
            part.note(Done(chain.key, entry.version, entry.version, event.id), [slot])
            self._desk.counts.processed += 1

    async def _handle_many(self, chain: Chain) -> bool:
        """Handle events of an aggregate together; whether that was possible. If not, they go one by one."""
        part = chain.part
        slots = list(_many(chain.slots, min(part.room, MANY)))
        if len(slots) == 1 or slots[0].entry.version <= chain.alone_until:
            return False
        chain.alone_until = slots[-1].entry.version
        try:
            events = [self._work.event(slot.entry) for slot in slots]
            await self._work.handle_many(events)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return False
        except Exception as problem:  # noqa: BLE001 - which event it belongs to is found one by one
            logger.info("%s: %d events go one by one: %s", self._desk.processor, len(slots), problem)
            return False
        for _ in slots:
            chain.slots.popleft()
        part.note(Done(chain.key, events[0].version, events[-1].version, events[-1].id), slots)
        self._desk.counts.processed += len(slots)
        return True

    async def attempt(self, part: Slice, event: AnyEvent, attempt: int) -> bytes | None:
        """One more attempt at an event."""
        assert not part.careful
        try:
            await self._work.handle(event, attempt)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise HandlerError("the handler was cancelled") from None
        return None


def _many(slots: Iterable[Slot], most: int) -> Iterator[Slot]:
    size = 0
    for slot in islice(slots, most):
        yield slot
        size += len(slot.entry.body)
        if size >= MANY_BYTES:
            return


@types.coroutine
def apart(work: Coroutine[Any, Any, T], turn: Turn) -> Generator[Any, Any, T]:
    """Await something in a context of its own, as a task has one: what it sets there, no other sees."""
    run = copy_context().run
    resume: Callable[..., Any] = work.send
    given: Any = None
    while True:
        try:
            asked = run(resume, given)
        except StopIteration as end:
            made: T = end.value
            return made
        turn.waited = True
        try:
            given = yield asked
        except GeneratorExit:
            work.close()
            raise
        except BaseException as problem:  # noqa: BLE001 - it is passed on
            resume, given = work.throw, problem
        else:
            resume = work.send


def is_cancelled() -> bool:
    """Whether it is this task that is to end, and not something that a handler has waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
