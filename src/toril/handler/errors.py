"""What a handler raises to say what kind of failure it is. Whatever else it raises may be tried again."""

from __future__ import annotations

from toril.errors import TorilError


class TransientError(TorilError):
    """It would work later. ``retry_after`` is when, in seconds from now, where that is known."""

    def __init__(self, message: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnrecoverableError(TorilError):
    """The job fails at once, without further attempts."""


class PolicyDenied(UnrecoverableError):
    """A rule forbids what the job asks for."""


class BudgetExceeded(UnrecoverableError):
    """What the job may cost is used up."""
