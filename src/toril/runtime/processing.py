"""What handlers and projections have in common: aggregates stand in line, and events are tried again."""

from __future__ import annotations

from typing import Protocol

from toril.events.event import AnyEvent
from toril.runtime.desk import Desk
from toril.runtime.slice import Chain, Slice


class Processing(Protocol):
    """How events are processed."""

    async def run(self) -> None:
        """Process what stands in line, until it is cancelled."""
        ...

    def stand_in_line(self, chain: Chain) -> None:
        """An aggregate has events that can be processed."""
        ...

    async def attempt(self, part: Slice, event: AnyEvent, attempt: int) -> bytes | None:
        """Process one event that was parked; the state to commit, where there is one."""
        ...


def line_up(desk: Desk, processing: Processing, chain: Chain) -> None:
    """A chain that has more goes to the end of its line."""
    part = chain.part
    if chain.slots and part.is_ours():
        processing.stand_in_line(chain)
    else:
        chain.rest()
    desk.wake_work.set()
    if len(part.window) < desk.options.read_ahead:
        desk.wake_fetch.set()
