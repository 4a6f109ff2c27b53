"""The keys of event logs and of their partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from toril.keyspace.key_set import KeySet
from toril.keyspace.names import NAME_RULES, Kind
from toril.keyspace.slots import InvalidName, Key


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
