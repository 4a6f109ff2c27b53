"""A mergeable field of names and texts: what each name said first."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from toril.events.computed import as_text, check_most, cut
from toril.events.errors import ConfigurationError
from toril.events.event import AnyEvent
from toril.events.expressions import Condition, Expression
from toril.events.fields import Field, Source, Types, Where, checked
from toril.events.orders import Order, OrderKind, Place

LONGEST_KEY = 256
"""Keys of more bytes than this are passed over: they come from outside, and cut ones could be mistaken."""

_Entry = tuple[Any, str, str]
"""The place in the order, the event's id, and the text."""


class FirstPerKey(Field[dict[str, str]]):
    """Texts by key, each the first in an order that the key had.

    ::

        attributes = FirstPerKey(
            {"service": path("data", "resource", "service.name")},
            prefixes={"metadata.": "data.attributes"},
            order="data.start",
            limit=64,
            most=512,
        )

    ``named`` are keys and where their value comes from. ``prefixes`` takes all entries of an object whose
    name begins so; a key that is named is not looked for there. A value that is no text is taken as its
    JSON, and each is cut to ``most`` bytes of UTF-8. ``limit`` keeps that many keys, the smallest; which
    those are does not depend on the order of events. Of texts at the same place, that of the smaller event
    id is taken.
    """

    what = "first_per_key"

    def __init__(
        self,
        named: Mapping[str, Source | Condition],
        *,
        limit: int,
        most: int,
        prefixes: Mapping[str, Source] | None = None,
        order: Order = "occurred_at",
        order_kind: OrderKind = int,
        of: Types = None,
        where: Where | None = None,
    ) -> None:
        super().__init__(of=of, where=where)
        if type(limit) is not int or limit < 1:
            raise ConfigurationError(f"limit={limit!r} must be a whole number from 1")
        check_most(most)
        self.limit, self.most = limit, most
        self._named = {key: self.take(source) for key, source in named.items()}
        self._prefixes = {prefix: self.take(source) for prefix, source in (prefixes or {}).items()}
        for key in (*self._named, *self._prefixes):
            if not isinstance(key, str) or not key or not _fits(key):
                raise ConfigurationError(f"the key {key!r:.100} must be text of 1 to {LONGEST_KEY} bytes")
        self.place = Place(self, order, order_kind)

    def contribution(self, event: AnyEvent) -> dict[str, _Entry] | None:
        found = self._found(event)
        if not found or (place := self.place.of(event)) is None:
            return None
        ident, most = event.id, self.most
        return {key: (place, ident, cut(as_text(found[key]), most)) for key in sorted(found)[: self.limit]}

    def _found(self, event: AnyEvent) -> dict[str, Any]:
        named = self._named
        found = {key: value for key, (_, evaluate) in named.items() if (value := evaluate(event)) is not None}
        for prefix, (_, evaluate) in self._prefixes.items():
            entries = evaluate(event)
            if isinstance(entries, Mapping):
                found |= {
                    key: value
                    for key, value in entries.items()
                    if key.startswith(prefix) and value is not None and key not in named and _fits(key)
                }
        return found

    def combine(self, one: dict[str, _Entry], other: dict[str, _Entry]) -> dict[str, _Entry]:
        better = {key: entry for key, entry in other.items() if key not in one or entry < one[key]}
        if not better:
            return one
        both = {**one, **better}
        return {key: both[key] for key in sorted(both)[: self.limit]}

    def shown(self, accumulated: dict[str, _Entry] | None) -> dict[str, str]:
        return {key: entry[2] for key, entry in accumulated.items()} if accumulated else {}

    def stored(self, accumulated: dict[str, _Entry]) -> list[Any]:
        """By place and event, in order: most keys come from few events."""
        entries = sorted((place, event, key, text) for key, (place, event, text) in accumulated.items())
        return [
            [place, event, {key: text for _, _, key, text in group}]
            for (place, event), group in groupby(entries, lambda entry: entry[:2])
        ]

    def restored(self, stored: Any) -> dict[str, _Entry]:
        found: dict[str, _Entry] = {}
        for group in stored if isinstance(stored, list) else ():
            if not isinstance(group, list) or len(group) != 3 or not isinstance(group[1], str):
                raise ValueError(f"{self.name}: stored are orders, event ids, and texts by key")
            place, texts = self.place.restored(group[0]), group[2]
            if not isinstance(texts, dict) or not texts or not found.keys().isdisjoint(texts):
                raise ValueError(f"{self.name}: each key is stored once, with its text")
            found.update((key, (place, group[1], checked(self.name, texts[key], str))) for key in texts)
        if not 0 < len(found) <= self.limit:
            raise ValueError(f"{self.name}: stored are 1 to {self.limit} keys")
        return {key: found[key] for key in sorted(found)}

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "named": {key: _described(source) for key, (source, _) in self._named.items()},
            "prefixes": {prefix: _described(source) for prefix, (source, _) in self._prefixes.items()},
            "limit": self.limit,
            "most": self.most,
            "longest_key": LONGEST_KEY,
            **self.place.describe(),
        }


def _fits(key: str) -> bool:
    return len(key.encode()) <= LONGEST_KEY


def _described(source: object) -> dict[str, Any] | None:
    return source.describe() if isinstance(source, Expression) else None
