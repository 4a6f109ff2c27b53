"""JSON as jobs and events carry it: compact and UTF-8.

What JSON has no type for is refused, or becomes its nearest: keys become text, tuples lists, dates text. nan
and inf are refused, where Node would write null.
"""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from math import isfinite
from typing import Any

import msgspec

from toril.errors import InvalidValue

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(field: str, value: Any) -> bytes:
    """A value as JSON; an :class:`InvalidValue` names what JSON cannot carry."""
    try:
        raw = _encoder.encode(value)
        if b"null" in raw and _has_no_number(value):
            raise ValueError("nan and inf would become null")
        return raw
    except RecursionError:
        rule = "it must be JSON: it contains itself, or is nested too deeply"
        raise InvalidValue(field, _short(value), rule) from None
    except (TypeError, ValueError, msgspec.MsgspecError) as problem:
        raise InvalidValue(field, _short(value), f"it must be JSON: {problem}") from None


def decode(raw: bytes) -> Any:
    """A value from JSON."""
    try:
        return _decoder.decode(raw)
    except msgspec.DecodeError:
        return json.loads(raw)  # slower, and it takes half characters, which Node writes


def _has_no_number(value: Any) -> bool:
    """Whether there is a float in it that JSON has no number for."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_no_number, value))
    is_object = isinstance(value, msgspec.Struct) or is_dataclass(value)
    return is_object and _has_no_number(msgspec.to_builtins(value))


def _short(value: Any) -> object:
    try:
        return repr(value)[:100]
    except RecursionError:
        return type(value).__name__
