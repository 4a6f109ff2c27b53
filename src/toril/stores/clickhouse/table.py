"""What the program knows of a table: its columns, in the order in which rows hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, ...]
"""Values of a table's columns. The last one is the body, as bytes."""

MOMENT = "DateTime64(9, 'UTC')"
"""Nanoseconds since 1970, from 0 to 2**63 - 1, written and read as whole numbers."""

LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the schema. A test compares it with the migrations."""

    name: str
    columns: Sequence[tuple[str, str]]
    """Names and types; ``TenantId`` first, the body last."""


def moment(time: int) -> int:
    """A time in a column: what is out of reach is the nearest that can be written (the body is exact)."""
    return min(max(time, 0), LARGEST)


def whole(number: int) -> int:
    """A whole number in a column of 64 bits, in the same way."""
    return min(max(number, -LARGEST), LARGEST)


def weight(row: Row) -> int:
    """About how many bytes a row has."""
    return len(row[-1]) + 256
