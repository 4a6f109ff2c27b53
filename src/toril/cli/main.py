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
    "aggregate": ("runtime.aggregate", "One aggregate of a pipeline: its events, and what they made."),
    "doctor": ("doctor", "Check Python, the server, Java, Spark and ClickHouse; say how to fix them."),
    "embedded": ("embedded", "The Valkey that Toril starts where no URL is given."),
    "keys": ("keys", "The API keys of tenants."),
    "lake": ("lake", "The event log on Spark: tables for people, and replay of all history."),
    "log": ("log", "Event logs: look at them, and look after them."),
    "migrate": ("migrate", "Move queues to names with a hash tag, without losing a job."),
    "pipelines": ("runtime.pipelines", "The pipelines of a program, and how they stand."),
    "processors": ("runtime.processors", "Handlers and projections: how far they are, and what failed."),
    "queue": ("queue", "Look at job queues, and change them."),
    "room": ("room", "Waiting rooms, and the seats behind them."),
    "run": ("runtime.run", "Run the commands, handlers and projections of pipelines."),
    "server": ("up", "Collect spans over HTTP; other processes process them."),
    "simulate": ("simulate", "Send traces of made-up LLM applications."),
    "slots": ("slots", "Which slot, and which server, a name belongs to."),
    "stream": ("stream", "Look at stream queues, and change them."),
    "tenant": ("tenant", "What concerns one tenant."),
    "traces": ("traces", "Look at the traces that a server has collected."),
    "up": ("up", "Collect spans over HTTP, and process them, all in one process."),
    "worker": ("worker", "Run workers of job queues and stream queues."),
}
"""Each command: its module in ``toril.cli``, and what it is for.

A module is imported when its command is called: it may need an extra that the others do not.
"""


class Commands(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        try:
            module = import_module(f"toril.cli.{COMMANDS[cmd_name][0]}")
        except ModuleNotFoundError as problem:
            if problem.name is None or problem.name.partition(".")[0] == "toril":
                raise
            raise TorilError(
                f"`toril {cmd_name}` needs {problem.name}, which is not installed: pip install 'toril[all]'"
            ) from None
        found: click.Command = getattr(module, cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in sorted(COMMANDS.items())])


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
