"""What the queue commands' answers have in common."""

from __future__ import annotations

from rich.padding import Padding
from rich.text import Text

from toril.cli.show import one_line, say

STATE_STYLES = {"active": "cyan", "delayed": "yellow", "failed": "red", "completed": "green"}


def number(count: int | None, style: str = "") -> Text:
    """A number in a table; a nought steps back, and what is not known is a question."""
    if count is None:
        return Text("?", style="dim")
    return Text(f"{count:,}", style=style if count else "dim")


def so_many(count: int) -> str:
    """So many jobs."""
    return "1 job" if count == 1 else f"{count:,} jobs"


def version_text(version: str | None) -> str:
    """Who made a queue: ``bullmq 5.62.0``."""
    return one_line(version or "").replace(":", " ", 1)


def unwrapped(text: str | Text) -> Text:
    """Text whose lines are cut where the screen ends."""
    # Not said by the column: rich would then narrow its neighbours as well.
    made = text if isinstance(text, Text) else Text(text)
    made.no_wrap, made.overflow = True, "ellipsis"
    return made


def aside(text: str) -> None:
    """A remark below a table."""
    say(Padding(Text(text, style="dim"), (0, 0, 0, 1), expand=False))
