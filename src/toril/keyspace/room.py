"""The keys of a waiting room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from toril.keyspace.key_set import KeySet
from toril.keyspace.names import NAME_RULES, Kind
from toril.keyspace.slots import InvalidName, Key

MOST_SHARDS = 64


@dataclass(frozen=True)
class RoomKeys(KeySet):
    """The keys of a room: tag ``{evt_2025_1001}``; of one of its shards: tag ``{evt_2025_1001:02}``.

    A room of one shard has all it has under the first. A room of several has there what is common to them.
    What belongs to a lane is named by ``<lane>``, or ``<lane>:<number>``.
    """

    kind: ClassVar[Kind] = "room"

    name: str
    shard: int | None = None

    def __post_init__(self) -> None:
        name = NAME_RULES["room"].check(self.name)
        if self.shard is None:
            base = f"toril:{{{name}}}:room:"
        elif isinstance(self.shard, int) and 0 <= self.shard < MOST_SHARDS:
            # Another word at the end, so that it is not the room called `evt:02`.
            base = f"toril:{{{name}:{self.shard:02d}}}:shard:"
        else:
            raise InvalidName("shard", self.shard, f"a whole number from 0 to {MOST_SHARDS - 1}")
        object.__setattr__(self, "base", Key(base))

    @property
    def meta(self) -> Key:
        """Hash: the settings, and how the room stands."""
        return self["meta"]

    @property
    def snapshot(self) -> Key:
        """Hash: what positions are computed from, published a few times a second."""
        return self["snapshot"]

    @property
    def audit(self) -> Key:
        """Stream of what was decided: who was let in, who was dropped, what was changed."""
        return self["audit"]

    @property
    def follower(self) -> Key:
        """Which process makes the rate follow a load, for a while."""
        return self["follower"]

    def line(self, lane: str) -> Key:
        """Hash: the counters of a lane, and its budget."""
        return self[f"{lane}:line"]

    def seen(self, lane: str) -> Key:
        """Sorted set of those who wait, by when they were last heard of."""
        return self[f"{lane}:seen"]

    def active(self, lane: str) -> Key:
        """Sorted set of those who were let in, by when that ends."""
        return self[f"{lane}:active"]

    def counts(self, lane: str) -> Key:
        """Hash: how many wait in each stretch of places."""
        return self[f"{lane}:counts"]

    def cuts(self, lane: str) -> Key:
        """List: how far each shard's tickets went, a few times a second; the order between shards."""
        return self[f"{lane}:cuts"]

    def alive(self, ident: str) -> Key:
        """Bitmap of the places of one stretch at which somebody waits."""
        return self[f"{ident}:alive"]

    def order(self, ident: str) -> Key:
        """The tickets of one stretch of places, where they were shuffled."""
        return self[f"{ident}:order"]

    def ticket(self, ident: str) -> Key:
        """Hash of one ticket."""
        return self[f"{ident}:ticket"]

    def user(self, user: str) -> Key:
        """The ticket that a user has."""
        return self[f"u:{user}"]

    def claimed(self, key: str) -> Key:
        """What was asked with an idempotency key, in a room of several shards."""
        return self[f"c:{key}"]

    def asked(self, key: str) -> Key:
        """The ticket that was given for an idempotency key, and what was asked with it."""
        return self[f"i:{key}"]


ROOM_METAS = "toril:{*}:room:meta"
"""The pattern of the keys under which rooms describe themselves."""


def room_of(meta: bytes) -> str | None:
    """The room that a key of the pattern :data:`ROOM_METAS` belongs to; None where it is no room's."""
    name = meta.decode(errors="replace").removeprefix("toril:{").removesuffix("}:room:meta")
    return name if NAME_RULES["room"].allowed.fullmatch(name) else None
