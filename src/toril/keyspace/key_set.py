"""A key set: the keys of one keyspace, all with one hash tag."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from toril.keyspace.names import Kind
from toril.keyspace.slots import Key, slot_of, tag_of


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
