"""The keys of an event's seats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from toril.keyspace.key_set import KeySet
from toril.keyspace.names import NAME_RULES, Kind
from toril.keyspace.slots import Key


@dataclass(frozen=True)
class SeatKeys(KeySet):
    """The keys of the seats of one event: tag ``{evt_2025_1001}``."""

    kind: ClassVar[Kind] = "seats"

    event: str

    def __post_init__(self) -> None:
        name = NAME_RULES["room"].check(self.event)
        object.__setattr__(self, "base", Key(f"toril:{{{name}}}:seats:"))

    @property
    def head(self) -> Key:
        """Hash: how many seats are available, held, sold, in all; the last epoch; how often it changed."""
        return self["head"]

    @property
    def seats(self) -> Key:
        """Hash of the seats: ``a``, or ``h`` or ``s`` with the epoch of whoever has it."""
        return self["seats"]

    @property
    def holds(self) -> Key:
        """Hash of the holds and the sales, by epoch."""
        return self["holds"]

    @property
    def due(self) -> Key:
        """Sorted set of the epochs of holds, by when they end."""
        return self["due"]

    @property
    def asked(self) -> Key:
        """Hash: the epoch that a hold got, by the key that it was asked for with."""
        return self["asked"]

    @property
    def owners(self) -> Key:
        """Hash: how many seats an owner holds or has bought."""
        return self["owners"]


SEAT_HEADS = "toril:{*}:seats:head"
"""The pattern of the keys under which the seats of events are described."""


def seats_of(head: bytes) -> str | None:
    """The event that a key of the pattern :data:`SEAT_HEADS` belongs to; None where it is no event's."""
    name = head.decode(errors="replace").removeprefix("toril:{").removesuffix("}:seats:head")
    return name if NAME_RULES["room"].allowed.fullmatch(name) else None
