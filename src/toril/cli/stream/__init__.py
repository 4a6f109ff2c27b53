"""``toril stream …``: looking at stream queues, and keeping order in them."""

from __future__ import annotations

import click

from toril.cli.looks import InOrder
from toril.cli.stream.add import add
from toril.cli.stream.change import cancel, discard, redrive
from toril.cli.stream.jobs import dead, job, pending
from toril.cli.stream.ls import ls
from toril.cli.stream.schedules import schedule, schedules, unschedule
from toril.cli.stream.show import metrics, show
from toril.cli.stream.whole import pause, resume, trim

__all__ = ["stream"]


@click.group(cls=InOrder)
def stream() -> None:
    """Look at stream queues, and keep order in them.

    NAME is the queue's name. 'toril worker' runs the workers of stream queues, too.
    """


for _command in (
    *(ls, show, metrics, pending, dead, job, schedules),
    *(add, cancel, redrive, pause, resume, schedule, unschedule, trim),
    discard,
):
    stream.add_command(_command)
