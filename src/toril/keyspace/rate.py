"""The keys of rate limits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

from toril.keyspace.key_set import KeySet
from toril.keyspace.names import Kind
from toril.keyspace.slots import Key


@dataclass(frozen=True)
class RateKeys(KeySet):
    """What is kept of one caller whose calls are limited. Of who it is, only a digest is in the key."""

    kind: ClassVar[Kind] = "rate"

    limit: str
    """Which limit: ``join``."""
    caller: str

    def __post_init__(self) -> None:
        digest = hashlib.sha256(f"{self.limit}\n{self.caller}".encode()).hexdigest()[:32]
        object.__setattr__(self, "base", Key(f"toril:rate:{{{digest}}}:"))

    @property
    def bucket(self) -> Key:
        """Hash: how much is left, and when that was so."""
        return self["bucket"]
