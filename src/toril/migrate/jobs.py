"""A job as it is moved: all that a queue knows of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from toril import codec
from toril.migrate.errors import LinkedOutside
from toril.migrate.moves import Moves

STATES = ("waiting-children", "active", "wait", "paused", "prioritized", "delayed", "failed", "completed")
"""The keys that hold jobs, in the order in which they are copied: a parent comes before its children, so that
no child can finish before its parent is there to be told."""

LISTS = frozenset({"wait", "paused", "active"})

LETTERS = {
    "wait": "w",
    "paused": "w",
    "prioritized": "p",
    "delayed": "d",
    "waiting-children": "h",
    "active": "a",
    "completed": "c",
    "failed": "f",
}
"""How the tracker notes a state; a job of a paused queue waits."""

NAMES = {letter: "waiting" if state in ("wait", "paused") else state for state, letter in LETTERS.items()}
"""What the states are called to people."""

FINISHED = frozenset({"completed", "failed"})


@dataclass(frozen=True, slots=True)
class Place:
    """A job's id, and where it is."""

    id: str
    state: str
    score: bytes = b""
    readable: bool = True
    """Whether the id is text; of one that is not, this has what can be shown."""

    @property
    def letter(self) -> str:
        """See :data:`LETTERS`."""
        return LETTERS[self.state]


@dataclass(frozen=True, slots=True)
class StoredJob:
    """Everything of one job."""

    place: Place
    fields: dict[bytes, bytes]
    """Its hash; empty where there is none."""
    logs: list[bytes] = field(default_factory=list)
    waits: list[bytes] = field(default_factory=list)
    """Keys of children it waits for."""
    results: list[bytes] = field(default_factory=list)
    """Keys and results of children, in turn."""
    ignored: list[bytes] = field(default_factory=list)
    """Keys and failures of children, in turn."""
    failures: list[bytes] = field(default_factory=list)
    """Keys of children and when they failed, in turn."""
    locked: bool = False
    awaited: bool = False
    """Whether its parent waits for it."""
    dedup_owner: str = ""
    """Which job owns its deduplication id."""
    dedup_ttl: int = -1
    problem: str = ""
    """Why it could not be read."""

    @classmethod
    def read(cls, place: Place, reply: list[Any]) -> StoredJob:
        """From what the script ``migrate/read`` says of it."""
        fields, logs, waits, results, ignored, failures, locked, awaited, owner = reply
        if isinstance(fields, bytes):
            return cls(place, {}, problem=fields.decode(errors="replace"))
        its = dict(zip(fields[::2], fields[1::2], strict=True))
        who, ttl = (owner[0].decode(errors="replace"), int(owner[1])) if owner else ("", -1)
        return cls(place, its, logs, waits, results, ignored, failures, bool(locked), bool(awaited), who, ttl)

    @property
    def timestamp(self) -> str:
        """When it was made: with its id, this tells a job from another that got the same id later."""
        said = self.fields.get(b"timestamp", b"").decode(errors="replace")
        return said if said.isdigit() else ""

    @property
    def scheduler(self) -> str:
        """The scheduler whose next run it is to be, or nothing."""
        own = self.fields.get(b"rjk", b"").decode(errors="replace")
        waits = self.place.state in ("delayed", "wait", "paused", "prioritized")
        return (
            own if waits and self.place.id.startswith(f"repeat:{own}:") and b"ats" not in self.fields else ""
        )

    @property
    def in_flow(self) -> bool:
        """Whether other jobs know it by its key."""
        return b"parentKey" in self.fields or bool(
            self.waits or self.results or self.ignored or self.failures
        )

    def renamed(self, moves: Moves) -> StoredJob:
        """The same job with the names its relatives have at the destination."""
        if not self.in_flow:
            return self
        its = dict(self.fields)
        if b"parentKey" in its:
            its[b"parentKey"] = moves.renamed(its[b"parentKey"])
            _rename_queue(its, b"parent", "queueKey", moves)
            _rename_queue(its, b"opts", "queue", moves, inside="parent")
        return replace(
            self,
            fields=its,
            waits=[moves.renamed(key) for key in self.waits],
            results=_pairs_renamed(self.results, moves),
            ignored=_pairs_renamed(self.ignored, moves),
            failures=_pairs_renamed(self.failures, moves),
        )

    def digest(self) -> str:
        """Of what it consists of, in whatever order: equal before and after a move, and a promotion."""
        fields = sorted(pair for pair in self.fields.items() if pair[0] != b"delay")
        parts = [*(part for pair in fields for part in pair), b"logs", *self.logs]
        parts += [b"waits", *sorted(self.waits)]
        for name, flat in (
            (b"results", self.results),
            (b"ignored", self.ignored),
            (b"failures", self.failures),
        ):
            pairs = sorted(zip(flat[::2], flat[1::2], strict=True))
            parts += [name, *(part for pair in pairs for part in pair)]
        whole = b"".join([_head(len(part)) + part for part in parts])
        return hashlib.blake2b(whole, digest_size=8).hexdigest()

    def packed(self, moves: Moves, *, letter: str = "", renumber: bool = False) -> bytes:
        """What the script ``migrate/copy`` takes, for a job that was renamed."""
        value: dict[str, Any] = {
            "id": self.place.id,
            "letter": letter or self.place.letter,
            "timestamp": self.timestamp,
        }
        if letter not in ("x", "o"):
            value |= {
                "score": self.place.score.decode(),
                "digest": self.digest(),
                "fields": _texts([part for pair in self.fields.items() for part in pair]),
                "logs": _texts(self.logs),
                "waits": _texts(self.waits),
                "results": _texts(self.results),
                "ignored": _texts(self.ignored),
                "failures": _texts(scores_first(self.failures)),
                "renumber": renumber and not self.in_flow and not self.scheduler,
            }
            if self.awaited and self.place.state not in FINISHED:
                base, ident = parent_of(self, moves)
                value |= {"awaited": True, "parent_base": base, "parent_id": ident}
            if self.scheduler:
                value["scheduler"] = self.scheduler
            if self.dedup_owner == self.place.id:
                options = codec.decode(self.fields.get(b"opts", b"{}"))
                rule = options.get("de") if isinstance(options, dict) else None
                value["dedup"] = {
                    "id": self.fields[b"deid"].decode(),
                    "ttl": self.dedup_ttl,
                    "replace": bool(isinstance(rule, dict) and rule.get("replace")),
                }
        return msgspec.msgpack.encode(value)


