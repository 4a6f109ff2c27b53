"""What went wrong, as a :class:`StoreError` that says whether trying again can help.

The engine's own text repeats the statement with its values, and the driver's the address with them: tenants,
and what people wrote. So neither is in the error; a program that must see them sets the log level DEBUG.
"""

from __future__ import annotations

import logging

from toril.errors import TorilError
from toril.events.errors import StoreError

logger = logging.getLogger("toril.stores.clickhouse")

RETRYABLE = {
    "ABORTED": 236,
    "ALL_CONNECTION_TRIES_FAILED": 279,
    "ALL_REPLICAS_LOST": 415,
    "CANNOT_ALLOCATE_MEMORY": 173,
    "CANNOT_OPEN_FILE": 76,
    "CANNOT_SCHEDULE_TASK": 439,
    "CANNOT_WRITE_TO_FILE_DESCRIPTOR": 75,
    "DEADLOCK_AVOIDED": 473,
    "DNS_ERROR": 198,
    "KEEPER_EXCEPTION": 999,
    "MEMORY_LIMIT_EXCEEDED": 241,
    "NETWORK_ERROR": 210,
    "NOT_ENOUGH_SPACE": 243,
    "NO_FREE_CONNECTION": 203,
    "QUERY_WAS_CANCELLED": 394,
    "SERVER_OVERLOADED": 745,
    "SOCKET_TIMEOUT": 209,
    "TABLE_IS_READ_ONLY": 242,
    "TIMEOUT_EXCEEDED": 159,
    "TOO_MANY_PARTS": 252,
    "TOO_MANY_SIMULTANEOUS_QUERIES": 202,
    "TOO_MANY_UNEXPECTED_DATA_PARTS": 231,
    "UNFINISHED": 341,
    "UNKNOWN_STATUS_OF_INSERT": 319,
}
"""What passes: the server is busy, full, starting, or out of reach. All else is about the statement."""

PRESSED = {RETRYABLE[name] for name in ("TOO_MANY_PARTS", "SERVER_OVERLOADED", "MEMORY_LIMIT_EXCEEDED")}
"""Where coming back at once makes it worse."""

_CODES = frozenset(RETRYABLE.values())


def _without_values(record: logging.LogRecord) -> bool:
    record.exc_info = record.exc_text = None
    return True


def keep_values_out_of_logs() -> None:
    """What the driver logs of rows and statements that fail says that they did, and not what is in them.

    And it goes to those who listen, not to everybody's terminal.
    """
    drivers = logging.getLogger("clickhouse_connect")
    if not drivers.handlers:
        drivers.addHandler(logging.NullHandler())
    for part in ("transform", "_backend.http_sync"):
        logging.getLogger(f"clickhouse_connect.driver.{part}").addFilter(_without_values)


def store_error(what: str, place: str, problem: Exception) -> TorilError:
    """The error for callers. ``what`` could not be done at ``place``."""
    if isinstance(problem, TorilError):
        return problem
    logger.debug("could not %s", what, exc_info=problem)
    code = getattr(problem, "code", None)
    if isinstance(code, int):
        name = getattr(problem, "name", None) or "error"
        return StoreError(
            f"ClickHouse could not {what}: {name} (code {code})",
            retryable=code in _CODES,
            retry_after=1.0 if code in PRESSED else None,
        )
    if _is_about_data(problem):
        return StoreError(f"ClickHouse could not {what}: a value does not fit its column", retryable=False)
    return StoreError(f"ClickHouse at {place} could not be reached to {what} ({type(problem).__name__})")


def _is_about_data(problem: Exception) -> bool:
    """What the driver refuses before anything is sent, and what it was called wrongly with."""
    from clickhouse_connect.driver.exceptions import DataError, NotSupportedError, ProgrammingError

    wrong = (DataError, ProgrammingError, NotSupportedError, TypeError, ValueError, OverflowError)
    return isinstance(problem, (*wrong, AttributeError, LookupError))
