"""What somebody who waits is told: computed from the snapshot, with no server to ask."""

from __future__ import annotations

import random

from toril.room.snapshot import Snapshot
from toril.room.ticket import Status, Ticket

SOONEST_POLL_MS, JITTER = 1000, 0.2
PART_OF_REST = 8
"""Somebody asks again when this part of the time that is left (an eighth) is over."""


def status_of(ticket: Ticket, ahead: int | None, exact: bool, snapshot: Snapshot | None) -> Status:
    """The status of a ticket that so many are before."""
    lane = ticket.token.lane
    waiting = snapshot.waiting(lane) if snapshot else 0
    if ticket.state == "waiting":
        eta, known = eta_of(ahead if ahead is not None else waiting // 2, snapshot, ticket)
        position = None if ahead is None else ahead + 1
    else:
        eta, known, position, exact = 0, True, 0, True
    return Status(
        ticket=ticket,
        position=position,
        exact=exact,
        waiting=waiting,
        eta_ms=eta,
        eta_known=known,
        waited_ms=(ticket.let_in_ms or ticket.now_ms) - ticket.joined_ms,
        next_poll_ms=next_poll_ms(eta, snapshot),
        mode=snapshot.mode if snapshot else "fifo",
        phase=snapshot.phase if snapshot else "open",
        paused=snapshot.paused if snapshot else False,
    )


def eta_of(ahead: int, snapshot: Snapshot | None, ticket: Ticket) -> tuple[int | None, bool]:
    """How long it takes until so many were let in, in ms; and whether that was seen, or only set."""
    lane = ticket.token.lane
    if snapshot is None or snapshot.paused or snapshot.mode == "reject" or snapshot.phase == "gathering":
        return None, False
    if (seen := snapshot.observed(lane)) > 0:
        return round((ahead + 1) / seen * 1000), True
    if (wanted := snapshot.rate(lane)) > 0:
        return round((ahead + 1) / wanted * 1000), False
    return None, False


def next_poll_ms(eta: int | None, snapshot: Snapshot | None) -> int:
    """Rarer the farther one is, but often enough to keep the place; never all at the same time."""
    latest = (snapshot.patience_ms if snapshot else 4 * SOONEST_POLL_MS) / 4
    wanted = latest if eta is None else min(latest, eta / PART_OF_REST)
    return round(max(min(SOONEST_POLL_MS, latest), wanted) * random.uniform(1 - JITTER, 1 + JITTER))
