"""How far it is: a bar for each queue, with the rate and the time that is left."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from toril.cli.show import errors, one_line
from toril.migrate.report import Told

T = TypeVar("T")

MOST_BARS = 8
"""More queues than these share one bar."""

OTHERS = ""

PATIENCE = 2.0
"""Seconds in which work that is told to stop may end by itself."""


class _HowFar(ProgressColumn):
    def render(self, task: Task) -> Text:
        of = f" of {task.total:,.0f}" if task.total else ""
        return Text(f"{task.completed:,.0f}{of}")


class _HowFast(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "", style="dim")


@contextmanager
def bars(quiet: bool) -> Iterator[Told]:
    """Bars on a terminal, the first few queues each with its own; nothing elsewhere."""
    tasks: dict[str, TaskID] = {}
    others: dict[str, tuple[int, int]] = {}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        _HowFar(),
        _HowFast(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=quiet or not errors.is_terminal,
    ) as progress:

        def told(queue: str, done: int, of: int) -> None:
            if queue not in tasks and len(tasks) >= MOST_BARS:
                others[queue] = done, of
                queue = f"{len(others)} others"
                done, of = (sum(each) for each in zip(*others.values(), strict=True))
                if OTHERS in tasks:
                    progress.update(tasks[OTHERS], description=queue)
                else:
                    tasks[OTHERS] = progress.add_task(queue)
                queue = OTHERS
            elif queue not in tasks:
                tasks[queue] = progress.add_task(one_line(queue), total=of or None)
            progress.update(tasks[queue], completed=done, total=of or None)

        yield told


async def interruptible(work: Coroutine[Any, Any, T]) -> T | None:
    """Work until it is done; None where Ctrl-C or SIGTERM has stopped it. What was done stays done."""
    return await _until_signal(lambda _: work, patience=0)


async def until_told(work: Callable[[Callable[[], bool]], Coroutine[Any, Any, T]]) -> T | None:
    """Work that looks whether it is to stop: Ctrl-C and SIGTERM say so. None where it took too long."""
    return await _until_signal(work, PATIENCE)


async def _until_signal(
    work: Callable[[Callable[[], bool]], Coroutine[Any, Any, T]], patience: float
) -> T | None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    with _on_signal(loop, stopped.set):
        working, stopping = asyncio.create_task(work(stopped.is_set)), asyncio.create_task(stopped.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not working.done() and patience:
            await asyncio.wait({working}, timeout=patience)
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait({working})
        return None


@contextmanager
def _on_signal(loop: asyncio.AbstractEventLoop, then: Callable[[], object]) -> Iterator[None]:
    signals = (signal.SIGINT, signal.SIGTERM)

    def once() -> None:
        then()
        for each in signals:  # should it hang, the next one does what it always does
            loop.remove_signal_handler(each)

    for each in signals:
        loop.add_signal_handler(each, once)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
