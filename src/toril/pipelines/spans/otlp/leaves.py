"""Ids, numbers and bytes in JSON, in all the ways in which senders write them. None: it is none."""

from __future__ import annotations

import base64
from math import isfinite

from toril.pipelines.spans.otlp.values import NO_NUMBERS


def ident_of(raw: str | list[int] | dict[str, int], length: int) -> bytes | None:
    """The bytes of an id. How long a text is tells what it is: of 16 bytes, hex has 32, base64 22 or 24."""
    made: bytes | None
    try:
        if isinstance(raw, str):
            made = bytes.fromhex(raw) if len(raw) == 2 * length else bytes_of(raw)
        elif isinstance(raw, list):
            made = bytes(raw)
        else:
            made = bytes(raw[str(index)] for index in range(len(raw)))
    except (ValueError, OverflowError, KeyError):
        return None
    return made if made is not None and len(made) == length else None


def whole_of(raw: float | str | dict[str, int], least: int, most: int) -> int | None:
    """A whole number, exactly."""
    if isinstance(raw, str):
        digits = raw.removeprefix("-")
        if len(digits) > 20 or not (digits.isascii() and digits.isdigit()):
            return None
        made = int(raw)
    elif isinstance(raw, dict):
        if not raw.keys() >= {"high", "low"}:
            return None
        made = raw["high"] << 32 | raw["low"] & 0xFFFFFFFF
    elif isinstance(raw, int) or raw.is_integer():
        made = int(raw)
    else:
        return None
    return made if least <= made <= most else None


def fraction_of(raw: float | str) -> float | None:
    """A fraction, or one of those that are no number."""
    if isinstance(raw, str) and raw in NO_NUMBERS:
        return NO_NUMBERS[raw]
    try:
        made = float(raw)
    except (ValueError, OverflowError):
        return None
    return made if isfinite(made) else None


def bytes_of(raw: str) -> bytes | None:
    """Bytes of base64: of either alphabet, with or without its end marks."""
    text = raw.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return None
