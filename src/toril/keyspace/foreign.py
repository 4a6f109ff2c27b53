"""Keys that others have named."""

from __future__ import annotations

from toril.keyspace.slots import Key


def foreign_key(name: str | bytes) -> Key:
    """A key by the name that it has; an error where that is not text."""
    return Key(name.decode() if isinstance(name, bytes) else name)
