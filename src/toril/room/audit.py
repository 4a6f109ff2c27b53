"""The audit of a room: what its scripts wrote down about each decision, and whether it keeps the promises."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toril.connection import Connection
from toril.keyspace import RoomKeys

UNIT = 1_000_000_000
"""One admission, in the units of the budget: see ``lua/room/_budget.lua``."""

PAGE = 1000


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept."""

    promise: str
    """``P1`` to ``P11``."""
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision."""

    us: int
    """Microseconds since 1970, by the server's clock."""
    what: str
    """``create``, ``change``, ``start``, ``reset`` and ``again``, ``admitted``, ``abandoned``; with shards,
    in the room's own audit, ``round``, ``cut``, and ``forgot``: a server died, and what it alone knew of a
    shard, or of the room, is gone."""
    said: Mapping[str, str]

    def number(self, name: str) -> int:
        """A number that it says; -1 where it does not."""
        return int(self.said.get(name, -1))

    @property
    def tickets(self) -> list[tuple[int, ...]]:
        """What it says of tickets, each."""
        return [tuple(map(int, one.split(":"))) for one in self.said.get("tickets", "").split()]


async def read_audit(redis: Connection, keys: RoomKeys) -> list[Entry]:
    """All entries that are kept, from the oldest."""
    entries: list[Entry] = []
    after = "-"
    while found := await redis.command("XRANGE", keys.audit, after, "+", "COUNT", PAGE):
        for _, flat in found:
            said = {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}
            entries.append(Entry(int(said["us"]), said["what"], said))
        after = f"({found[-1][0].decode()}"
    return entries


@dataclass(slots=True)
class Budget:
    """A bucket, filled and emptied again as the audit says: what the scripts do, in whole numbers."""

    rate: int
    burst: int
    level: int
    at: int

    def refill(self, us: int) -> int:
        """What is in it then."""
        self.level = min(self.burst * UNIT, self.level + max(0, us - self.at) * self.rate)
        self.at = us
        return self.level


def check_budget(lane: str, entries: Sequence[Entry], kept: tuple[int, int] | None) -> Iterator[Violation]:
    """P1 and P2: at no time were more let in than the rate and the burst allow, or than there is room for.

    P10: and nothing else was taken from the budget; ``kept`` is what Redis had of it when the audit was read,
    and since when.
    """
    budget: Budget | None = None
    forgot = {entry.number("round") for entry in entries if entry.what == "forgot"}
    whole = bool(entries) and entries[0].what == "create"
    for entry in entries:
        if kept is not None and entry.us > kept[1]:
            yield from _check_kept(lane, budget if whole else None, kept)
            kept = None
        if entry.what in ("create", "change"):
            budget = _changed(budget, lane, entry, whole)
        elif entry.what in ("admitted", "round") and entry.said["lane"] == lane and entry.number("rate") >= 0:
            if budget is None:  # the beginning is not kept: it was full at most
                rate, burst = entry.number("rate"), entry.number("burst")
                budget = Budget(rate, burst, burst * UNIT, entry.us)
            came = entry.number("came") if entry.what == "round" else len(entry.tickets)
            if budget.refill(int(entry.said.get("from", entry.us))) < came * UNIT and came:
                yield Violation("P1", f"{lane}: {came} were let in, and {budget.level / UNIT:.3f} might be")
            budget.refill(entry.us)
            budget.level -= (came + int(entry.said.get("late", 0))) * UNIT
            most = entry.number("max")
            # Where a shard forgot that some had left, they seem to be inside again.
            if 0 <= most < entry.number("active") and entry.number("round") not in forgot:
                yield Violation("P2", f"{lane}: {entry.number('active')} were inside, and {most} may be")
    if kept is not None:
        yield from _check_kept(lane, budget if whole else None, kept)


