"""``toril queue …``: looking at job queues, and keeping order in them."""

from __future__ import annotations

import click

from toril.cli.looks import InOrder
from toril.cli.queue.add import add
from toril.cli.queue.change import delay, priority, promote, remove, retry
from toril.cli.queue.job import job, logs
from toril.cli.queue.jobs import jobs
from toril.cli.queue.ls import ls
from toril.cli.queue.show import show
from toril.cli.queue.whole import clean, drain, obliterate, pause, resume

__all__ = ["queue"]


@click.group(cls=InOrder)
def queue() -> None:
    """Look at job queues (BullMQ's, Node's and Python's), and keep order in them.

    NAME is the queue's name as Node has it. Where there is no such queue, but one with a hash tag
    ({collector} for collector), that one is used. On a cluster, names must have their tag.
    """


for _command in (
    *(ls, show, jobs, job, logs),
    *(add, retry, promote, priority, delay, pause, resume),
    *(remove, clean, drain, obliterate),
):
    queue.add_command(_command)
