"""``toril traces …``: looking at traces that a server has collected."""

from __future__ import annotations

import click

from toril.cli.looks import InOrder
from toril.cli.traces.ls import ls
from toril.cli.traces.show import show

__all__ = ["traces"]


@click.group(cls=InOrder)
def traces() -> None:
    """Look at the traces that a running server has collected.

    They are those of the tenant whose API key is given.
    """


for _command in (ls, show):
    traces.add_command(_command)
