"""Ending in order: the first signal asks for it, the second does not wait for it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any

from toril.cli.show import console


class Signals:
    """SIGTERM and Ctrl-C, from when it is made."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._ending: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._received.put_nowait, each)

    async def first(self, *others: Coroutine[Any, Any, None]) -> signal.Signals:
        """The first signal. Where one of the others ends before, that is an error, and is raised."""
        signalled = asyncio.create_task(self._received.get())
        tasks = [asyncio.create_task(other) for other in others]
        done, _ = await asyncio.wait({signalled, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in (signalled, *tasks):
            task.cancel()
        for task in tasks:
            if task in done:
                task.result()
        await asyncio.gather(*tasks, return_exceptions=True)
        return signalled.result()

    def end_at_the_next(self, said: str) -> None:
        """From now on, another signal ends the process at once."""
        self._ending = asyncio.create_task(self._end(said))

    async def _end(self, said: str) -> None:
        await self._received.get()
        console.print(said)
        os._exit(1)
