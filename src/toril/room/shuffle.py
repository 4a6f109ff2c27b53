"""The order in which those are let in who came before a room opened: drawn by a seed, for anybody to check.

Each ticket's number is signed with the seed (HMAC-SHA256), and the tickets are sorted by that. The seed was
committed to before the first ticket was given, so nobody could choose it to suit a ticket; it is told when
the room opens, so everybody can draw the order again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence

from toril.errors import InvalidValue
from toril.room.settings import Seed
from toril.room.snapshot import STRETCH
from toril.room.store import ShardStore
from toril.room.ticket import Lane, check_lane

PART = 256
"""Tickets of which one call writes down the places: some milliseconds of the server's time."""


def lot(seed: str, lane: Lane, shard: int, ticket: int) -> bytes:
    """What a ticket has drawn: the smaller, the earlier its turn."""
    return hmac.digest(bytes.fromhex(seed), f"{lane}.{shard}.{ticket}".encode(), hashlib.sha256)


def drawn_order(seed: str, lane: Lane, first: int, last: int, shard: int = 0) -> list[int]:
    """The tickets from ``first`` to ``last`` of one shard, in the order in which they are let in."""
    return sorted(range(first, last + 1), key=lambda ticket: lot(seed, lane, shard, ticket))


def verify_place(
    seed: str, commitment: str, lane: Lane, first: int, last: int, ticket: int, place: int, shard: int = 0
) -> bool:
    """Whether a ticket's place is the one that the seed drew, and the seed the one committed to.

    The tickets from ``first`` to ``last`` were shuffled. In a room of several shards these, and the place,
    are those of the ticket's shard (``token.shard``): all shards are shuffled by the same lots, so each has
    the order that all have together.
    """
    if Seed(seed).commitment != commitment:
        return False
    if not first <= ticket <= last:
        raise InvalidValue("ticket", ticket, f"one of those that were shuffled, {first} to {last}")
    return drawn_order(seed, lane, first, last, shard).index(ticket) + first == place


def parts_of(order: Sequence[int], placed: int) -> Iterator[tuple[int, bytes]]:
    """The order in parts, none of which is in two stretches: the place before a part, and its tickets."""
    at = 0
    while at < len(order):
        size = min(PART, STRETCH - (placed + at) % STRETCH)
        part = order[at : at + size]
        yield placed + at, struct.pack(f">{len(part)}I", *part)
        at += len(part)


async def write_order(store: ShardStore) -> None:
    """Draw the order of a room of one shard, and write down what of it is not written down yet."""
    _, meta, lanes = await store.look()
    for name, (line, _) in lanes.items():
        lane = check_lane(name)
        first, sealed, placed = (line.get(what, 0) for what in ("first", "sealed", "placed"))
        if placed < sealed:
            order = await asyncio.to_thread(drawn_order, meta["seed"], lane, first + 1, sealed)
            for before, packed in parts_of(order[placed - first :], placed):
                await store.place(lane, before, packed)
