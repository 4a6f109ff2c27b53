"""A job that was added, or is known by its id, with what can be done to it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from toril import codec
from toril.stream.errors import JobCancelled, JobDead, ResultNotKept, ResultTimeout
from toril.stream.results import LOOK_AGAIN
from toril.stream.views import JobView

if TYPE_CHECKING:
    from toril.stream.queue import StreamQueue


class JobHandle:
    """A job of a stream queue, from outside."""

    __slots__ = ("_queue", "id", "is_new")

    def __init__(self, queue: StreamQueue, job_id: str, *, is_new: bool) -> None:
        self._queue = queue
        self.id = job_id
        self.is_new = is_new
        """Whether the call that returned this has added it: not where one with its unique name was there."""

    def __repr__(self) -> str:
        return f"JobHandle({self._queue.name!r}, {self.id!r})"

    async def look(self) -> JobView:
        """What it is like now."""
        return await self._queue.look(self.id)

    async def state(self) -> str:
        """The state it is in now."""
        return (await self.look()).state

    async def cancel(self) -> str:
        """Cancel it: ``removed``, or ``asked`` where its worker was told to stop it."""
        return await self._queue.cancel(self.id)

    async def progress(self) -> Any:
        """How far its handler said it is; None where it said nothing, or a day ago."""
        store, local = await self._queue.place_of(self.id)
        raw = await store.redis.command("GET", store.keys.progress(local))
        return None if raw is None else codec.decode(raw)

    async def logs(self) -> list[str]:
        """The lines that its handler has logged; kept for a day."""
        store, local = await self._queue.place_of(self.id)
        return [line.decode() for line in await store.redis.command("LRANGE", store.keys.log(local), 0, -1)]

    async def result(self, timeout: float | None = None) -> Any:
        """Wait until it is done; what its handler returned.

        Raises :class:`JobDead` when it is a dead letter, :class:`JobCancelled` when it was cancelled,
        :class:`ResultTimeout` when it takes more than ``timeout`` seconds, :class:`ResultNotKept` when it was
        added without ``result_ttl``, and :class:`JobMissing` when there is none.
        """
        store, local = await self._queue.place_of(self.id)
        try:
            async with asyncio.timeout(timeout):
                with self._queue.results.waiting(store.keys.result(local)) as woken:
                    while True:
                        woken.clear()
                        view = self._end(await self.look())
                        if view is not None:
                            return view.value
                        with suppress(TimeoutError):
                            async with asyncio.timeout(LOOK_AGAIN):
                                await woken.wait()
        except TimeoutError:
            raise ResultTimeout(f"job {self.id} has not ended within {timeout:g} s") from None

    def _end(self, view: JobView) -> JobView | None:
        if view.state == "completed":
            return view
        if view.state == "dead":
            raise JobDead(self.id, view.reason, view.last_error)
        if view.state == "cancelled":
            raise JobCancelled(f"job {self.id} was cancelled")
        if not view.keeps_result:
            raise ResultNotKept(f"job {self.id} was added without result_ttl: its result will not be kept")
        return None
