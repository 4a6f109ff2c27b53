"""Which queues a command moves, and from where to where: the same options everywhere."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from toril.cli.careful import INTERRUPTED
from toril.cli.migrate.environment import TO_URL_VARIABLE, usual_url
from toril.cli.migrate.progress import bars, interruptible
from toril.cli.show import complain, errors, note
from toril.connection import Connection, connect
from toril.connection.open import URL_VARIABLE
from toril.migrate import Moves, Problem, choose_moves, read_mapping

LEFT = 3
"""The exit code where something is left to do."""

SHOWN = 20
"""So many problems are shown; --json has more."""

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Journey:
    """From where to where, and how to answer."""

    source: Connection
    destination: Connection
    prefix: str
    to_prefix: str
    json: bool


@dataclass(frozen=True, slots=True)
class Target:
    """The queues that are meant."""

    journey: Journey
    moves: Moves
    groups: list[list[str]]

    @property
    def source(self) -> Connection:
        """Where the old queues are."""
        return self.journey.source

    @property
    def destination(self) -> Connection:
        """Where the new ones are."""
        return self.journey.destination

    @property
    def json(self) -> bool:
        """Whether to print JSON."""
        return self.journey.json


def on_servers(work: Callable[..., Awaitable[None]]) -> Command:
    """A command on two servers, which may be one: gives ``work`` a :class:`Journey`."""

    @_server_options
    @functools.wraps(work)
    def run(
        url: str | None, to_url: str | None, prefix: str, to_prefix: str | None, json_: bool, **given: Any
    ) -> None:
        async def connected() -> None:
            async with connect(url or usual_url()) as source:
                if to_url is None:
                    await work(Journey(source, source, prefix, to_prefix or prefix, json_), **given)
                    return
                async with connect(to_url) as destination:
                    await work(Journey(source, destination, prefix, to_prefix or prefix, json_), **given)

        asyncio.run(connected())

    return run


def on_queues(work: Callable[..., Awaitable[None]]) -> Command:
    """A command on queues: gives ``work`` a :class:`Target`."""

    async def chosen(
        at: Journey, queues: Sequence[str], mapping: Path | None, tag: str | None, **given: Any
    ) -> None:
        names = read_mapping(mapping) if mapping else {}
        with bars(at.json) as told:
            found = await interruptible(
                choose_moves(
                    at.source,
                    at.destination,
                    queues,
                    prefix=at.prefix,
                    to_prefix=at.to_prefix,
                    given=names,
                    tag=tag,
                    other_server=at.destination is not at.source,
                    told=told,
                )
            )
        if found is None:
            note("stopped: nothing was changed")
            sys.exit(INTERRUPTED)
        await work(Target(at, *found), **given)

    command = on_servers(functools.wraps(work)(chosen))
    for option in (
        click.option("--tag", metavar="TAG", help="One hash tag for all these queues."),
        click.option(
            "--map",
            "mapping",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help='A JSON file of old and new names: {"event-sourcing": "{event_sourcing}"}.',
        ),
        click.argument("queues", nargs=-1),
    ):
        command = option(command)
    return command


def _server_options(command: Command) -> Command:
    for option in (
        click.option("--json", "json_", is_flag=True, help="Print JSON."),
        click.option("--to-prefix", help="BullMQ's key prefix for the new queues (default: the same)."),
        click.option("--prefix", default="bull", show_default=True, help="BullMQ's key prefix."),
        click.option(
            "--to-url",
            envvar=TO_URL_VARIABLE,
            help=f"The server of the new queues (default: {TO_URL_VARIABLE}, or the same).",
        ),
        click.option(
            "--url", help=f"The server (default: {URL_VARIABLE}, REDIS_CLUSTER_ENDPOINTS, REDIS_URL)."
        ),
    ):
        command = option(command)
    return command


rate_option = click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most so many a second."
)


def show_problems(problems: Sequence[Problem], count: int | None = None) -> None:
    """Problems of single jobs, at the end."""
    total = len(problems) if count is None else count
    for problem in problems[:SHOWN]:
        complain(f"{problem.queue} {problem.job}: {problem.what}")
    if total > SHOWN:
        errors.print(f"… {total - SHOWN:,} more: --json", style="dim")


def name_workers(source: str, workers: Sequence[str] | None) -> None:
    """Say which old workers there are."""
    if workers is None:
        note(f"the server does not say whether old workers of {source} are connected: it refuses CLIENT LIST")
    elif workers:
        shown = ", ".join(workers[:5]) + (f" and {len(workers) - 5} more" if len(workers) > 5 else "")
        note(f"old workers of {source} are connected: {shown}")


def so_many(count: int, what: str = "job") -> str:
    """A number of things."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
