"""What a collector answers: ``ExportTraceServiceResponse`` and ``google.rpc.Status``.

They are two fields each, a number and a text. So they are written here by hand: no generated class for
``Status`` comes with the OTLP package, and an answer needs no protobuf library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

LONGEST_MESSAGE = 4096
"""Characters of a message: senders log it."""
LONGEST_REASON = 500


def encode_response(refused: Sequence[str], *, json: bool, note: str = "") -> bytes:
    """The answer to a request: empty, or with how many spans were refused and why.

    ``note`` is a warning; it can stand alone.
    """
    message = _message(refused, note)
    if json:
        partial = {"rejectedSpans": str(len(refused)), "errorMessage": message}  # 64 bits: text
        return msgspec.json.encode({"partialSuccess": partial} if message else {})
    return _field(1, _fields(len(refused), message)) if message else b""


def encode_status(code: int, message: str, *, json: bool) -> bytes:
    """The body of a 4xx or 5xx answer. ``code`` is one of gRPC's; senders do not look at it."""
    if json:
        status: dict[str, Any] = {"code": code, "message": message}
        return msgspec.json.encode(status)
    return _fields(code, message)


def _message(refused: Sequence[str], note: str) -> str:
    """The reasons that there is room for, one per line, and how many more there are."""
    lines = [note[:LONGEST_REASON]] if note else []
    room = LONGEST_MESSAGE - 100
    for index, reason in enumerate(refused):
        line = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 1]}…"
        room -= len(line) + 1
        if room < 0:
            lines.append(f"… and {len(refused) - index} more")
            break
        lines.append(line)
    return "\n".join(lines)


def _fields(number: int, text: str) -> bytes:
    """A message with a whole number as its field 1 and a text as its field 2; neither is sent when empty."""
    raw = text.encode(errors="replace")
    return (b"\x08" + _varint(number) if number else b"") + (_field(2, raw) if raw else b"")


def _field(number: int, content: bytes) -> bytes:
    """A field with a length: text, bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
