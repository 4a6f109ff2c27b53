"""The server that a command works on, and how it answers: --url and --json, the same everywhere."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import click

from toril.connection import Connection, connect

CLICKHOUSE_VARIABLE = "TORIL_CLICKHOUSE_URL"

Command = Callable[..., Any]
Work = Callable[..., Awaitable[None]]
"""What a command does, in an event loop."""

url_option = click.option("--url", help="The server (default: TORIL_REDIS_URL, else the embedded one).")
json_option = click.option("--json", "json_", is_flag=True, help="Print JSON.")


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and how to answer."""

    redis: Connection
    json: bool


def on_server(work: Work) -> Command:
    """A command on a server: gives ``work`` a :class:`Place`. Comes last, and so do the options it adds."""

    @url_option
    @json_option
    @functools.wraps(work)
    def run(url: str | None, json_: bool, **given: Any) -> None:
        async def connected() -> None:
            async with connect(url) as redis:
                await work(Place(redis, json_), **given)

        asyncio.run(connected())

    return run
