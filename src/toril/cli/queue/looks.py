"""What the queue commands' answers have in common."""

from __future__ import annotations

from toril.cli.show import one_line

STATE_STYLES = {"active": "cyan", "delayed": "yellow", "failed": "red", "completed": "green"}


def so_many(count: int) -> str:
    """So many jobs."""
    return "1 job" if count == 1 else f"{count:,} jobs"


def version_text(version: str | None) -> str:
    """Who made a queue: ``bullmq 5.62.0``."""
    return one_line(version or "").replace(":", " ", 1)
