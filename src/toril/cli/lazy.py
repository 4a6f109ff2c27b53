"""Groups whose commands are imported when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from toril.errors import TorilError


class Lazy(NamedTuple):
    """A command that is not imported yet."""

    module: str
    """Where it is, under its own name."""
    what: str
    """What it is for."""


class LazyGroup(click.Group):
    """Commands that are imported when they are called: they may need an extra that others do not."""

    def __init__(self, *args: Any, called: str, lazy: Mapping[str, Lazy], extra: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self._called, self._lazy, self._extra = called, lazy, extra

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._lazy:
            return None
        try:
            module = import_module(self._lazy[cmd_name].module)
        except ModuleNotFoundError as problem:
            if problem.name is None or problem.name.partition(".")[0] == "toril":
                raise
            raise TorilError(
                f"`{self._called} {cmd_name}` needs {problem.name}, which is not installed: "
                f"pip install 'toril[{self._extra}]'"
            ) from None
        found: click.Command = getattr(module, cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.what) for name, command in self._lazy.items()])
