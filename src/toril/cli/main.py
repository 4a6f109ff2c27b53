"""The ``toril`` command and what all its subcommands share."""

from __future__ import annotations

import sys

import click
from rich.text import Text

import toril
from toril.cli.lazy import Lazy, LazyGroup
from toril.cli.show import errors, safe
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
"""Each command: its module in ``toril.cli``, and what it is for."""


@click.group(
    cls=LazyGroup,
    called="toril",
    lazy={name: Lazy(f"toril.cli.{module}", what) for name, (module, what) in COMMANDS.items()},
    extra="all",
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
        errors.print(Text.assemble(("error: ", "bold red"), safe(str(problem))), soft_wrap=True)
        sys.exit(1)
