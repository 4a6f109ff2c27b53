"""Seats: held for a while, sold for good, and never lost or sold twice.

``available + held + sold = total``, always. Each script moves the counts with the seats and checks that they
add up; :func:`check_seats` counts the seats themselves.

A hold takes several seats or none of them. It has an owner, an end, and an *epoch*: a number that is larger
than that of any hold before it, on any seat of the event. Whoever writes a seat down elsewhere (a payment, a
printed ticket) keeps the epoch beside it and refuses smaller ones.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from toril.connection import Connection, Durability, load_script
from toril.connection.durability import Level
from toril.connection.errors import CommandRefused
from toril.errors import InvalidValue
from toril.keyspace import SeatKeys
from toril.room.errors import RoomError

SeatState = Literal["available", "held", "sold"]

MOST_AT_ONCE = 20
"""Seats of one hold. It bounds what a script does: each seat may lead it to a hold that has ended."""
LONGEST_HOLD = timedelta(days=1)
SWEEP_STEP = 100
"""Holds that one step of a sweep gives back."""
ADD_STEP = 1000
PAGE = 1000

_NAME = re.compile(r"[A-Za-z0-9_.:@+\-]{1,256}")
_STATES: dict[bytes, SeatState] = {b"a": "available", b"h": "held", b"s": "sold"}


class SeatsError(RoomError):
    """What was asked for cannot be done with these seats. Nothing was changed."""


class UnknownSeats(SeatsError):
    """Seats that the event does not have."""

    def __init__(self, seats: Sequence[str]) -> None:
        self.seats = tuple(seats)
        super().__init__(f"the event has no seats {', '.join(seats)} (nothing was held)")


class SeatsTaken(SeatsError):
    """Others hold or have bought some of the seats."""

    def __init__(self, seats: Sequence[str]) -> None:
        self.seats = tuple(seats)
        super().__init__(f"seats {', '.join(seats)} are taken (nothing was held)")


class TooManySeats(SeatsError):
    """The owner would have more seats than one owner may."""

    def __init__(self, left: int, most: int) -> None:
        self.left = left
        super().__init__(f"one owner may have {most} seats, and this one {left} more (nothing was held)")


class HoldGone(SeatsError):
    """There is no such hold of this owner: it has ended, was given back, or was never there."""


class HoldConflict(SeatsError):
    """The key was used before, for other seats or by another owner."""


class SeatsUnconserved(SeatsError, CommandRefused):
    """The counts do not add up: something else has written to these keys."""


_ERRORS = {"UNCONSERVED": SeatsUnconserved}
ADD, HOLD, CONFIRM, RELEASE, SWEEP, LOOK, COUNTS, RESET = (
    load_script(f"room/seat_{verb}", errors=_ERRORS)
    for verb in ("add", "hold", "confirm", "release", "sweep", "look", "counts", "reset")
)


@dataclass(frozen=True, slots=True)
class Hold:
    """Seats that are one owner's, until it ends."""

    event: str
    owner: str
    seats: tuple[str, ...]
    epoch: int
    """Larger than that of any hold before."""
    key: str
    """What it was asked for with: the same key gets the same hold."""
    state: SeatState
    """``held``; ``sold`` where it was asked for again after it was confirmed."""
    ends: int
    """When it ends: milliseconds since 1970, by the server's clock."""


@dataclass(frozen=True, slots=True)
class SeatCounts:
    """How many seats there are."""

    total: int
    available: int
    held: int
    """With those of holds that have ended and were not swept yet."""
    sold: int
    overdue: int
    """Holds that have ended and were not swept yet: whoever wants their seats gets them at once."""
    changes: int = field(repr=False)
    """Grows with every change."""


