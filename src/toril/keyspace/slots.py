"""Hash tags and slots, by Redis's own rule, and where names land on the shards of a cluster."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from toril.errors import InvalidValue

SLOTS = 16384
"""A Redis Cluster has this many hash slots."""


class InvalidName(InvalidValue):
    """A name from which no safe key can be built."""


class Key(str):
    """A key built by this module. Calls are routed by the keys among their arguments."""

    __slots__ = ()

    @property
    def slot(self) -> int:
        """The cluster slot this key lives in."""
        return slot_of(self)


def tag_of(key: str | bytes) -> bytes | None:
    """The hash tag of a key, or None where the whole key is hashed.

    Redis's own rule: from the first ``{``, up to the first ``}`` after it, with at least one byte in
    between. Only the *first* ``{`` counts: ``{}x{y}`` has no tag, and ``a}b{c}`` has the tag ``c``.
    """
    raw = _raw(key)
    start = raw.find(b"{")
    if start < 0:
        return None
    end = raw.find(b"}", start + 1)
    return raw[start + 1 : end] if end > start + 1 else None


def slot_of(key: str | bytes) -> int:
    """The slot (0 to 16383) that Redis Cluster keeps a key in."""
    raw = _raw(key)
    tag = tag_of(raw)
    # Redis hashes with CRC16/XMODEM, which is what crc_hqx computes when it starts from 0.
    return crc_hqx(raw if tag is None else tag, 0) % SLOTS


def _raw(key: str | bytes) -> bytes:
    try:
        return key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError:
        raise InvalidName("key", key, "it must be text that UTF-8 can encode") from None


@dataclass(frozen=True, slots=True, order=True)
class SlotRange:
    """Slots ``first`` to ``last``, both included."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last < SLOTS:
            raise InvalidValue("slot range", f"{self.first}-{self.last}", f"0 <= first <= last < {SLOTS}")

    def __contains__(self, slot: int) -> bool:
        return self.first <= slot <= self.last

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def split_slots(shards: int) -> list[SlotRange]:
    """The slot ranges of a fresh cluster with this many masters, as even as can be."""
    if not 1 <= shards <= SLOTS:
        raise InvalidValue("shards", shards, f"a whole number from 1 to {SLOTS}")
    edges = [round(SLOTS * part / shards) for part in range(shards + 1)]
    return [SlotRange(first, end - 1) for first, end in pairwise(edges)]


# ---------------------------------------------------------------------------- slot planning


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one name lands."""

    name: str
    slot: int
    shard: str


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Where names land on the shards of a cluster, and how even that is."""

    placements: tuple[Placement, ...]
    shards: tuple[str, ...]

    def per_shard(self) -> dict[str, int]:
        """How many of the names each shard carries; shards without any are listed with 0."""
        counts = dict.fromkeys(self.shards, 0)
        for placement in self.placements:
            counts[placement.shard] += 1
        return counts

    @property
    def imbalance(self) -> float:
        """The busiest shard's names over its fair share: 1.0 is perfectly even."""
        counts = self.per_shard()
        return max(counts.values()) * len(counts) / len(self.placements) if self.placements else 1.0


def plan_slots(names: Mapping[str, int], shards: Mapping[str, list[SlotRange]]) -> SlotPlan:
    """Place names (with their slots) on shards (with the slots they serve)."""
    placements = []
    for name, slot in names.items():
        shard = next((label for label, ranges in shards.items() if any(slot in r for r in ranges)), "")
        if not shard:
            raise InvalidValue("shards", sorted(shards), f"no shard serves slot {slot} of {name}")
        placements.append(Placement(name, slot, shard))
    return SlotPlan(tuple(placements), tuple(shards))
