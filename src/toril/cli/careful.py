"""Acting with care: asking first, going in steps, and stopping when told to."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from toril.cli.show import errors, safe
from toril.errors import TorilError

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has stopped."""


class Refused(TorilError):
    """The command cannot be carried out as it was given. Nothing was changed."""


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask first.")


async def make_sure(verb: str, question: str, yes: bool) -> None:
    """Ask on the terminal; without one, ``--yes`` must have been given."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(
            f"{verb} asks first, and there is no terminal to ask on: add --yes (nothing was changed)"
        )
    click.echo(f"{safe(question)} [y/N]: ", nl=False, err=True)
    if (await _line()).strip().lower() not in ("y", "yes"):
        raise Refused("nothing was changed")


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


def leave_if_stopped(walk: Walk) -> None:
    """End with the exit code of a command that was interrupted."""
    if walk.stopped:
        sys.exit(INTERRUPTED)


def _progress(quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} of {task.total:,}"),
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
