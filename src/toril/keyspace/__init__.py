"""Every key Toril ever writes is built here: hash tags, slots, names, key sets.

A key belongs to a *keyspace* (a queue, a partition, a room). A keyspace has one hash tag, so all its
keys live in one cluster slot and one script can touch them together. No other module formats a key.
"""

from __future__ import annotations

from collections.abc import Mapping

from toril.keyspace.foreign import foreign_key
from toril.keyspace.idempotency import IdempotencyKeys
from toril.keyspace.key_set import KeySet
from toril.keyspace.log import LOG_METAS, LogKeys, PartitionKeys, log_of
from toril.keyspace.names import NAME_RULES, Kind, NameRule, QueueName, QueueNames, make_queue_name
from toril.keyspace.queue import OLD_TRACKER, QUEUE_SUFFIXES, QueueKeys, dependencies_of, lock_of
from toril.keyspace.rate import RateKeys
from toril.keyspace.room import MOST_SHARDS, ROOM_METAS, RoomKeys, room_of
from toril.keyspace.seats import SEAT_HEADS, SeatKeys, seats_of
from toril.keyspace.server import ServerKeys
from toril.keyspace.slots import (
    SLOTS,
    InvalidName,
    Key,
    Placement,
    SlotPlan,
    SlotRange,
    plan_slots,
    slot_of,
    split_slots,
    tag_of,
)
from toril.keyspace.stream import STREAM_METAS, StreamKeys, stream_of

KEY_SETS: Mapping[Kind, type[KeySet]] = {
    "queue": QueueKeys,
    "stream": StreamKeys,
    "log": LogKeys,
    "partition": PartitionKeys,
    "room": RoomKeys,
    "seats": SeatKeys,
    "rate": RateKeys,
    "idempotency": IdempotencyKeys,
    "server": ServerKeys,
}
"""The key set of each kind of keyspace; a script's header names the kind it works on."""

__all__ = [
    "KEY_SETS",
    "LOG_METAS",
    "MOST_SHARDS",
    "NAME_RULES",
    "OLD_TRACKER",
    "QUEUE_SUFFIXES",
    "ROOM_METAS",
    "SEAT_HEADS",
    "SLOTS",
    "STREAM_METAS",
    "IdempotencyKeys",
    "InvalidName",
    "Key",
    "KeySet",
    "Kind",
    "LogKeys",
    "NameRule",
    "PartitionKeys",
    "Placement",
    "QueueKeys",
    "QueueName",
    "QueueNames",
    "RateKeys",
    "RoomKeys",
    "SeatKeys",
    "ServerKeys",
    "SlotPlan",
    "SlotRange",
    "StreamKeys",
    "dependencies_of",
    "foreign_key",
    "lock_of",
    "log_of",
    "make_queue_name",
    "plan_slots",
    "room_of",
    "seats_of",
    "slot_of",
    "split_slots",
    "stream_of",
    "tag_of",
]
