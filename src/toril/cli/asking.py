"""Which server a command asks, and with whose key: the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

SERVER_VARIABLE = "TORIL_SERVER_URL"
KEY_VARIABLE = "TORIL_API_KEY"
DEFAULT_SERVER = "http://127.0.0.1:8000"

Command = Callable[..., Any]


def server_option(name: str) -> Callable[[Command], Command]:
    """The server's address."""
    return click.option(
        name,
        "server",
        metavar="URL",
        envvar=SERVER_VARIABLE,
        default=DEFAULT_SERVER,
        help=f"The server ({SERVER_VARIABLE}, else {DEFAULT_SERVER}).",
    )


key_option = click.option(
    "--key", metavar="KEY", envvar=KEY_VARIABLE, help=f"An API key of the server ({KEY_VARIABLE})."
)
