"""Which server is asked for traces: --server, --key and --json, the same everywhere."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import click

from toril.cli.asking import KEY_VARIABLE, SERVER_VARIABLE, key_option, server_option
from toril.cli.careful import Refused
from toril.client import Client, KeyRefused, ServerAway
from toril.connection.embedded import default_home

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how to answer."""

    client: Client
    json: bool


def on_server(work: Callable[..., Awaitable[None]]) -> Command:
    """A command that asks a server: gives ``work`` a :class:`Target`."""

    @server_option("--server")
    @key_option
    @click.option("--tenant", metavar="TENANT", help="On the machine of 'toril up': no key needed.")
    @click.option("--json", "json_", is_flag=True, help="Print JSON.")
    @functools.wraps(work)
    def run(server: str, key: str | None, tenant: str | None, json_: bool, **given: Any) -> None:
        if tenant is not None:
            server, key = _running_here()

        async def ask() -> None:
            # A person waits for it, and can ask again.
            async with Client(server, key, tenant=tenant, attempts=1, timeout=60) as client:
                await work(Target(client, json_), **given)

        try:
            asyncio.run(ask())
        except ServerAway:
            raise Refused(
                f"no server answers at {server}: start one with 'toril up', or name it with --server "
                f"or {SERVER_VARIABLE}"
            ) from None
        except KeyRefused as problem:
            raise Refused(
                f"{problem}: give a key of this server with --key or {KEY_VARIABLE} "
                "('toril keys add TENANT' makes one)"
            ) from None

    return run


def _running_here() -> tuple[str, str]:
    """The address and the operator's secret of the server that has the data directory."""
    from toril.server.operator import find_running  # only here: it needs the extra of the server

    home = default_home()
    running = find_running(home)
    if running is None:
        raise Refused(f"--tenant asks the server that has {home}, and none runs: start it with 'toril up'")
    return running.url, running.secret
