"""``toril room …``: waiting rooms, and the seats behind them."""

from __future__ import annotations

import click

from toril.cli.looks import InOrder
from toril.cli.room.change import pause, reset, resume, revoke, start
from toril.cli.room.check import check
from toril.cli.room.keys import key
from toril.cli.room.look import ls, show
from toril.cli.room.make import configure, create
from toril.cli.room.seats import seats

__all__ = ["room"]


@click.group(cls=InOrder)
def room() -> None:
    """Waiting rooms, and the seats behind them.

    EVENT is the room's name. People are let in by whatever serves the room: 'toril server', or a program.
    """


for _command in (ls, show, create, configure, pause, resume, start, revoke, reset, check, seats, key):
    room.add_command(_command)
