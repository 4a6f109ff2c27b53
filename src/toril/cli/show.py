"""How the command line shows things: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def as_json(value: Any) -> None:
    """Print a value as JSON, for programs."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


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
