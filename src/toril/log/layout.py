"""How a log is laid out: its epochs, how many partitions each has, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from zlib import crc32

import msgspec

from toril.aggregate import Aggregate
from toril.connection import Connection
from toril.errors import InvalidValue
from toril.keyspace import LogKeys
from toril.log.entry import FORM, Partition
from toril.log.errors import LogError, UnknownForm

MOST_PARTITIONS = 4096

ENDS = "ends:"
"""What begins the field of ``meta`` that has the :attr:`Layout.ends` of an epoch; its number follows."""

LOADING = ":load"
"""The end of the name of a reader that keeps the place of one that is being loaded from a copy."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What may be trimmed. Nothing that a registered reader has not read ever is, whatever this says."""

    text: str
    """The form it is stored in: ``keep``, ``for 3600000`` (ms), ``archived by lake``."""

    @classmethod
    def keep_all(cls) -> Retention:
        """Trim nothing."""
        return cls("keep")

    @classmethod
    def keep_for(cls, how_long: timedelta) -> Retention:
        """Trim what every reader has read and what is older than this."""
        ms = round(how_long.total_seconds() * 1000)
        if ms <= 0:
            raise InvalidValue("retention", how_long, "a positive time")
        return cls(f"for {ms}")

    @classmethod
    def archived_by(cls, reader: str) -> Retention:
        """Trim what every reader has read, among them this one, which keeps a copy for good."""
        return cls(f"archived by {check_reader(reader)}")

    @classmethod
    def parse(cls, text: str) -> Retention:
        """From its stored form."""
        made = cls(text)
        if text != "keep" and made.age_ms is None and made.archive is None:
            raise InvalidValue("retention", text, "one of: keep, for <ms>, archived by <reader>")
        return made

    @property
    def age_ms(self) -> int | None:
        """How old an entry must be before it is trimmed, where that was chosen."""
        number = self.text.removeprefix("for ")
        return int(number) if number != self.text and number.isdigit() else None

    @property
    def archive(self) -> str | None:
        """The reader that keeps a copy, where there is one."""
        return self.text.removeprefix("archived by ") if self.text.startswith("archived by ") else None

    @property
    def trims(self) -> bool:
        """Whether anything is ever trimmed."""
        return self.text != "keep"


def check_reader(name: object) -> str:
    """The name itself, or an error that states the rule."""
    if not isinstance(name, str) or not name or len(name) > 128 or not name.isprintable() or " " in name:
        raise InvalidValue("reader", name, "1 to 128 printable characters without blanks")
    return name


def kept_by(reader: str) -> str:
    """The field of the log's ``meta`` that says which copy a reader keeps."""
    return f"copy:{check_reader(reader)}"


@dataclass(frozen=True, slots=True)
class Epoch:
    """A time in the life of a log with one number of partitions."""

    number: int
    partitions: int

    def all(self) -> list[Partition]:
        """Its partitions."""
        return [Partition(self.number, number) for number in range(self.partitions)]

    def of(self, aggregate: Aggregate) -> Partition:
        """The partition of an aggregate: chosen by tenant and id, so types of one id share it."""
        return Partition(self.number, crc32(f"{aggregate.tenant}:{aggregate.id}".encode()) % self.partitions)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the log's ``meta`` says."""

    ever: tuple[Epoch, ...]
    """All epochs the log has had, oldest first; the last one is written to."""
    oldest: int = 1
    """The oldest epoch that still exists."""
    retention: Retention | None = None
    """None: nobody has chosen, and nothing is trimmed."""
    carrying: bool = False
    """Whether aggregates of the epoch before may not have been carried over yet."""
    form: int = FORM
    ends: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By epoch that was removed, the last ordinal of each of its partitions."""

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """Those that still exist."""
        return tuple(epoch for epoch in self.ever if epoch.number >= self.oldest)

    @property
    def current(self) -> Epoch:
        """The epoch that is written to."""
        return self.ever[-1]

    def epoch(self, number: int) -> Epoch:
        """One that exists, or did."""
        return self.ever[number - 1]

    def partitions(self) -> list[Partition]:
        """All partitions of all epochs."""
        return [partition for epoch in self.epochs for partition in epoch.all()]

    def had(self, partition: Partition) -> bool:
        """Whether it is, or was, one of the log's partitions."""
        return any(
            partition.epoch == epoch.number and partition.number < epoch.partitions for epoch in self.ever
        )


def check_partitions(count: object) -> int:
    """The number itself, or an error that states the rule."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_PARTITIONS:
        raise InvalidValue("partitions", count, f"a whole number from 1 to {MOST_PARTITIONS}")
    return count


async def read_layout(redis: Connection, keys: LogKeys) -> Layout | None:
    """What the log says of itself; None where there is no such log."""
    found = await redis.command("HGETALL", keys.meta)
    if not found:
        return None
    said = {found[i].decode(): found[i + 1].decode() for i in range(0, len(found), 2)}
    form = int(said.get("form", FORM))
    if form > FORM:
        raise UnknownForm(
            f"log {keys.name!r} is written in form {form}, and this version of Toril knows forms up to "
            f"{FORM}: upgrade it"
        )
    if "epochs" not in said:
        raise LogError(f"{keys.meta} exists and does not describe a log")
    epochs = tuple(Epoch(number, count) for number, count in msgspec.json.decode(said["epochs"]))
    retention = Retention.parse(said["retention"]) if "retention" in said else None
    ends = {
        int(name.removeprefix(ENDS)): tuple(msgspec.json.decode(text, type=list[int]))
        for name, text in said.items()
        if name.startswith(ENDS)
    }
    return Layout(epochs, int(said.get("oldest", 1)), retention, "carrying" in said, form, ends)


async def existing_layout(redis: Connection, keys: LogKeys) -> Layout:
    """What the log says of itself. Whoever asks for one that is not there has misspelt it: it is not made."""
    found = await read_layout(redis, keys)
    if found is None:
        raise InvalidValue("log", keys.name, f"there is no log of this name at {redis.url}")
    return found


async def create_layout(redis: Connection, keys: LogKeys, partitions: int) -> None:
    """Write down a new log; one that is there stays what it is."""
    epochs = msgspec.json.encode([[1, partitions]])
    await redis.command("HSETNX", keys.meta, "epochs", epochs, repeatable=True)
    await redis.command("HSETNX", keys.meta, "form", FORM, repeatable=True)
