"""The ``toril`` command and what all its subcommands share."""

from __future__ import annotations

import sys
from importlib import import_module

import click
from rich.text import Text

import toril
from toril.cli.show import errors
from toril.errors import TorilError

COMMANDS = {
    "aggregate": "toril.cli.runtime.aggregate:aggregate",
    "doctor": "toril.cli.doctor:doctor",
    "down": "toril.cli.embedded:down",
    "keys": "toril.cli.keys:keys",
    "log": "toril.cli.log:log",
    "pipelines": "toril.cli.runtime.pipelines:pipelines",
    "processors": "toril.cli.runtime.processors:processors",
    "queue": "toril.cli.queue:queue",
    "run": "toril.cli.runtime.run:run",
    "simulate": "toril.cli.simulate:simulate",
    "slots": "toril.cli.slots:slots",
    "tenant": "toril.cli.tenant:tenant",
    "up": "toril.cli.embedded:up",
    "worker": "toril.cli.worker:worker",
}
"""Each command, and where it is. It is imported when it is called: the others may need what is not there."""


class Commands(click.Group):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        where = COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, name = where.partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(toril.__version__, prog_name="toril")
def cli() -> None:
    """Work and events that must not be lost and must stay in order, on Redis and Redis Cluster.

    Without --url, commands use TORIL_REDIS_URL, and without that the embedded server in TORIL_HOME
    (default ~/.local/share/toril).
    """


def main() -> None:
    """Run the command line; an error of Toril's is one line, not a trace."""
    try:
        cli()
    except TorilError as problem:
        errors.print(Text.assemble(("error: ", "bold red"), str(problem)), soft_wrap=True)
        sys.exit(1)
