"""What can be said about the room's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from toril.connection import Durability
from toril.connection.durability import Level
from toril.errors import InvalidValue
from toril.room import Follow, LaneSettings, Settings
from toril.room.tokens import AdmissionTokens
from toril.server.room.rates import Rate

PATIENCE = timedelta(minutes=5)
"""How long nothing may be heard of somebody who waits. Browsers let a page that nobody looks at do something
once in a minute."""

USUAL = Settings(main=LaneSettings(rate=50, burst=500), patience=PATIENCE)
"""The room of an event that nobody has said anything about."""

SHORTEST_SECRET = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomOptions:
    """Nothing but the tokens needs to be said."""

    tokens: AdmissionTokens
    admin: str | None = None
    """The operator's secret: who brings it as a bearer may make, change and reset rooms. None: nobody may."""
    new_rooms: Settings | None = None
    """With these settings, a room is made for an event that nobody knows when somebody joins it. None: such
    events are refused. Anyone can think of a name: not for the open internet."""
    trusted: Sequence[str] = ()
    """Proxies whose ``X-Forwarded-For`` is believed: addresses, or networks."""
    calls: Rate = Rate(rate=50, burst=100)  # noqa: RUF009 - it is frozen
    """How often one address may join, enter, or act on seats."""
    making: Rate = Rate(rate=1, seconds=60, burst=50)  # noqa: RUF009
    """How often one address may join an event that nobody knows."""
    streams: int = 5000
    """How many can listen at a time, in one process."""
    durability: Durability | Level = "memory"
    """What must have happened to a join, an admission, a hold, before it is answered: ``replicated`` means
    that it is known after its server died."""
    hold_for: timedelta = timedelta(minutes=5)
    """How long seats are held."""
    seats_per_owner: int | None = None
    doorkeeper: bool = True
    """Whether this process lets people in. One of several is enough, and several are no harm."""
    follow: Callable[[str], Follow | None] | None = None
    """What load the rate of a room follows, if any."""

    def __post_init__(self) -> None:
        Durability.of(self.durability)
        if self.admin is not None and len(self.admin) < SHORTEST_SECRET:
            raise InvalidValue("admin", "(not shown)", f"a secret of at least {SHORTEST_SECRET} characters")
        if self.streams < 1:
            raise InvalidValue("streams", self.streams, "at least 1")
