"""JSON as job payloads have it: compact, UTF-8, and refused where it would not come back the same."""

from __future__ import annotations

from typing import Any

import msgspec

from toril.errors import InvalidValue

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(field: str, value: Any) -> bytes:
    """A value as JSON; an :class:`InvalidValue` names what JSON cannot carry."""
    try:
        return _encoder.encode(value)
    except RecursionError:
        rule = "it must be JSON: it contains itself, or is nested too deeply"
        raise InvalidValue(field, _short(value), rule) from None
    except (TypeError, ValueError, msgspec.MsgspecError) as problem:
        raise InvalidValue(field, _short(value), f"it must be JSON: {problem}") from None


def decode(raw: bytes) -> Any:
    """A value from JSON."""
    return _decoder.decode(raw)


def _short(value: Any) -> object:
    try:
        return repr(value)[:100]
    except RecursionError:
        return type(value).__name__
