"""The ``toril`` command and what all its subcommands share."""

from __future__ import annotations

import sys

import click
from rich.text import Text

import toril
from toril.cli.doctor import doctor
from toril.cli.embedded import down, up
from toril.cli.keys import keys
from toril.cli.log import log
from toril.cli.queue import queue
from toril.cli.runtime.aggregate import aggregate
from toril.cli.runtime.pipelines import pipelines
from toril.cli.runtime.processors import processors
from toril.cli.runtime.run import run
from toril.cli.show import errors
from toril.cli.slots import slots
from toril.cli.tenant import tenant
from toril.cli.worker import worker
from toril.errors import TorilError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(toril.__version__, prog_name="toril")
def cli() -> None:
    """Work and events that must not be lost and must stay in order, on Redis and Redis Cluster.

    Without --url, commands use TORIL_REDIS_URL, and without that the embedded server in TORIL_HOME
    (default ~/.local/share/toril).
    """


for _command in (
    aggregate,
    doctor,
    down,
    keys,
    log,
    pipelines,
    processors,
    queue,
    run,
    slots,
    tenant,
    up,
    worker,
):
    cli.add_command(_command)


def main() -> None:
    """Run the command line; an error of Toril's is one line, not a trace."""
    try:
        cli()
    except TorilError as problem:
        errors.print(Text.assemble(("error: ", "bold red"), str(problem)), soft_wrap=True)
        sys.exit(1)
