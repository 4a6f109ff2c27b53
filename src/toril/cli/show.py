"""How the command line shows things: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

SMALLEST = 8
"""No column is cut to less than this."""

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of writing."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table that fits the screen."""

    name: str
    right: bool = False
    """Numbers stand on the right."""
    least: int | None = None
    """It may be cut to this many characters before others are left out; None: it is never cut."""
    leave: int = 0
    """On a narrow screen the column with the highest number goes first; 0: it stays."""


def as_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON, for programs; without an indent, in one line."""
    # In one piece: several threads may have something to say.
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Say something beside the answer: on stderr, so that the answer can be piped."""
    errors.print(Text(safe(text), style="dim"), soft_wrap=True)


def complain(text: str) -> None:
    """An error among several, when the command goes on: one line each, as ``main`` shows the only one."""
    errors.print(Text.assemble(("error: ", "bold red"), one_line(text)), soft_wrap=True)


def say(*parts: RenderableType) -> None:
    """Print things below one another, as wide as there is room."""
    screen = _screen()
    for part in parts:
        screen.print(part)


def say_line(text: Text) -> None:
    """Print one line, cut where the screen ends."""
    _screen().print(text, no_wrap=True, overflow="ellipsis")


def width() -> int:
    """How wide to print."""
    return _screen().width


def _screen() -> Console:
    # A pipe has no edge: nothing needs to be cut there.
    edge = console.is_terminal or "COLUMNS" in os.environ
    return console if edge else Console(highlight=False, width=10_000)


def safe(text: str) -> str:
    """Text as a terminal may see it: control characters are spelled out, so that data cannot steer it."""
    return _UNSAFE.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def one_line(text: str) -> str:
    """Text for a cell of a table."""
    return safe(" ".join(text.split()))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print a table; columns whose name starts with ``>`` are numbers and stand on the right."""
    made = Table(
        title=title, title_justify="left", title_style="bold", header_style="bold", box=box.SIMPLE_HEAD
    )
    for column in columns:
        made.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        made.add_row(*row)
    console.print(made)


def fitted_table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> list[str]:
    """Print a table in which no line wraps; the names of columns for which there was no room."""
    sizes = _sizes(columns, rows)
    chosen, left_out = _fit(columns, sizes, width())
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    for place, size in chosen.items():
        column = columns[place]
        made.add_column(
            column.name,
            justify="right" if column.right else "left",
            width=size,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        made.add_row(*(row[place] for place in chosen))
    say(made)
    return left_out


def _sizes(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> list[int]:
    sizes = [cell_len(column.name) for column in columns]
    for row in rows:
        for place, cell in enumerate(row):
            size = cell.cell_len if isinstance(cell, Text) else cell_len(cell)
            sizes[place] = max(sizes[place], size)
    return sizes


def _fit(columns: Sequence[Column], sizes: Sequence[int], room: int) -> tuple[dict[int, int], list[str]]:
    """Widths by place, and what had to go: cut a little, leave columns out, then cut what is left."""
    chosen = dict(enumerate(sizes))
    left_out: list[str] = []

    def excess() -> int:
        return sum(chosen.values()) + 2 * len(chosen) + 2 - room

    def cut(floor: bool) -> None:
        while excess() > 0:
            widest = max(
                (place for place in chosen if _can_shrink(columns[place], chosen[place], floor)),
                key=lambda place: chosen[place],
                default=None,
            )
            if widest is None:
                return
            chosen[widest] -= 1

    cut(floor=False)
    while excess() > 0 and (going := [place for place in chosen if columns[place].leave]):
        gone = max(going, key=lambda place: columns[place].leave)
        left_out.append(columns[gone].name)
        chosen = {place: sizes[place] for place in range(len(sizes)) if place in chosen and place != gone}
        cut(floor=False)
    cut(floor=True)
    return chosen, left_out[::-1]


def _can_shrink(column: Column, size: int, floor: bool) -> bool:
    return column.least is not None and size > (SMALLEST if floor else max(column.least, SMALLEST))
