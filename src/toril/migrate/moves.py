"""Which queue moves where, and what its keys are called there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toril.errors import InvalidValue
from toril.keyspace import QueueKeys, make_queue_name, tag_of
from toril.migrate.errors import LinkedOutside

LONGEST_TAG = 64
"""A shared tag is made of the names, unless it would become longer than this."""


@dataclass(frozen=True, slots=True)
class Move:
    """One queue, under its old name and under its new one."""

    source: QueueKeys
    destination: QueueKeys

    def __str__(self) -> str:
        return f"{self.source.name} → {self.destination.name}"


class Moves:
    """Queues that move together: what links them is renamed with them."""

    def __init__(self, moves: Iterable[Move], *, other_server: bool = False) -> None:
        self._moves = tuple(moves)
        seen: dict[str, Move] = {}
        for move in self._moves:
            if move.destination.tag is None:
                raise InvalidValue("new queue name", move.destination.name, "it must carry a hash tag")
            if move.source.base == move.destination.base and not other_server:
                raise InvalidValue("new queue name", move.destination.name, "it is the old one")
            if (other := seen.get(move.destination.base)) is not None:
                raise InvalidValue(
                    "new queue name",
                    move.destination.name,
                    f"{other.source.name!r} and {move.source.name!r} cannot both become it: their ids meet",
                )
            seen[move.destination.base] = move
        self._by_base = {move.source.base.encode(): move for move in self._moves}

    def __len__(self) -> int:
        return len(self._moves)

    def __iter__(self) -> Iterator[Move]:
        return iter(self._moves)

    def index(self, move: Move) -> int:
        """The place of a move among them."""
        return self._moves.index(move)

    def renamed(self, key: bytes) -> bytes:
        """The key of a job in its new queue."""
        move, rest = self.owner(key)
        return move.destination.base.encode() + rest

    def owner(self, key: bytes) -> tuple[Move, bytes]:
        """The move of the queue that has a job's key, and the job's id."""
        for base, move in self._by_base.items():
            if key.startswith(base):
                return move, key[len(base) :]
        raise LinkedOutside(f"{key.decode(errors='replace')!r} is in a queue that is not moved along")

    def back(self) -> Moves:
        """The same, the other way round."""
        turned = object.__new__(Moves)
        turned._moves = tuple(Move(move.destination, move.source) for move in self._moves)
        turned._by_base = {move.source.base.encode(): move for move in turned._moves}
        return turned


def new_names(
    names: Sequence[str],
    groups: Iterable[Sequence[str]] = (),
    given: Mapping[str, str] | None = None,
    tag: str | None = None,
) -> dict[str, str]:
    """What queues are to be called: tagged, and those that flows link under one tag.

    ``given`` are the names that were chosen; those of one group must share a tag. ``tag`` is for all that
    were not given.
    """
    chosen = dict(given or {})
    made: dict[str, str] = {}
    shared = {name: group for group in groups for name in group}
    for name in names:
        group = shared.get(name, (name,))
        tags = {tag_of(chosen[each]) for each in group if each in chosen}
        if len(tags) > 1:
            raise InvalidValue(
                "new queue names",
                {each: chosen[each] for each in group if each in chosen},
                "flows link these queues, so their new names must share a hash tag",
            )
        if name in chosen:
            made[name] = chosen[name]
        elif tags and (own := tags.pop()) is not None:
            made[name] = f"{{{own.decode()}}}{name}"
        elif tag is not None:
            made[name] = make_queue_name(tag) + name
        elif len(group) > 1:
            made[name] = make_queue_name(_shared_tag(group)) + name
        else:
            made[name] = make_queue_name(name)
    return made


def _shared_tag(group: Sequence[str]) -> str:
    joined = "+".join(sorted(group))
    return joined if len(joined) <= LONGEST_TAG else f"{min(group)}+{len(group) - 1}"


def read_mapping(path: Path) -> dict[str, str]:
    """Old and new names from a JSON file: ``{"event-sourcing": "{event_sourcing}"}``."""
    rule = 'a JSON object of old names and new ones, like {"event-sourcing": "{event_sourcing}"}'
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InvalidValue("mapping file", str(path), f"it cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise InvalidValue("mapping file", str(path), f"{rule} ({problem})") from None
    if not isinstance(found, dict) or not all(isinstance(each, str) and each for each in found.values()):
        raise InvalidValue("mapping file", str(path), rule)
    return found
