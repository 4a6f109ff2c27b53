"""``toril run module:sourcing``: run pipelines until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import click

from toril.cli.runtime.target import Target, load_pipelines, module_argument
from toril.cli.show import console
from toril.cli.signals import Signals
from toril.connection.open import URL_VARIABLE
from toril.errors import InvalidValue


@click.command()
@module_argument
@click.option("--pipeline", "only", multiple=True, help="Only this one; may be given several times.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="How many share it.")
@click.option("--url", help="The server, for an EventSourcing that does not name one (TORIL_REDIS_URL).")
@click.option("--no-upkeep", is_flag=True, help="Neither trim the log nor let quiet aggregates leave Redis.")
def run(module: str, only: tuple[str, ...], processes: int, url: str | None, no_upkeep: bool) -> None:
    """Run the commands, handlers and projections of pipelines.

    Any number of processes, on any number of machines, share the work. At SIGTERM or Ctrl-C nothing new is
    begun, what runs may end within the grace time, and the rest is given back. At a second signal it ends at
    once: others take over when the leases have run out.
    """
    if url:
        os.environ[URL_VARIABLE] = url
    target = load_pipelines(module)
    target.sourcing.works(*only)  # refuses names that it does not have
    if processes == 1:
        asyncio.run(_run(target, only or target.pipelines, upkeep=not no_upkeep))
        return
    if target.sourcing.in_memory:
        raise InvalidValue("--processes", processes, "pipelines in memory:// live in one process")
    sys.exit(_run_many(module, only, processes, no_upkeep))


async def _run(target: Target, pipelines: tuple[str, ...], *, upkeep: bool) -> None:
    signals = Signals()
    sourcing = target.sourcing
    async with sourcing, sourcing.worker(*pipelines, upkeep=upkeep) as worker:
        for name in pipelines:
            definition = sourcing.pipelines[name].definition
            for work in definition.works.values():
                console.print(f"processing [bold]{work.processor}[/]")
            for command in definition.commands:
                console.print(f"executing  [bold]{name}/command/{command}[/]")
        received = await signals.first(worker.wait())
        console.print(f"{received.name}: finishing what is under way; once more to end at once")
        signals.end_at_the_next("ended; others take over when the leases have run out")
        await worker.close()
    console.print("closed")


def _run_many(module: str, only: tuple[str, ...], processes: int, no_upkeep: bool) -> int:
    """Start processes, hand signals on, and end with the first that fails."""
    command = [sys.executable, "-m", "toril.cli", "run", module]
    for name in only:
        command += ["--pipeline", name]
    # One of them does the upkeep; more would do no harm.
    started = [
        subprocess.Popen(command + (["--no-upkeep"] if no_upkeep or place else []))
        for place in range(processes)
    ]

    def hand_on(number: int, _: object) -> None:
        for process in started:
            process.send_signal(number)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, hand_on)
    worst = 0
    for process in started:
        code = process.wait()
        if code and not worst:
            worst = code
            for other in started:
                other.terminate()
    return worst