class Seats:
    """The seats of an event.

    ::

        seats = Seats(redis, "evt_2025_1001")
        await seats.add(f"A-{number}" for number in range(1, 101))
        hold = await seats.hold("ana", ["A-12", "A-13"])
        await seats.confirm("ana", hold.epoch)

    ``hold_for`` is how long a hold lasts, ``per_owner`` how many seats one owner may have, held and bought.
    """

    def __init__(
        self,
        redis: Connection,
        event: str,
        *,
        hold_for: timedelta = timedelta(minutes=5),
        per_owner: int | None = None,
        durability: Durability | Level = "memory",
    ) -> None:
        if not timedelta(milliseconds=1) <= hold_for <= LONGEST_HOLD:
            raise InvalidValue("hold_for", hold_for, f"from 1 ms to {LONGEST_HOLD}")
        if per_owner is not None and (type(per_owner) is not int or per_owner < 1):
            raise InvalidValue("per_owner", per_owner, "a whole number of at least 1, or None")
        self.event = event
        self.keys = SeatKeys(event)
        self.hold_for = hold_for
        self.per_owner = per_owner
        self._redis = redis
        self._durability = durability

    async def add(self, seats: Iterable[str]) -> int:
        """Add seats; how many are new. Those that are there already stay as they are."""
        names = [_check("seat", seat) for seat in seats]
        new = 0
        for start in range(0, len(names), ADD_STEP):
            step = names[start : start + ADD_STEP]
            new += await self._run(ADD, *step)
        return new

    async def hold(self, owner: str, seats: Iterable[str], *, key: str | None = None) -> Hold:
        """Hold seats, all or none.

        With the same ``key``, owner and seats it can be asked for again, should an answer be lost: it is
        the same hold, and does not last longer.
        """
        _check("owner", owner)
        key = secrets.token_urlsafe(16) if key is None else _check("key", key)
        asked = [_check("seat", seat) for seat in seats]
        wanted = sorted(set(asked))
        if not wanted or len(asked) > MOST_AT_ONCE:
            raise InvalidValue("seats", asked, f"from 1 to {MOST_AT_ONCE} at a time")
        if len(wanted) < len(asked):
            raise InvalidValue("seats", asked, "each of them once")
        lasts = round(self.hold_for / timedelta(milliseconds=1))
        said, *rest = await self._run(HOLD, owner, key, lasts, self.per_owner or 0, *wanted)
        if said == b"ok":
            epoch, state, ends = rest
            return Hold(self.event, owner, tuple(wanted), int(epoch), key, _STATES[state], int(ends))
        if said == b"unknown":
            raise UnknownSeats(_texts(rest))
        if said == b"taken":
            raise SeatsTaken(_texts(rest))
        if said == b"many":
            assert self.per_owner is not None
            raise TooManySeats(int(rest[0]), self.per_owner)
        raise HoldConflict(f"key {key!r} was used before, for other seats or by another owner")

    async def confirm(self, owner: str, epoch: int) -> tuple[str, ...]:
        """Sell what is held, for good; the seats. Asked for again, it says the same."""
        said, *seats = await self._run(CONFIRM, _check("owner", owner), _check_epoch(epoch))
        if said != b"ok":
            raise HoldGone(f"hold {epoch} has ended, or is not this owner's (nothing was sold)")
        return _texts(seats)

    async def release(self, owner: str, epoch: int) -> tuple[str, ...]:
        """Give back what is held; the seats: none where the hold has ended already."""
        said, *seats = await self._run(RELEASE, _check("owner", owner), _check_epoch(epoch), "h")
        if said == b"sold":
            raise HoldGone(f"hold {epoch} was confirmed: its seats are sold (a refund gives them back)")
        return _texts(seats)

    async def refund(self, owner: str, epoch: int) -> tuple[str, ...]:
        """Give back what was sold; the seats: none where that was done already."""
        said, *seats = await self._run(RELEASE, _check("owner", owner), _check_epoch(epoch), "s")
        if said == b"held":
            raise HoldGone(f"hold {epoch} was not confirmed: nothing is sold (release gives its seats back)")
        return _texts(seats)

    async def sweep(self, most: int = SWEEP_STEP) -> int:
        """Give back the seats of holds that have ended, in one bounded step; how many holds.

        Nobody waits for it: whoever wants a seat whose hold has ended gets it at once.
        """
        holds, _ = await self._run(SWEEP, most)
        return int(holds)

    async def look(self, seats: Iterable[str]) -> dict[str, SeatState | None]:
        """How seats stand; None where there is no such seat."""
        names = [_check("seat", seat) for seat in seats]
        found: dict[str, SeatState | None] = {}
        for start in range(0, len(names), PAGE):
            step = names[start : start + PAGE]
            states = await self._redis.run(LOOK, self.keys, *step)
            found |= {name: _STATES.get(state) for name, state in zip(step, states, strict=True)}
        return found

    async def names(self) -> AsyncIterator[str]:
        """All seats, in no order, in small steps."""
        async for seat, _ in pages(self._redis, self.keys.seats):
            yield seat

    async def counts(self) -> SeatCounts:
        """How many seats there are in each state."""
        return SeatCounts(*map(int, await self._redis.run(COUNTS, self.keys)))

    async def reset(self) -> int:
        """Remove all seats, holds and sales; how many seats there were. Epochs go on from where they are."""
        return int(await self._run(RESET))

    async def _run(self, script: Any, *args: str | int) -> Any:
        # Each of them can be sent again after a broken connection, and changes nothing then.
        return await self._redis.run(script, self.keys, *args, durability=self._durability, repeatable=True)


async def pages(redis: Connection, key: Any) -> AsyncIterator[tuple[str, str]]:
    """All fields of a hash, in small steps. One may come twice, as HSCAN has it."""
    cursor = b"0"
    while True:
        cursor, flat = await redis.command("HSCAN", key, cursor, "COUNT", PAGE)
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            yield name.decode(), value.decode()
        if cursor == b"0":
            return


def _check(what: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidValue(what, name, "1 to 256 letters, digits, '_', '.', ':', '@', '+', '-'")
    return name


def _check_epoch(epoch: object) -> int:
    if type(epoch) is not int or not 0 < epoch < 2**53:
        raise InvalidValue("epoch", epoch, "the whole number that a hold was given")
    return epoch


def _texts(raw: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(part.decode() for part in raw)
