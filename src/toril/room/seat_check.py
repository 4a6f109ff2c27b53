"""Counting seats: whether ``available + held + sold = total`` is so, and everything points at each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from toril.connection import Connection
from toril.keyspace import SeatKeys
from toril.room.seats import SeatCounts, Seats, pages

TRIES = 5
SHOWN = 20
"""Problems that are listed: a thousand of one kind say no more."""


@dataclass(frozen=True, slots=True)
class SeatCheck:
    """What was counted."""

    event: str
    counts: SeatCounts
    problems: tuple[str, ...]
    moved: bool
    """They were bought and given back faster than they could be counted: nothing was found out."""

    @property
    def ok(self) -> bool:
        """Whether everything was counted and is as it must be."""
        return not self.problems and not self.moved


async def check_seats(redis: Connection, event: str) -> SeatCheck:
    """Count all seats and follow all holds, in small steps that hold nobody up.

    What was read counts where nothing changed meanwhile; else it is read again, a few times.
    """
    seats = Seats(redis, event)
    before = await seats.counts()
    for _ in range(TRIES):
        problems = await _problems(redis, seats.keys, before)
        after = await seats.counts()
        if after.changes == before.changes:
            return SeatCheck(event, before, tuple(problems[:SHOWN]), moved=False)
        before = after
    return SeatCheck(event, before, (), moved=True)


async def _problems(redis: Connection, keys: SeatKeys, counts: SeatCounts) -> list[str]:
    seats = {name: state async for name, state in pages(redis, keys.seats)}
    holds = {epoch: _Epoch(text) async for epoch, text in pages(redis, keys.holds)}
    asked = {key: epoch async for key, epoch in pages(redis, keys.asked)}
    owners = {owner: int(count) async for owner, count in pages(redis, keys.owners)}
    due = [raw.decode() for raw in await redis.command("ZRANGE", keys.due, 0, -1)]
    last = int(await redis.command("HGET", keys.head, "epoch") or 0)

    found: list[str] = []
    counted = Counter(state[0] for state in seats.values())
    for state, name, said in (
        ("a", "available", counts.available),
        ("h", "held", counts.held),
        ("s", "sold", counts.sold),
    ):
        if counted[state] != said:
            found.append(f"{counted[state]} seats are {name}, and the count says {said}")
    if len(seats) != counts.total:
        found.append(f"there are {len(seats)} seats, and the count says {counts.total}")
    if counts.available + counts.held + counts.sold != counts.total:
        found.append(f"the counts do not add up: {counts}")

    had: dict[str, str] = {}
    for epoch, its in holds.items():
        if int(epoch) > last:
            found.append(f"hold {epoch} is newer than the newest ({last})")
        for seat in its.seats:
            if seat in had:
                found.append(f"seat {seat} is in hold {had[seat]} and in hold {epoch}")
            had[seat] = epoch
            if seats.get(seat) != f"{its.state} {epoch}":
                found.append(f"seat {seat} is {seats.get(seat)!r}, and hold {epoch} says {its.state!r}")
    found += [
        f"seat {seat} is {state!r}, and nobody has it"
        for seat, state in seats.items()
        if state != "a" and seat not in had
    ]
    if set(due) != {epoch for epoch, its in holds.items() if its.state == "h"}:
        found.append("the holds that will end are not those that there are")
    if asked != {its.key: epoch for epoch, its in holds.items()}:
        found.append("the keys that holds were asked for with are not those that there are")
    if owners != dict(_per_owner(holds)):
        found.append("what owners have is not what is counted for them")
    return found


class _Epoch:
    """A hold, or what became of it, as it is stored."""

    def __init__(self, text: str) -> None:
        self.state, _, self.owner, self.key, *self.seats = text.split(" ")


def _per_owner(holds: dict[str, _Epoch]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for its in holds.values():
        counted[its.owner] += len(its.seats)
    return counted
