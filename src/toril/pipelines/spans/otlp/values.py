"""Values of attributes in the form in which they are recorded: see :data:`Attributes`."""

from __future__ import annotations

import base64
from math import isfinite, isnan
from typing import Any

from toril.errors import InvalidValue

BYTES, DOUBLE = "$bytes", "$double"
NO_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def recorded_bytes(value: bytes) -> dict[str, str]:
    """Bytes, as they are recorded."""
    return {BYTES: base64.b64encode(value).decode()}


def recorded_float(value: float) -> float | dict[str, str]:
    """A fraction, as it is recorded."""
    return value if isfinite(value) else {DOUBLE: no_number(value)}


def no_number(value: float) -> str:
    """The name of a fraction that is no number."""
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def recorded_object(value: dict[str, Any]) -> dict[str, Any]:
    """An object that was sent, as it is recorded: one that looks like a mark gets one more ``$``."""
    if len(value) == 1:
        [name] = value
        if _is_mark(name):
            return {f"${name}": value[name]}
    return value


def sent_object(value: dict[str, Any]) -> dict[str, Any] | bytes | float:
    """What was sent, of an object that is recorded."""
    if len(value) != 1:
        return value
    [(name, content)] = value.items()
    if name == BYTES:
        return _bytes(content)
    if name == DOUBLE:
        if content in NO_NUMBERS:
            return NO_NUMBERS[content]
        raise InvalidValue(DOUBLE, content, f"one of {', '.join(NO_NUMBERS)}")
    return {name[1:]: content} if _is_mark(name) else value


def size(value: Any) -> int:
    """How large a recorded value is: the bytes of its texts (bytes as base64), and 8 for anything else."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, list):
        return 8 + sum(map(size, value))
    if isinstance(value, dict):
        return 8 + sum(len(name.encode()) + size(content) for name, content in value.items())
    return 8


def _is_mark(name: str) -> bool:
    """Whether it is ``$bytes`` or ``$double``, with any number of ``$``."""
    return name.startswith("$") and name.lstrip("$") in ("bytes", "double")


def _bytes(content: Any) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (TypeError, ValueError):
        raise InvalidValue(BYTES, type(content).__name__, "base64 text") from None
