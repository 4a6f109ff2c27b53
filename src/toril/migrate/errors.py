"""What can stand in the way of a migration."""

from __future__ import annotations

from toril.connection import CommandRefused
from toril.errors import TorilError


class MigrationError(TorilError):
    """The migration cannot go on as it was asked for."""


class NotSafe(MigrationError):
    """Something that cannot be undone was asked for, and is not safe. Nothing was changed."""

    def __init__(self, what: str, reasons: list[str]) -> None:
        super().__init__(f"{what}: {'; '.join(reasons)}")
        self.reasons = reasons


class WorkersConnected(MigrationError):
    """Workers of the old queue are connected, and could run jobs that are copied."""


class Superseded(CommandRefused, MigrationError):
    """Another process has taken over: this one has stopped, and nothing is lost."""


class OtherSource(CommandRefused, MigrationError):
    """The destination is filled from another queue already."""


class GoingBack(CommandRefused, MigrationError):
    """A rollback is under way. It must end before anything can be copied again."""


class LinkedOutside(MigrationError):
    """A job belongs to a flow of which a queue is not moved along."""


SCRIPT_ERRORS = {"SUPERSEDED": Superseded, "OTHERSOURCE": OtherSource, "GOINGBACK": GoingBack}
"""The errors that the scripts state."""
