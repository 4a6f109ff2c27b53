"""Every key Toril ever writes is built here: hash tags, slots, names, key sets.

A key belongs to a *keyspace* (a queue, a partition, a room). A keyspace has one hash tag, so all its
keys live in one cluster slot and one script can touch them together. No other module formats a key.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import pairwise
from typing import Any, ClassVar, Literal, NewType, Self

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


# ---------------------------------------------------------------------------- tags and slots


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


# ---------------------------------------------------------------------------- names

Kind = Literal["queue", "stream", "log", "partition", "room", "server"]


@dataclass(frozen=True, slots=True)
class NameRule:
    """What a name of one kind of keyspace may look like, and why."""

    kind: Kind
    allowed: re.Pattern[str]
    longest: int
    rule: str
    example: str

    def check(self, name: object) -> str:
        """The name itself, or an :class:`InvalidName` that states the rule."""
        what = f"{self.kind} name"
        if not isinstance(name, str):
            raise InvalidName(what, name, f"it must be a string; {self.rule}")
        if not name:
            raise InvalidName(what, name, f"it must not be empty; {self.rule}")
        if not _is_utf8(name):
            raise InvalidName(what, name, "it must be text that UTF-8 can encode")
        if tag_of(name) is not None:
            raise InvalidName(
                what, name, "it already carries a hash tag; give the plain name, the tag is added"
            )
        if len(name) > self.longest:
            raise InvalidName(what, name, f"it has more than {self.longest} characters")
        if not self.allowed.fullmatch(name):
            raise InvalidName(what, name, f"{self.rule}, like {self.example!r}")
        return name


_PART = r"[A-Za-z0-9_.\-]+"

NAME_RULES: Mapping[Kind, NameRule] = {
    rule.kind: rule
    for rule in (
        NameRule(
            kind="queue",
            allowed=re.compile(r"[^:{}]+", re.DOTALL),
            longest=512,
            rule="BullMQ queue names hold no ':' (it separates the parts of a key) and no brace",
            example="span_ingestion/command/record_span",
        ),
        NameRule(
            kind="stream",
            allowed=re.compile(rf"{_PART}(:{_PART})*"),
            longest=128,
            rule="stream queue names are parts of letters, digits, '_', '.', '-', joined by ':'",
            example="fd:step_queue",
        ),
        NameRule(
            kind="log",
            allowed=re.compile(_PART),
            longest=64,
            rule="log names are letters, digits, '_', '.', '-'; ':' comes before the partition",
            example="log",
        ),
        NameRule(
            kind="room",
            allowed=re.compile(rf"{_PART}(:{_PART})*"),
            longest=128,
            rule="room names are parts of letters, digits, '_', '.', '-', joined by ':'",
            example="evt_2025_1001",
        ),
    )
}
"""The one table of naming rules. A kind's tag is its name (and parts Toril adds) inside braces."""


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


QueueName = NewType("QueueName", str)
"""A queue name that carries its hash tag, like ``{collector}``."""


def make_queue_name(name: str) -> QueueName:
    """The cluster-safe form of a plain queue name: ``collector`` becomes ``{collector}``.

    Static names and pipeline names (``span_ingestion/command/record_span``) go through the same call.
    Each queue gets a tag of its own, so that queues spread over the slots of a cluster.
    """
    return QueueName("{" + NAME_RULES["queue"].check(name) + "}")


class QueueNames(StrEnum):
    """The queue names of an application, declared once, each tagged.

    ::

        class Queues(QueueNames):
            COLLECTOR = "collector"
            EVALUATIONS = "evaluations"

        assert Queues.COLLECTOR == "{collector}"

    A name that breaks the rule, or is listed twice, is an error when the class is made. In the
    application's tests, :func:`toril.testing.assert_tagged` proves the tags and shows the slots.
    """

    def __new__(cls, name: str) -> Self:
        member = str.__new__(cls, make_queue_name(name))
        member._value_ = str(member)
        return member

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for alias, member in cls.__members__.items():
            if alias != member.name:
                raise InvalidName("queue name", str(member), f"declared twice, as {member.name} and {alias}")


