"""``toril worker module:app``: run workers until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable

import click

from toril.cli.loading import load
from toril.cli.show import console
from toril.connection.open import URL_VARIABLE
from toril.errors import InvalidValue
from toril.queue import Worker
from toril.stream import StreamWorker

AnyWorker = Worker | StreamWorker


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--url", help="The server, for workers that do not name one (TORIL_REDIS_URL).")
@click.option("--grace", type=float, help="Seconds that jobs under way get to end, at a signal.")
def worker(app: str, url: str | None, grace: float | None) -> None:
    """Run workers: APP in MODULE is a Worker or a StreamWorker, or a list of them.

    At SIGTERM or Ctrl-C they take no more jobs, let those under way end within the grace time, and hand the
    rest back. At a second signal they hand back at once.
    """
    if url:
        os.environ[URL_VARIABLE] = url
    asyncio.run(_work(_load(app), grace))


def _load(app: str) -> list[AnyWorker]:
    rule = "it names a module and a Worker or StreamWorker (or a list of them) in it, like shop.jobs:worker"
    found = load("MODULE:APP", app, rule)
    workers = [found] if isinstance(found, AnyWorker) else list(found) if isinstance(found, Iterable) else []
    if not workers or not all(isinstance(each, AnyWorker) for each in workers):
        raise InvalidValue("MODULE:APP", app, rule)
    return workers


async def _work(workers: list[AnyWorker], grace: float | None) -> None:
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, signals.put_nowait, each)
    started: list[AnyWorker] = []
    try:
        for made in workers:
            await made.start()
            started.append(made)
            name = made.keys.name if isinstance(made, Worker) else made.name
            console.print(f"working on [bold]{name}[/], {made.concurrency} at once")
        got = await signals.get()
        console.print(f"{got.name}: finishing what is under way; once more to hand it back at once")
        closing = asyncio.create_task(_close(started, grace))
        again = asyncio.create_task(signals.get())
        await asyncio.wait({closing, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not closing.done():
            closing.cancel()
            await _close(started, 0.0)
        else:
            await closing
    except BaseException:
        await _close(started, 0.0)
        raise
    console.print("closed")


async def _close(workers: list[AnyWorker], grace: float | None) -> None:
    await asyncio.gather(*(made.close(grace=grace) for made in workers))
