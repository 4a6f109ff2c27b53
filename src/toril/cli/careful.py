"""Acting with care: asking first, going in steps, and stopping when told to."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from toril.cli.show import errors, safe
from toril.errors import TorilError

T = TypeVar("T")

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has stopped."""


class Refused(TorilError):
    """The command cannot be carried out as it was given. Nothing was changed."""


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask first.")


async def make_sure(verb: str, question: str, yes: bool, *, warning: str = "") -> None:
    """Ask on the terminal; without one, ``--yes`` must have been given."""
    if yes:
        return
    _require_terminal(verb)
    _warn(warning)
    click.echo(f"{safe(question)} [y/N]: ", nl=False, err=True)
    if (await _line()).strip().lower() not in ("y", "yes"):
        raise Refused("nothing was changed")


async def make_sure_by_name(verb: str, warning: str, name: str, yes: bool) -> None:
    """Ask for a name to be typed; without a terminal, ``--yes`` must have been given."""
    if yes:
        return
    _require_terminal(verb)
    _warn(warning)
    click.echo(f"Type {safe(name)} to go on: ", nl=False, err=True)
    if (await _line()).rstrip("\n") != name:
        raise Refused("nothing was changed")


def _require_terminal(verb: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(
            f"{verb} asks first, and there is no terminal to ask on: add --yes (nothing was changed)"
        )


def _warn(warning: str) -> None:
    if warning:
        errors.print(Text(safe(warning)))


async def _line() -> str:
    """A line that is typed; none at Ctrl-C or Ctrl-D."""
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    # Not input(): Ctrl-C could come just before it begins to read, and would go unnoticed.
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
        line = sys.stdin.readline()
    except asyncio.CancelledError:  # what asyncio.run makes of Ctrl-C
        line = ""
    finally:
        loop.remove_reader(sys.stdin)
    if not line:
        click.echo(err=True)
    return line


@dataclass(slots=True)
class Walk:
    """How far something went that is done in steps."""

    done: int = 0
    stopped: bool = False
    """By Ctrl-C."""


Step = Callable[[], Awaitable[tuple[int, bool]]]
"""Does a part; how much that was, and whether there is more."""


async def in_steps(doing: str, total: int, step: Step, *, quiet: bool) -> Walk:
    """Take steps until there is nothing more to do, or Ctrl-C; on a terminal, show how far it is."""
    walk = Walk()
    with _interruptible() as stop, _progress(quiet) as progress:
        task = progress.add_task(doing, total=total)
        more = True
        while more and not stop.is_set():
            count, more = await step()
            walk.done += count
            progress.update(task, completed=walk.done, total=max(total, walk.done))
        walk.stopped = more
    return walk


Told = Callable[[int, int], None]
"""Says how far a work is: so much, of so much."""


async def with_progress(
    doing: str, work: Callable[[Told], Coroutine[Any, Any, T]], *, quiet: bool
) -> T | None:
    """Do something long that tells how far it is; None where Ctrl-C has stopped it."""
    with _interruptible() as stop, _progress(quiet) as progress:
        task = progress.add_task(doing, total=None)

        def told(done: int, of: int) -> None:
            progress.update(task, completed=done, total=max(of, done))

        working, stopping = asyncio.create_task(work(told)), asyncio.create_task(stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait({working})
        return None


async def until_signal(work: Coroutine[Any, Any, None]) -> signal.Signals | None:
    """Work until it is done, or until a signal says to stop, which is returned."""
    loop, got = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for each in signals:
        loop.add_signal_handler(each, got.put_nowait, each)
    working, stopping = asyncio.create_task(work), asyncio.create_task(got.get())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
        stopping.cancel()
        working.cancel()
        await asyncio.wait({working, stopping})
    if not working.cancelled():
        working.result()
    return None if stopping.cancelled() else stopping.result()


def leave_if_stopped(walk: Walk) -> None:
    """End with the exit code of a command that was interrupted."""
    if walk.stopped:
        sys.exit(INTERRUPTED)


class _HowFar(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{task.completed:,.0f} of {task.total:,.0f}")


def _progress(quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        _HowFar(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=quiet or not errors.is_terminal,
    )


@contextmanager
def _interruptible() -> Iterator[asyncio.Event]:
    """An event that Ctrl-C sets, so that no step is cut in the middle."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def interrupted() -> None:
        stop.set()
        # Should a step hang, the next Ctrl-C does what it always does.
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)