# ---------------------------------------------------------------------------- key sets


@dataclass(frozen=True)
class KeySet:
    """The keys of one keyspace.

    Subclasses make every key from :attr:`base`, which holds the tag, so that all of them share a slot.
    A script's header names the keys it takes; they are looked up here by attribute.
    """

    kind: ClassVar[Kind]
    base: Key = field(init=False)

    def __getitem__(self, suffix: str) -> Key:
        return Key(f"{self.base}{suffix}")

    @property
    def tag(self) -> bytes | None:
        """The hash tag that all keys of this set share; None for an untagged BullMQ queue."""
        return tag_of(self.base)

    @property
    def slot(self) -> int | None:
        """The slot all keys of this set live in; None for an untagged BullMQ queue."""
        return slot_of(self.base) if self.tag is not None else None

    def walk(self, ident: str) -> Iterator[Key]:
        """Every key this set can build, those that take an id with ``ident``. For tests."""
        yield self.base
        own = {spec.name for spec in fields(self)}
        for name in dir(type(self)):
            if name.startswith("_") or name in own or name in _NOT_KEYS:
                continue
            made: Any = getattr(self, name)
            key = made(ident) if callable(made) else made
            assert isinstance(key, Key), f"{type(self).__name__}.{name} is not a key"
            yield key


_NOT_KEYS = frozenset({"kind", "tag", "slot", "walk", "cluster_safe_name", "label"})


@dataclass(frozen=True)
class QueueKeys(KeySet):
    """The keys of a BullMQ 5.62 queue: ``<prefix>:<name>:<suffix>``.

    The name is taken as Node has it, so that a queue can be shared: ``{collector}``, but also a plain
    ``collector`` on a standalone server. The tag may be in the prefix instead (``{bull}``).
    """

    kind: ClassVar[Kind] = "queue"

    name: str
    prefix: str = "bull"

    def __post_init__(self) -> None:
        given: dict[str, object] = {"queue name": self.name, "queue prefix": self.prefix}
        for what, value in given.items():
            if not isinstance(value, str) or not value:
                raise InvalidName(what, value, "it must be a string with at least one character")
            if not _is_utf8(value):
                raise InvalidName(what, value, "it must be text that UTF-8 can encode")
        if ":" in self.name:
            raise InvalidName("queue name", self.name, "BullMQ queue names hold no ':'")
        object.__setattr__(self, "base", Key(f"{self.prefix}:{self.name}:"))

    @property
    def cluster_safe_name(self) -> str:
        """The name to use on a cluster: this one where prefix and name carry a tag, else a tagged one."""
        return self.name if self.tag is not None else make_queue_name(self.name)

    @property
    def id(self) -> Key:
        """Counter of job ids."""
        return self["id"]

    @property
    def meta(self) -> Key:
        """Hash: paused, concurrency, limits, version."""
        return self["meta"]

    @property
    def wait(self) -> Key:
        """List of waiting job ids; producers push at the head, workers take from the tail."""
        return self["wait"]

    @property
    def paused(self) -> Key:
        """What ``wait`` is called while the queue is paused."""
        return self["paused"]

    @property
    def active(self) -> Key:
        """List of job ids being worked on."""
        return self["active"]

    @property
    def prioritized(self) -> Key:
        """Sorted set of waiting jobs that have a priority."""
        return self["prioritized"]

    @property
    def priority_counter(self) -> Key:
        """Counter that keeps jobs of one priority in order."""
        return self["pc"]

    @property
    def delayed(self) -> Key:
        """Sorted set of jobs due later."""
        return self["delayed"]

    @property
    def waiting_children(self) -> Key:
        """Sorted set of parents whose children are not done."""
        return self["waiting-children"]

    @property
    def completed(self) -> Key:
        """Sorted set of completed jobs."""
        return self["completed"]

    @property
    def failed(self) -> Key:
        """Sorted set of failed jobs."""
        return self["failed"]

    @property
    def marker(self) -> Key:
        """Sorted set that workers block on."""
        return self["marker"]

    @property
    def stalled(self) -> Key:
        """Set of ids that may have stalled."""
        return self["stalled"]

    @property
    def stalled_check(self) -> Key:
        """String that lets one worker per interval look for stalled jobs."""
        return self["stalled-check"]

    @property
    def limiter(self) -> Key:
        """Counter of jobs started in the current rate-limit window."""
        return self["limiter"]

    @property
    def events(self) -> Key:
        """Stream of queue events."""
        return self["events"]

    @property
    def repeat(self) -> Key:
        """Sorted set of job schedulers by their next run."""
        return self["repeat"]

    @property
    def metrics_completed(self) -> Key:
        """Hash: completed jobs in the current minute."""
        return self["metrics:completed"]

    @property
    def metrics_completed_data(self) -> Key:
        """List: completed jobs per minute."""
        return self["metrics:completed:data"]

    @property
    def metrics_failed(self) -> Key:
        """Hash: failed jobs in the current minute."""
        return self["metrics:failed"]

    @property
    def metrics_failed_data(self) -> Key:
        """List: failed jobs per minute."""
        return self["metrics:failed:data"]

    def job(self, job_id: str) -> Key:
        """Hash of one job."""
        return self[job_id]

    def lock(self, job_id: str) -> Key:
        """Lock of an active job."""
        return self[f"{job_id}:lock"]

    def logs(self, job_id: str) -> Key:
        """Log lines of a job."""
        return self[f"{job_id}:logs"]

    def dependencies(self, job_id: str) -> Key:
        """Set of a parent's unfinished children."""
        return self[f"{job_id}:dependencies"]

    def processed(self, job_id: str) -> Key:
        """Hash of a parent's finished children and their results."""
        return self[f"{job_id}:processed"]

    def failed_children(self, job_id: str) -> Key:
        """Hash of a parent's children whose failure is ignored."""
        return self[f"{job_id}:failed"]

    def unsuccessful(self, job_id: str) -> Key:
        """Sorted set of a parent's children whose failure fails it."""
        return self[f"{job_id}:unsuccessful"]

    def deduplication(self, dedup_id: str) -> Key:
        """The job that owns a deduplication id."""
        return self[f"de:{dedup_id}"]

    def scheduler(self, scheduler_id: str) -> Key:
        """Hash of one job scheduler."""
        return self[f"repeat:{scheduler_id}"]


