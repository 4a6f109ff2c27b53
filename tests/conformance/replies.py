"""What an operation replied, and where two replies differ.

A reply is ``{"ok": value}`` or ``{"error": {"name", "message", "code"?}}``. Errors agree when their codes
do (``None`` for what BullMQ's clients find out by themselves): the wording is each client's own.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.dump import TTL_TOLERANCE, stacks

Reply = dict[str, Any]

_TIMES = frozenset({"ttl", "limitedFor"})


def crashed(reply: Reply) -> bool:
    """Whether the script broke off half-way: an error of the server, not one of BullMQ's codes."""
    return "error" in reply and reply["error"]["name"] == "ReplyError"


def reply_difference(left: Reply, right: Reply, *, tolerance: int = TTL_TOLERANCE) -> str | None:
    """How two replies to one operation differ, or None."""
    if "error" in left and "error" in right:
        codes = [reply["error"].get("code") for reply in (left, right)]
        return None if codes[0] == codes[1] else f"errors {left['error']} and {right['error']}"
    if ("error" in left) != ("error" in right):
        return f"{left} and {right}"
    return _difference(left["ok"], right["ok"], "", tolerance)


def _difference(a: Any, b: Any, path: str, tolerance: int) -> str | None:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted(a.keys() | b.keys()):
            if name not in a or name not in b:
                return f"{path}.{name}: only in {'the first' if name in a else 'the second'}"
            x, y = _normal(name, a[name]), _normal(name, b[name])
            if name in _TIMES and abs(x - y) <= tolerance and (x > 0) == (y > 0):
                continue
            if found := _difference(x, y, f"{path}.{name}", tolerance):
                return found
        return None
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return next((d for i, (x, y) in pairs if (d := _difference(x, y, f"{path}[{i}]", tolerance))), None)
    return None if a == b else f"{path}: {a!r} and {b!r}"


def _normal(name: str, value: Any) -> Any:
    """A part of a reply without what must differ."""
    match name, value:
        case "stacktrace", list():
            return stacks(value)
        case "unprocessed", list():  # the members of a set, in no order
            return sorted(value)
        case "problems", list():
            return [problem.get("code") for problem in value]
        case _:
            return value
