"""What can go wrong with events, by what follows from it.

Every error says how grave it is (``category``), whether trying again can help (``retryable``), and how many
seconds to wait before that at least (``retry_after``). No text names a tenant.
"""

from __future__ import annotations

from enum import StrEnum

from toril.errors import InvalidValue, TorilError
from toril.handler import UnfitPayload


class Category(StrEnum):
    """How grave an error is."""

    CRITICAL = "critical"
    """Something is wrong that no attempt will put right: stop, and tell a person."""
    RECOVERABLE = "recoverable"
    """It may pass: try again."""
    NON_CRITICAL = "non-critical"
    """The events are stored. What was to be done with them is retried by itself, and fails nothing else."""


class EventSourcingError(TorilError):
    """Any error of this library. What its class says about it, one error can say otherwise."""

    category: Category = Category.RECOVERABLE
    retryable: bool = True
    retry_after: float | None = None
    """Seconds to wait before the next attempt, at least."""

    def __init__(
        self,
        message: str,
        *,
        category: Category | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        if category is not None:
            self.category = category
        if retryable is not None:
            self.retryable = retryable
        if retry_after is not None:
            self.retry_after = retry_after


class SecurityError(EventSourcingError):
    """A step across the wall between tenants. Refused; nothing was read or written."""

    category = Category.CRITICAL
    retryable = False

    def __init__(self, what: str, index: int | None = None) -> None:
        self.index = index
        """Which of the events it was, counted from 0."""
        super().__init__(f"{what} belongs to another tenant; nothing was done")


class ValidationError(EventSourcingError, InvalidValue):
    """Input that breaks a rule: the message names the field, the value and the rule. Nothing was changed."""

    category = Category.CRITICAL
    retryable = False

    def __init__(self, field: str, value: object, rule: str) -> None:
        InvalidValue.__init__(self, field, value, rule)


class ConfigurationError(EventSourcingError):
    """A projection, handler, command or upcaster that is declared in a way that cannot work."""

    category = Category.CRITICAL
    retryable = False


class CheckpointError(EventSourcingError):
    """A checkpoint cannot go from the state it is in to the one asked for."""

    category = Category.CRITICAL
    retryable = False


class OrderingError(EventSourcingError):
    """Events of one aggregate that are not 1, 2, 3 … without a gap."""

    category = Category.CRITICAL
    retryable = False

    def __init__(self, expected: int, actual: int, what: str = "the events are out of order") -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(f"{what}: version {expected} should come next, not {actual}")


class VersionConflict(EventSourcingError):
    """What is stored is not at the version that the call expected. Nothing was written.

    Read again, decide again, write again.
    """

    def __init__(self, expected: int, actual: int) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(f"version {expected} was expected, but it is at {actual}; nothing was written")


class HandlerError(EventSourcingError):
    """An event handler could not do its work. Raise it to say ``retryable`` and ``retry_after``."""

    category = Category.NON_CRITICAL


class ProjectionError(EventSourcingError):
    """A projection could not take an event."""

    category = Category.NON_CRITICAL


class StateUnreadable(ProjectionError):
    """A stored state that the projection cannot decode. It is never taken for the initial state."""

    category = Category.CRITICAL
    retryable = False


class PublishError(EventSourcingError):
    """Events could not be published. They are stored all the same."""

    category = Category.NON_CRITICAL


class StoreError(EventSourcingError):
    """A store could not answer; the error itself says whether trying again can help."""


class SchemaTooNew(EventSourcingError):
    """An event of a newer schema than this program knows. A newer version of the program can read it."""


class SchemaUnknown(EventSourcingError):
    """An event of an old schema that no upcaster leads on from, or one whose upcaster failed."""

    category = Category.CRITICAL
    retryable = False


def category_of(error: BaseException) -> Category:
    """How grave any exception is: bad input is critical, and what is unknown may pass."""
    if isinstance(error, EventSourcingError):
        return error.category
    return Category.CRITICAL if isinstance(error, InvalidValue | UnfitPayload) else Category.RECOVERABLE


def is_retryable(error: BaseException) -> bool:
    """Whether trying again can help after any exception; what is unknown may pass."""
    if isinstance(error, EventSourcingError):
        return error.retryable
    return not isinstance(error, InvalidValue | UnfitPayload)


def retry_after(error: BaseException) -> float | None:
    """Seconds to wait before the next attempt at least, where the error says so."""
    seconds = getattr(error, "retry_after", None)
    return float(seconds) if isinstance(seconds, int | float) else None
