"""What ``pause`` and ``resume`` of a queue answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rich.text import Text

from toril.cli.show import as_json, one_line, say


@dataclass(frozen=True, slots=True)
class Switched:
    """A queue that was paused or resumed."""

    queue: str
    paused: bool
    """As it is now."""
    changed: bool
    """Whether it was otherwise before."""

    def tell(self, json: bool) -> None:
        """Say how the queue is now, or that it was so already."""
        if json:
            as_json(asdict(self))
            return
        if self.changed:
            what = "is paused" if self.paused else "is resumed"
        else:
            what = "was paused already" if self.paused else "was not paused"
        say(Text(f"{one_line(self.queue)} {what}."))