def parent_of(job: StoredJob, moves: Moves) -> tuple[str, str]:
    """The key prefix of the queue that has a job's parent, at the destination, and the parent's id."""
    key = job.fields[b"parentKey"]
    for move in moves:
        base = str(move.destination.base)
        if key.startswith(base.encode()):
            return base, key[len(base.encode()) :].decode()
    raise LinkedOutside(f"its parent {key.decode(errors='replace')!r} is in a queue that is not moved along")


def _rename_queue(its: dict[bytes, bytes], name: bytes, key: str, moves: Moves, inside: str = "") -> None:
    """Rename the queue that a field in JSON names as ``prefix:name``."""
    if name not in its:
        return
    whole = codec.decode(its[name])
    value = whole.get(inside) if inside and isinstance(whole, dict) else whole
    if not isinstance(value, dict) or not isinstance(value.get(key), str):
        return
    value[key] = moves.renamed(f"{value[key]}:".encode()).decode().removesuffix(":")
    its[name] = codec.encode(name.decode(), whole)


def _pairs_renamed(flat: list[bytes], moves: Moves) -> list[bytes]:
    return [part if place % 2 else moves.renamed(part) for place, part in enumerate(flat)]


def scores_first(flat: list[bytes]) -> list[bytes]:
    """Times before children, as ZADD takes them."""
    return [part for place in range(0, len(flat), 2) for part in (flat[place + 1], flat[place])]


def _texts(parts: list[bytes]) -> msgspec.Raw:
    """Bytes as MessagePack has a list of texts: that of the servers knows no bytes."""
    if not parts:
        return _NONE
    count = len(parts)
    head = bytes([0x90 | count]) if count < 16 else b"\xdd" + count.to_bytes(4)
    return msgspec.Raw(head + b"".join([_head(len(part)) + part for part in parts]))


_NONE = msgspec.Raw(b"\x90")
_SHORT = [bytes([0xA0 | size]) for size in range(32)]


def _head(size: int) -> bytes:
    if size < 32:
        return _SHORT[size]
    return b"\xda" + size.to_bytes(2) if size < 1 << 16 else b"\xdb" + size.to_bytes(4)
