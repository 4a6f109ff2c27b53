"""Values of attributes as what they mean: text, counts, amounts, JSON, lists said as numbered names.

Each function takes any JSON and never raises. None: the value does not say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any

import msgspec

MAX_JSON = 1_000_000
"""Text longer than this (in characters) is not looked into."""
MAX_DEPTH = 64
"""Nor is JSON that is nested deeper; and numbered names with more parts are not put together."""
MAX_INT = 2**63 - 1
"""The largest number that every store can hold."""

_exact = Context(prec=80, Emin=-999_999, Emax=999_999, traps=[])


def text(value: Any) -> str | None:
    """Text that is not empty. A whole number is taken as its digits: ids are often numbers."""
    if isinstance(value, str):
        return value or None
    if type(value) is int and -MAX_INT <= value <= MAX_INT:
        return str(value)
    return None


def count(value: Any) -> int | None:
    """A whole number from 0, also if it is said as 12.0 or "12"."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdecimal() and len(value) < 20 else None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_INT else None


def scaled(value: Any, digits: int) -> int | None:
    """A number ≥ 0 times 10 to the power of ``digits``, exactly, the half rounded to even."""
    if isinstance(value, str) and len(value) <= 64:
        number = value
    elif type(value) is float or (type(value) is int and 0 <= value <= MAX_INT):
        number = repr(value)
    else:
        return None
    try:
        amount = Decimal(number, _exact)
    except InvalidOperation:
        return None
    if not amount.is_finite() or amount < 0 or amount.adjusted() + digits > 18:
        return None
    whole = int(amount.scaleb(digits, _exact).to_integral_value(ROUND_HALF_EVEN, _exact))
    return whole if whole <= MAX_INT else None


def json(value: Any) -> Any:
    """What JSON text says; a value that is no JSON text, or too large a one, as it is."""
    if not isinstance(value, str) or len(value) > MAX_JSON:
        return value
    try:
        parsed = msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return value
    deep = value.count("[") + value.count("{") > MAX_DEPTH and _deeper_than(parsed, MAX_DEPTH)
    return value if deep else parsed


def json_object(value: Any) -> dict[str, Any] | None:
    """An object, or the JSON text of one."""
    parsed = json(value)
    return parsed if isinstance(parsed, dict) else None


def json_list(value: Any) -> list[Any] | None:
    """A list, or the JSON text of one."""
    parsed = json(value)
    return parsed if isinstance(parsed, list) else None


def texts(value: Any) -> list[str] | None:
    """A list of texts, each once: a list, the JSON text of one, or one text."""
    parsed = json(value)
    items = parsed if isinstance(parsed, list) else [value]
    said = [item for item in map(text, items) if item is not None]
    return list(dict.fromkeys(said)) or None


def numbered(attributes: Mapping[str, Any], prefix: str) -> list[Any] | None:
    """The list that ``prefix.0.…``, ``prefix.1.…`` say, if they count from 0 without a gap.

    Names below it are objects, and lists in their turn where they are numbered.
    """
    start = f"{prefix}."
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.startswith(start):
            parts = name[len(start) :].split(".")
            if len(parts) <= MAX_DEPTH:
                _put(tree, parts, value)
    assembled = _lists(tree)
    return assembled if isinstance(assembled, list) else None


def _put(tree: dict[str, Any], parts: list[str], value: Any) -> None:
    """What is below a name wins over a value of its own, whichever comes first."""
    *above, last = parts
    for part in above:
        below = tree.get(part)
        if not isinstance(below, _Node):
            below = tree[part] = _Node()
        tree = below
    tree.setdefault(last, value)


class _Node(dict[str, Any]):
    """A level of names, as opposed to an object that is a value."""


def _lists(tree: dict[str, Any]) -> Any:
    whole = {name: _lists(below) if isinstance(below, _Node) else below for name, below in tree.items()}
    indices = [str(at) for at in range(len(whole))]
    if whole and all(at in whole for at in indices):
        return [whole[at] for at in indices]
    return whole


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            below
            for item in level
            if isinstance(item, dict | list)
            for below in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)