def _check_kept(lane: str, budget: Budget | None, kept: tuple[int, int]) -> Iterator[Violation]:
    if budget is not None and budget.refill(kept[1]) != min(kept[0], budget.burst * UNIT):
        yield Violation("P10", f"{lane}: the budget has {kept[0]} units left, and should have {budget.level}")


def _changed(budget: Budget | None, lane: str, entry: Entry, whole: bool) -> Budget | None:
    rate, burst = entry.said.get(f"{lane}:rate"), entry.said.get(f"{lane}:burst")
    if rate == "":  # the lane is closed
        return None
    if budget is None:
        if not whole or rate is None or burst is None:
            return None
        return Budget(int(rate), int(burst), int(burst) * UNIT, entry.us)
    if rate is None and burst is None:
        return budget
    budget.refill(entry.us)
    budget.rate = budget.rate if rate is None else int(rate)
    if burst is not None:
        budget.burst = int(burst)
        budget.level = min(budget.level, budget.burst * UNIT)
    return budget


def check_order(lane: str, entries: Sequence[Entry]) -> Iterator[Violation]:
    """P3: in the order of their places, where the room does not draw. P5: nobody twice."""
    last, seen = 0, set()
    for entry in entries:
        if entry.what != "admitted" or entry.said["lane"] != lane:
            continue
        for place, ticket, _ in entry.tickets:
            if entry.said["mode"] != "random" and place <= last:
                yield Violation("P3", f"{lane}: place {place} was let in after place {last}")
            last = max(last, place)
            if ticket in seen:
                yield Violation("P5", f"{lane}: ticket {ticket} was let in twice")
            seen.add(ticket)


def check_shuffle(
    lane: str, entries: Sequence[Entry], first: int, order: Sequence[int]
) -> Iterator[Violation]:
    """P3: those who were shuffled came in the order that the seed draws."""
    for entry in entries:
        if entry.what != "admitted" or entry.said["lane"] != lane:
            continue
        for place, ticket, _ in entry.tickets:
            if first < place <= first + len(order) and order[place - first - 1] != ticket:
                drawn = order[place - first - 1]
                yield Violation("P3", f"{lane}: place {place} is ticket {drawn}'s, and {ticket} had it")


def check_ghosts(entries: Sequence[Entry]) -> Iterator[Violation]:
    """P8: nobody was dropped who had been heard of."""
    for entry in entries:
        if entry.what == "abandoned":
            for ticket, seen in entry.tickets:
                silent = entry.us // 1000 - seen
                if silent <= entry.number("patience"):
                    yield Violation("P8", f"ticket {ticket} was dropped after {silent} ms of silence")


def check_cuts(lane: str, own: Sequence[Entry], shards: Sequence[Sequence[Entry]]) -> Iterator[Violation]:
    """P3 between shards: nobody of a cut comes in in a later round than anybody of a later cut.

    But for those of whom a shard forgot that they had come in, or been there: they come in again, or others
    in their places, when the room has gone on.
    """
    told = [entry for entry in own if entry.said.get("lane") == lane]
    cuts = [tuple(map(int, entry.said["places"].split())) for entry in told if entry.what == "cut"]
    rounds: dict[int, list[int]] = {}
    for shard, entries in enumerate(shards):
        bounds = [cut[shard] for cut in cuts]
        forgot = [
            (entry.number("round"), entry.number("upto"))
            for entry in told
            if entry.what == "forgot" and entry.number("shard") == shard
        ]
        for entry in entries:
            if entry.what == "admitted" and entry.said["lane"] == lane and entry.said["mode"] == "fifo":
                number = entry.number("round")
                excused = max((upto for since, upto in forgot if since <= number), default=0)
                reached = rounds.setdefault(number, [])
                reached += (bisect_left(bounds, place) for place, _, _ in entry.tickets if place > excused)
    latest = 0
    for number, reached in sorted(rounds.items()):
        if reached and min(reached) < latest:
            yield Violation("P3", f"{lane}: round {number} let in cut {min(reached)} after cut {latest}")
        latest = max(latest, *reached) if reached else latest
