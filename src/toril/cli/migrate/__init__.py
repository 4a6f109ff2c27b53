"""``toril migrate …``: moving queues to names with a hash tag."""

from __future__ import annotations

import click

from toril.cli.looks import InOrder
from toril.cli.migrate.cleanup import cleanup
from toril.cli.migrate.copy import copy
from toril.cli.migrate.keys import keys
from toril.cli.migrate.plan import plan
from toril.cli.migrate.rollback import rollback
from toril.cli.migrate.status import status
from toril.cli.migrate.verify import verify
from toril.errors import InvalidValue

__all__ = ["migrate"]


class Verbs(InOrder):
    """Without a verb it is a dry run; ``--migrate`` and ``--cleanup`` are verbs too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags = [flag for flag in ("--migrate", "--cleanup") if flag in args]
        if len(flags) == 2:
            raise InvalidValue(
                "flags", "--migrate --cleanup", "one of them: copy first, verify, then clean up"
            )
        if flags:
            args = [
                "copy" if flags == ["--migrate"] else "cleanup",
                *(arg for arg in args if arg not in flags),
            ]
        elif not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["plan", *args]
        return super().parse_args(ctx, args)


@click.group(cls=Verbs, context_settings={"ignore_unknown_options": True})
def migrate() -> None:
    """Move BullMQ queues to names with a hash tag, without losing a job.

    Without a verb it is a dry run (plan); --migrate copies, --cleanup removes the old keys. QUEUES are old
    names or patterns ('trace_processing/*'); none means all queues without a tag. Queues that flows link
    move together, under one tag.

    Ends with 0 where all is done, 3 where something is left to do, 130 when interrupted.
    """


for _command in (plan, copy, verify, status, cleanup, rollback, keys):
    migrate.add_command(_command)
