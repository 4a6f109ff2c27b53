"""What goes into a log, what comes out, and where it stands."""

from __future__ import annotations

import os
from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.keyspace import PartitionKeys
from toril.log.errors import UnknownForm

MOST_EVENTS = 500
"""Events that one append may have."""

LARGEST_BODY = 16 * 1024 * 1024
"""Bytes that one event may have."""

LONGEST_KEY = 256
"""Bytes that an idempotency key may have."""


class Partition(NamedTuple):
    """One partition of one epoch of a log."""

    epoch: int
    number: int

    def keys(self, log: str) -> PartitionKeys:
        """Its keys."""
        return PartitionKeys(log, self.epoch, self.number)

    def __str__(self) -> str:
        return f"{self.number:02d}" if self.epoch == 1 else f"{self.epoch}:{self.number:02d}"

    @classmethod
    def parse(cls, text: str) -> Partition:
        """From its text form: ``07``, or ``2:07`` in a later epoch."""
        epoch, colon, number = text.rpartition(":")
        if not number.isdecimal() or (colon and not epoch.isdecimal()):
            raise InvalidValue("partition", text, "a number like 07, with its epoch 2:07")
        return cls(int(epoch) if colon else 1, int(number))


class Position(NamedTuple):
    """Where a reader stands in a partition: the last entry it is done with."""

    ordinal: int
    id: str

    def __str__(self) -> str:
        return f"{self.ordinal}@{self.id}"


START = Position(0, "0-0")
"""Before the first entry."""

Positions = dict[Partition, Position]
"""Where a reader stands in a log."""


@dataclass(frozen=True, slots=True)
class Append:
    """Events to be appended to one aggregate: all of them, or none."""

    aggregate: Aggregate
    bodies: Sequence[bytes]
    """One per event, as the log will give them back."""
    expected_version: int | None = None
    """The version the aggregate must be at, 0 where it must not exist yet; None: whatever it is at."""
    idempotency_key: str | None = None
    """An append with a key that the aggregate has seen is not done again: the first answer is given."""
    key: str = field(init=False, repr=False)
    size: int = field(init=False, repr=False)
    """Bytes that it takes in a call."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.bodies) <= MOST_EVENTS:
            raise InvalidValue("events", len(self.bodies), f"1 to {MOST_EVENTS} in one append")
        size = 200
        for body in self.bodies:
            if not isinstance(body, bytes) or not 0 < len(body) <= LARGEST_BODY:
                self._refuse_bodies()
            size += len(body)
        expected = self.expected_version
        if expected is not None and (
            not isinstance(expected, int) or isinstance(expected, bool) or expected < 0
        ):
            raise InvalidValue("expected_version", expected, "a whole number from 0, or None")
        key = self.idempotency_key
        if key is None:
            key = b2a_base64(os.urandom(12), newline=False).decode()
        elif not isinstance(key, str) or not 1 <= len(key.encode(errors="replace")) <= LONGEST_KEY:
            raise InvalidValue("idempotency_key", key, f"text of 1 to {LONGEST_KEY} bytes, or None")
        elif not key.isprintable():
            raise InvalidValue("idempotency_key", key, "it must not contain control characters")
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "size", size)

    def _refuse_bodies(self) -> None:
        for place, body in enumerate(self.bodies):
            if not isinstance(body, bytes) or not body:
                raise InvalidValue(f"events[{place}]", body, "bytes, at least one")
            if len(body) > LARGEST_BODY:
                raise InvalidValue(f"events[{place}] size", len(body), f"at most {LARGEST_BODY} bytes")


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append recorded, now or the first time."""

    partition: Partition
    first_version: int
    count: int
    first_ordinal: int
    first_id: str
    repeated: bool = False
    """Whether this idempotency key was recorded by an earlier append."""

    @property
    def version(self) -> int:
        """The version of the last event."""
        return self.first_version + self.count - 1

    @property
    def position(self) -> Position:
        """Where the last event stands: a reader that is there has seen all of them."""
        # The entries of one append are written by one script call, so their ids follow each other.
        ms, seq = self.first_id.split("-")
        return Position(self.first_ordinal + self.count - 1, f"{ms}-{int(seq) + self.count - 1}")

    @property
    def recorded_at(self) -> int:
        """When, by the server's clock, in nanoseconds since 1970."""
        return _recorded_at(self.first_id)


class Entry:
    """One event as the log has it."""

    __slots__ = ("body", "id", "key", "ordinal", "partition", "version")

    def __init__(
        self, partition: Partition, entry_id: str, ordinal: int, version: int, key: str, body: bytes
    ) -> None:
        self.partition = partition
        self.id = entry_id
        self.ordinal = ordinal
        """1, 2, 3 … in its partition, without a gap."""
        self.version = version
        """1, 2, 3 … in its aggregate, without a gap."""
        self.key = key
        """Its aggregate's key, ``tenant:type:id``; empty where the tenant was erased."""
        self.body = body

    def __repr__(self) -> str:
        return f"Entry({self.partition}, {self.id}, ordinal={self.ordinal}, version={self.version})"

    @property
    def aggregate(self) -> Aggregate:
        """Whose event it is."""
        return Aggregate.parse(self.key)

    @property
    def erased(self) -> bool:
        """Whether only its place is left, because its tenant was erased."""
        return not self.key

    @property
    def position(self) -> Position:
        """Where a reader stands that is done with it."""
        return Position(self.ordinal, self.id)

    @property
    def recorded_at(self) -> int:
        """When it was appended, by the server's clock, in nanoseconds since 1970."""
        return _recorded_at(self.id)


def _recorded_at(entry_id: str) -> int:
    return int(entry_id.partition("-")[0]) * 1_000_000


OUTSIDE = b"r1"
"""In this field's place stands the size of a body that is kept outside the stream."""

FORM = 1
"""The form of entries that this Toril writes, and the last one it reads."""


def decode(partition: Partition, raw: Sequence[Sequence[Any]]) -> tuple[list[Entry], list[Entry]]:
    """Entries of the stream; and those among them whose body is still empty, because it is kept outside."""
    entries: list[Entry] = []
    outside: list[Entry] = []
    for entry_id, fields in raw:
        # Always these four, in this order: the script writes them so, and the stream packs them so.
        if len(fields) != 8 or fields[0] != b"o":
            raise _unknown_form(partition, entry_id, fields)
        _, ordinal, _, version, _, key, form, body = fields
        entry = Entry(partition, entry_id.decode(), int(ordinal), int(version), key.decode(), body)
        if form != b"e1":
            if form != OUTSIDE:
                raise _unknown_form(partition, entry_id, fields)
            entry.body = b""
            outside.append(entry)
        entries.append(entry)
    return entries, outside


def ordinal_of(raw: Sequence[Any]) -> int:
    """The ordinal of an entry of the stream."""
    return int(raw[1][1])


def _unknown_form(partition: Partition, entry_id: bytes, fields: Sequence[bytes]) -> UnknownForm:
    return UnknownForm(
        f"entry {entry_id.decode()} of partition {partition} has a form that this version of Toril does "
        f"not know (fields {b' '.join(fields[::2]).decode(errors='replace')}): upgrade it"
    )
