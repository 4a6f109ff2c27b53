"""Times and numbers as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import click

from toril.errors import InvalidValue

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,18})(ms|s|m|h|d)?")
_WHOLE = re.compile(r"-?[0-9]{1,18}")
LONGEST = 36_500 * _UNITS["d"]

Reader = Callable[[click.Context, click.Parameter, str | None], int | None]
"""What click calls to read a value. An error of ours is one line that names the rule; click's are more."""


def duration(field: str, *, plain: bool = False) -> Reader:
    """Read a length of time, as milliseconds: ``90s``, ``15m``; with ``plain``, a bare number of ms too."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:  # noqa: ARG001
        return None if value is None else parse_duration(field, value, plain=plain)

    return read


def parse_duration(field: str, value: str, *, plain: bool = False) -> int:
    """The milliseconds that are meant."""
    found = _DURATION.fullmatch(value)
    if found is None or not (found[2] or plain):
        also = "; a number alone is milliseconds" if plain else ""
        raise InvalidValue(field, value, f"a whole number and its unit, like 90s, 15m, 2h or 7d{also}")
    time = int(found[1]) * _UNITS[found[2] or "ms"]
    if time > LONGEST:
        raise InvalidValue(field, value, "at most 36500d")
    return time


def whole(field: str, lowest: int, highest: int) -> Reader:
    """Read a whole number between two others."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:  # noqa: ARG001
        if value is None:
            return None
        if not _WHOLE.fullmatch(value) or not lowest <= int(value) <= highest:
            raise InvalidValue(field, value, f"a whole number from {lowest:,} to {highest:,}")
        return int(value)

    return read


def span(ms: int) -> str:
    """A length of time in one unit, which is as much as a glance takes in."""
    seconds = ms / 1000
    if ms < 1000:
        return f"{ms} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} d"


def ago(time: int | None, now: int) -> str:
    """A moment, seen from now."""
    if time is None:
        return ""
    if abs(time - now) < 1000:
        return "now"
    return f"{span(now - time)} ago" if time < now else f"in {span(time - now)}"


def local(time: int) -> str:
    """A moment on the clock of whoever looks."""
    try:
        moment = datetime.fromtimestamp(time // 1000, tz=UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return "beyond the calendar"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time % 1000:03} {moment:%z}"
