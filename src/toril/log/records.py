"""What an aggregate's hash says of its appends: see ``lua/log/_partition.lua``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toril.log.entry import Partition


class Record(NamedTuple):
    """Where the entries of one append are."""

    first_version: int
    events: int
    partition: Partition
    first_ordinal: int
    first_id: str


def version_of(fields: Sequence[bytes]) -> int:
    """The aggregate's version."""
    return int(dict(zip(fields[::2], fields[1::2], strict=True)).get(b"v", b"0"))


def records_of(fields: Sequence[bytes], home: Partition) -> list[Record]:
    """The records among an aggregate's fields and values, by version; those of ``home`` name no partition."""
    found = []
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        where, slash, version = name.decode().rpartition("/")
        if not version.isdigit() or (slash and not where.replace(".", "").isdigit()):
            continue
        epoch, _, number = where.partition(".")
        partition = Partition(int(epoch), int(number)) if slash else home
        count, ordinal, entry_id, _ = value.decode().split(" ", 3)
        found.append(Record(int(version), int(count), partition, int(ordinal), entry_id))
    return sorted(found)


def rehomed(fields: Sequence[bytes], old: Partition) -> list[bytes]:
    """An aggregate's fields and values as they are in a partition of a later epoch.

    Its records name the partition they lead to, and the records of the new partition begin after them.
    """
    mark = f"{old.epoch}.{old.number}/".encode()
    moved: list[bytes] = []
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name in (b"t", b"x"):
            continue
        if name.isdigit():
            moved += (mark + name, value)
        elif name.startswith(b"k:") and value.isdigit():
            moved += (name, mark + value)
        else:
            moved += (name, value)
    return [*moved, b"x", str(version_of(fields) + 1).encode()]
