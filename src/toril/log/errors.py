"""What can go wrong with an event log."""

from __future__ import annotations

from toril.connection.errors import CommandRefused
from toril.errors import TorilError


class LogError(TorilError):
    """An event log refused, or found something that must not be."""


class VersionConflict(LogError):
    """The aggregate is not at the version that the append expected. Nothing was appended."""

    def __init__(self, expected: int, actual: int) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(f"the aggregate is at version {actual}, not {expected}; nothing was appended")


class TenantErased(LogError):
    """The tenant is being erased, and takes no events meanwhile."""


class LogFull(LogError, CommandRefused):
    """The partition holds as many entries as it may, because its readers are behind. Nothing was appended.

    Try again in ``retry_after`` seconds.
    """

    retry_after: float = 1.0


class SealedPartition(LogError, CommandRefused):
    """The partition takes no more events: the log goes on in a new epoch."""


class GapFound(LogError, CommandRefused):
    """Entries that a reader has not seen are missing. It must not go on as if nothing had been there."""


class LogDiverged(GapFound):
    """A failover has lost entries that a reader has seen, and the log goes on without them.

    What the reader made of them must be looked at; to go on, it starts from its registered position.
    """


class ReaderGone(LogError, CommandRefused):
    """The reader is not registered: it was retired, or a temporary one was silent for too long."""


class ReaderFenced(LogError, CommandRefused):
    """Another process reads for this reader now."""


class WrongPosition(LogError, CommandRefused):
    """A position that would move a reader backwards, past the tail, or to where no entry is."""


class HistoryTrimmed(LogError):
    """Events that were asked for are no longer in the log, and no history was configured that has them."""

    def __init__(self, wanted: int, first: int) -> None:
        self.wanted = wanted
        self.first = first
        """The first version that the log still has."""
        super().__init__(
            f"versions {wanted} to {first - 1} are no longer in the log; configure a history, "
            f"or read from version {first}"
        )


class UnknownForm(LogError):
    """An entry, or a whole log, in a form that a later Toril writes. Upgrade this one."""
