"""What the answers of several commands have in common."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.text import Text

from toril.cli.show import safe, say


class InOrder(click.Group):
    """Lists its commands as they were added: looking first, destroying last."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(self.commands)


def number(count: int | None, style: str = "") -> Text:
    """A number in a table; a nought steps back, and what is not known is a question."""
    if count is None:
        return Text("?", style="dim")
    return Text(f"{count:,}", style=style if count else "dim")


def unwrapped(text: str | Text) -> Text:
    """Text whose lines are cut where the screen ends."""
    # Not said by the column: rich would then narrow its neighbours as well.
    made = text if isinstance(text, Text) else Text(text)
    made.no_wrap, made.overflow = True, "ellipsis"
    return made


def aside(text: str) -> None:
    """A remark below a table."""
    say(Padding(Text(text, style="dim"), (0, 0, 0, 1), expand=False))


def size(count: float) -> str:
    """So many bytes."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} bytes" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def pretty(value: Any) -> Text:
    """A value as JSON that can be read."""
    shown = Text(safe(json.dumps(value, ensure_ascii=False, indent=2)))
    JSONHighlighter().highlight(shown)
    return shown


def section(title: str | Text, body: Text, most: int | None) -> None:
    """A text under a title; of more lines than ``most``, the first, and how many are left out."""
    lines = body.split("\n", allow_blank=True)
    cut = lines if most is None else lines[:most]
    head = Text(title, style="bold") if isinstance(title, str) else title
    say("", head, Padding.indent(Text("\n", overflow="fold").join(cut), 2))
    if len(cut) < len(lines):
        say(Text(f"  … {len(lines) - len(cut):,} more lines: --full", style="dim"))
