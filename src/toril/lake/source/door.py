"""A log for code that does not run in an event loop: tasks and plans of Spark, and scripts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from toril.connection import Connection, connect
from toril.lake.source.places import exactly, firsts, tails
from toril.lake.source.positions import Marks, bounded, refuse_removed
from toril.log import Log
from toril.log.layout import existing_layout

T = TypeVar("T")


class Door:
    """An open log whose calls wait for their answer. Its event loop runs in a thread of its own.

    ::

        with Door(url, "shop") as log:
            upto = log.next_batch(after, 10_000)
    """

    def __init__(self, url: str | None, log_name: str) -> None:
        self._url = url
        self._name = log_name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="toril-lake-source", daemon=True)
        self._redis: Connection | None = None
        self.log: Log

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.do(self._open())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _open(self) -> None:
        self._redis = await connect(self._url, client_name="toril-lake")
        self.log = Log(self._redis, self._name)
        await existing_layout(self._redis, self.log.keys)

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Have something done in the event loop, and wait for it."""
        return self.begin(what).result()

    def begin(self, what: Coroutine[Any, Any, T]) -> Future[T]:
        """Have something begun in the event loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    def close(self) -> None:
        """Close the connection and end the thread."""
        try:
            self.do(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._redis is not None:
            await self._redis.close()

    def tails(self) -> Marks:
        """The last entry of each partition: see :func:`toril.lake.source.places.tails`."""
        return self.do(tails(self.log))

    def firsts(self) -> Marks:
        """The place before the first entry that is there, of each partition."""
        return self.do(firsts(self.log))

    def next_batch(
        self,
        after: Mapping[str, tuple[int, str]],
        most: int,
        tails: Mapping[str, tuple[int, str]] | None = None,
    ) -> Marks:
        """How far a batch of at most ``most`` entries goes, with the ids of its last entries."""
        there = self.tails() if tails is None else tails
        refuse_removed(self.do(self.log.layout()), after)
        return self.exactly(after, bounded(after, there, most), there)

    def exactly(
        self,
        after: Mapping[str, tuple[int, str]],
        upto: Mapping[str, tuple[int, str]],
        tails: Mapping[str, tuple[int, str]],
    ) -> Marks:
        """The same places with their ids, where :func:`bounded` left them out."""
        return self.do(exactly(self.log, after, upto, tails))
