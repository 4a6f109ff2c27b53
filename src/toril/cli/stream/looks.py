"""What the answers of the stream commands have in common."""

from __future__ import annotations

from datetime import datetime

from rich.text import Text

from toril.cli.times import span
from toril.stream import PartitionMetrics

STYLES = {"running": "cyan", "delayed": "yellow", "dead": "red", "completed": "green", "cancelled": "yellow"}
"""By state."""


def so_many(count: int, what: str = "job") -> str:
    """So many jobs, or letters."""
    return f"1 {what}" if count == 1 else f"{count:,} {what}s"


def drains(metrics: PartitionMetrics) -> str | Text:
    """When nothing will be left, as it goes now."""
    if metrics.time_to_drain is None:
        return Text("never", style="yellow")
    return span(round(metrics.time_to_drain * 1000)) if metrics.backlog else Text("-", style="dim")


def milliseconds(moment: datetime | None) -> int | None:
    """A moment as the functions for times have it."""
    return None if moment is None else round(moment.timestamp() * 1000)
