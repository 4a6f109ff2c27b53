"""The lake: the event log on Spark. Archived once, in tables for people, and all of history once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toril.lake.lake import Lake
    from toril.lake.sessions import session

__all__ = ["Lake", "session"]


def __getattr__(name: str) -> object:
    """Loaded when asked for: Spark's workers need a module or two of this package, and no session."""
    if name == "session":
        from toril.lake.sessions import session

        return session
    if name == "Lake":
        from toril.lake.lake import Lake

        return Lake
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
