"""What becomes of a job whose handler has failed."""

from __future__ import annotations

from typing import NamedTuple

from toril.handler import BudgetExceeded, PolicyDenied, TransientError, UnfitPayload, UnrecoverableError
from toril.stream.options import StreamOptions

LONGEST_ERROR = 2000
"""Characters of an error that are kept."""

_FOR_GOOD: tuple[tuple[type[BaseException], str], ...] = (
    (PolicyDenied, "policy"),
    (BudgetExceeded, "budget"),
    (UnfitPayload, "unfit"),
    (UnrecoverableError, "permanent"),
)


class Verdict(NamedTuple):
    """Try again after a while, or bury it."""

    attempts: int
    """Runs that have failed, this one included."""
    error: str
    delay: int | None
    """Milliseconds until it is tried again; None for never."""
    reason: str = ""
    """Why never."""


def verdict_on(problem: BaseException, attempts: int, retries: int | None, options: StreamOptions) -> Verdict:
    """What to do after a failure; ``attempts`` are those that failed before."""
    error = describe(problem)
    failed = attempts + 1
    for kind, reason in _FOR_GOOD:
        if isinstance(problem, kind):
            return Verdict(failed, error, None, reason)
    if failed > (options.retries if retries is None else retries):
        return Verdict(failed, error, None, "exhausted")
    after = problem.retry_after if isinstance(problem, TransientError) else None
    delay = options.backoff.after(failed) if after is None else max(0, round(after * 1000))
    return Verdict(failed, error, delay)


def describe(problem: BaseException) -> str:
    """An error in one line, with its kind."""
    text = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
    return text if len(text) <= LONGEST_ERROR else text[: LONGEST_ERROR - 1] + "…"