def _own_suffixes() -> frozenset[str]:
    keys = QueueKeys("q")
    own = [getattr(keys, name) for name, made in vars(QueueKeys).items() if isinstance(made, property)]
    suffixes = {key[len(keys.base) :] for key in own if isinstance(key, Key)}
    return frozenset(suffixes | {"delay", "priority"})  # the last two are older versions'


QUEUE_SUFFIXES = _own_suffixes()
"""The keys a queue has of its own: no job can have such an id."""


@dataclass(frozen=True)
class LogKeys(KeySet):
    """What an event log keeps apart from its partitions."""

    kind: ClassVar[Kind] = "log"

    name: str = "log"

    def __post_init__(self) -> None:
        name = NAME_RULES["log"].check(self.name)
        object.__setattr__(self, "base", Key(f"toril:{{{name}}}:"))

    @property
    def meta(self) -> Key:
        """Hash: the log's epochs, its retention and its limits."""
        return self["meta"]

    @property
    def paused(self) -> Key:
        """Set of the processors and tenants that are paused."""
        return self["paused"]

    @property
    def generations(self) -> Key:
        """Hash: which generation of a projection its readers see, and what is known of each generation."""
        return self["generations"]

    def members(self, processor: str) -> Key:
        """Sorted set of the workers that run a processor, by when they were last heard of."""
        return self[f"m:{processor}"]


LOG_METAS = "toril:{*}:meta"
"""The pattern of the keys under which logs describe themselves."""


def log_of(meta: bytes) -> str | None:
    """The log that a key of the pattern :data:`LOG_METAS` belongs to; None where it is no log's."""
    name = meta.decode(errors="replace").removeprefix("toril:{").removesuffix("}:meta")
    return name if NAME_RULES["log"].allowed.fullmatch(name) else None


