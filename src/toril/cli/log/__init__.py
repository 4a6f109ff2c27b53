"""``toril log …``: looking at event logs, and keeping order in them."""

from __future__ import annotations

import click

from toril.cli.log.ls import ls
from toril.cli.log.readers import readers, retire
from toril.cli.log.show import show
from toril.cli.log.tail import tail
from toril.cli.log.trim import trim
from toril.cli.log.upkeep import keep, resize
from toril.cli.looks import InOrder

__all__ = ["log"]


@click.group(cls=InOrder)
def log() -> None:
    """Look at event logs, and keep order in them.

    LOG is the log's name. 'toril tenant erase' removes a tenant's events.
    """


for _command in (ls, show, tail, readers, trim, resize, keep, retire):
    log.add_command(_command)
