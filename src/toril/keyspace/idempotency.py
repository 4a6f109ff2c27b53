"""The keys of idempotency keys."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

from toril.keyspace.key_set import KeySet
from toril.keyspace.names import Kind
from toril.keyspace.slots import Key


@dataclass(frozen=True)
class IdempotencyKeys(KeySet):
    """What is kept of one idempotency key. Of the key itself, only a digest is in it."""

    kind: ClassVar[Kind] = "idempotency"

    key: str

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:32]
        object.__setattr__(self, "base", Key(f"toril:idempotency:{{{digest}}}:"))

    @property
    def asked(self) -> Key:
        """What was asked for with it: a digest."""
        return self["asked"]