@dataclass(frozen=True)
class PartitionKeys(KeySet):
    """The keys of one partition of an event log: tag ``{log:07}``, in a later epoch ``{log:2:07}``."""

    kind: ClassVar[Kind] = "partition"

    log: str = "log"
    epoch: int = 1
    number: int = 0

    def __post_init__(self) -> None:
        NAME_RULES["log"].check(self.log)
        for what, value, least in (("epoch", self.epoch, 1), ("partition", self.number, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidName(what, value, f"a whole number of at least {least}")
        object.__setattr__(self, "base", Key(f"toril:{{{self.label}}}:"))

    @property
    def label(self) -> str:
        """Its name: ``log:07``, in a later epoch ``log:2:07``."""
        epoch = f"{self.epoch}:" if self.epoch > 1 else ""
        return f"{self.log}:{epoch}{self.number:02d}"

    @property
    def entries(self) -> Key:
        """Stream of the events."""
        return self["entries"]

    @property
    def head(self) -> Key:
        """Hash: the last ordinal, what was trimmed, whether it is sealed, the filter's size."""
        return self["head"]

    @property
    def readers(self) -> Key:
        """Hash of the readers and their floors."""
        return self["readers"]

    @property
    def activity(self) -> Key:
        """Sorted set of the aggregates in Redis, by their last activity."""
        return self["activity"]

    @property
    def blobs(self) -> Key:
        """Sorted set of the bodies kept outside the stream, by ordinal."""
        return self["blobs"]

    @property
    def walls(self) -> Key:
        """Set of the tenants that are being erased."""
        return self["walls"]

    @property
    def leaving(self) -> Key:
        """Sorted set of the journeys to the cold store that are under way, by when they began."""
        return self["leaving"]

    @property
    def erased(self) -> Key:
        """Sorted set of the tenants that were erased during the last day, by when."""
        return self["erased"]

    @property
    def erasing(self) -> Key:
        """Set of the bodies kept outside the stream whose entries are being erased, by ordinal."""
        return self["erasing"]

    def erased_since(self, reader: str) -> Key:
        """Set of the tenants that were erased since a processor that is being loaded got its place."""
        return self[f"e:{reader}"]

    @property
    def rewrite(self) -> Key:
        """The stream as it will be when a tenant has been erased from it."""
        return self["rewrite"]

    @property
    def bell(self) -> Key:
        """Channel that rings when entries were appended."""
        return self["bell"]

    @property
    def leases(self) -> Key:
        """Hash: which worker runs a processor here, and until when."""
        return self["leases"]

    def waiting(self, processor: str) -> Key:
        """Sorted set of the aggregates whose events a processor has parked, by when they are due."""
        return self[f"w:{processor}"]

    def trouble(self, processor: str) -> Key:
        """Hash: why an aggregate's events are parked."""
        return self[f"x:{processor}"]

    def parked(self, ident: str) -> Key:
        """List of the parked events of one aggregate; ``<processor> <aggregate>``."""
        return self[f"q:{ident}"]

    def aggregate(self, key: str) -> Key:
        """Hash of one aggregate: version, idempotency keys, where its entries are, states."""
        return self[f"a:{key}"]

    def blob(self, ordinal: str) -> Key:
        """A body kept outside the stream."""
        return self[f"b:{ordinal}"]

    def filter(self, level: str) -> Key:
        """One level of the filter that remembers which aggregates are cold."""
        return self[f"f:{level}"]


@dataclass(frozen=True)
class ServerKeys(KeySet):
    """What the HTTP servers of one Redis share."""

    kind: ClassVar[Kind] = "server"

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", Key("toril:{server}:"))

    @property
    def api_keys(self) -> Key:
        """Hash of the API keys, by their digest."""
        return self["api-keys"]

    @property
    def api_keys_used(self) -> Key:
        """Hash: when an API key was last used, by its digest."""
        return self["api-keys-used"]


KEY_SETS: Mapping[Kind, type[KeySet]] = {
    "queue": QueueKeys,
    "log": LogKeys,
    "partition": PartitionKeys,
    "server": ServerKeys,
}
"""The key set of each kind of keyspace; a script's header names the kind it works on."""


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
