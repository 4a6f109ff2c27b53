"""The keys of the HTTP servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from toril.keyspace.key_set import KeySet
from toril.keyspace.names import Kind
from toril.keyspace.slots import Key


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

    @property
    def room_pages(self) -> Key:
        """Hash: what the waiting page of a room shows, by event."""
        return self["room-pages"]
