"""All that a queue is: every key with its content, and where two such dumps differ.

:func:`normalise` changes only what must differ between two runs; README.md says what and why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.conformance.operations import GIVEN_STACK

TTL_TOLERANCE = 5_000
"""Times to live are multiples of ten seconds in these tests; half of that tells them apart."""

OWN_STACK = "<a stack of the implementation's own>"


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ``ttl`` is in milliseconds, -1 for a key that stays."""

    kind: str
    value: Any
    """str · list: list · set: sorted list · zset: member → score · hash: field → value ·
    stream: list of (id, [(field, value), …])"""
    ttl: int = -1


Dump = Mapping[str, Key]


# ---------------------------------------------------------------------- from a server's reply


def read_dump(rows: Iterable[Any]) -> dict[str, Key]:
    """A dump from what ``lua/dump.lua`` replies."""
    found = {}
    for key, kind, value, ttl in rows:
        name, shape = _text(key), _text(kind)
        found[name] = Key(shape, _READ[shape](value), ttl)
    return dict(sorted(found.items()))


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _texts(values: Iterable[Any]) -> list[str]:
    return [_text(value) for value in values]


def _pairs(values: list[Any]) -> list[tuple[str, str]]:
    texts = _texts(values)
    return list(zip(texts[::2], texts[1::2], strict=True))


_READ: dict[str, Callable[[Any], Any]] = {
    "string": _text,
    "list": _texts,
    "set": lambda value: sorted(_texts(value)),
    "zset": lambda value: {member: float(score) for member, score in _pairs(value)},
    "hash": lambda value: dict(_pairs(value)),
    "stream": lambda value: [(_text(entry), _pairs(pairs)) for entry, pairs in value],
}


# ---------------------------------------------------------------------- what may differ


def normalise(dump: Dump, *, random_tokens: bool = False, prefix: str | None = None) -> dict[str, Key]:
    """The dump, with what two equal runs cannot have in common made equal.

    ``random_tokens``: lock tokens were drawn by the implementations, not given by the test.
    ``prefix``: the key prefix of this dump, when the other has another one.
    """
    found = {}
    for name, key in dump.items():
        value = key.value
        if key.kind == "stream":
            value = [(str(place), pairs) for place, (_, pairs) in enumerate(value)]
        elif key.kind == "hash":
            value = {field: _normal_field(field, text) for field, text in value.items()}
        elif random_tokens and name.endswith(":lock"):
            value = "<token>"
        if prefix is not None:
            name, value = without_prefix((name, value), prefix)
        found[name] = replace(key, value=value)
    return dict(sorted(found.items()))


def _normal_field(field: str, text: str) -> Any:
    if field in ("opts", "parent"):
        return parsed(text)
    if field == "stacktrace":
        return stacks(parsed(text))
    return text


def parsed(text: str) -> Any:
    """JSON as a value: Lua's cjson keeps no order of keys, and writes an empty array as ``{}``."""
    try:
        return _without_empty_lists(json.loads(text))
    except ValueError:
        return text


def stacks(traces: Any) -> Any:
    """Stack traces: those the test gave must be the same, those of the implementation cannot be."""
    if not isinstance(traces, list):
        return traces
    return [trace if str(trace).endswith(GIVEN_STACK) else OWN_STACK for trace in traces]


def _without_empty_lists(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_empty_lists(item) for item in value] or {}
    if isinstance(value, dict):
        return {name: _without_empty_lists(item) for name, item in value.items()}
    return value


def without_prefix(value: Any, prefix: str) -> Any:
    """The value with the key prefix replaced wherever it occurs: in names of keys, in parents, in errors."""
    match value:
        case str():
            return value.replace(prefix + ":", "<prefix>:")
        case tuple() | list():
            return type(value)(without_prefix(item, prefix) for item in value)
        case dict():
            return {without_prefix(k, prefix): without_prefix(v, prefix) for k, v in value.items()}
        case _:
            return value


# ---------------------------------------------------------------------- where two differ


def differences(
    left: Dump, right: Dump, *, names: tuple[str, str] = ("left", "right"), tolerance: int = TTL_TOLERANCE
) -> list[str]:
    """What is not the same in two normalised dumps, one line each; empty when they are equal."""
    found = []
    for name in sorted(left.keys() | right.keys()):
        if name not in left or name not in right:
            who, there = (names[1], left[name]) if name in left else (names[0], right[name])
            found.append(f"{name}: {who} has no such key, the other has a {there.kind}: {there.value!r}")
            continue
        a, b = left[name], right[name]
        if a.kind != b.kind:
            found.append(f"{name}: {names[0]} has a {a.kind}, {names[1]} a {b.kind}")
            continue
        found += [f"{name}{line}" for line in _in_values(a.value, b.value, names)]
        if (a.ttl < 0) != (b.ttl < 0) or abs(a.ttl - b.ttl) > tolerance:
            found.append(f"{name}: lives for {a.ttl} ms in {names[0]}, for {b.ttl} ms in {names[1]}")
    return found


def _in_values(a: Any, b: Any, names: tuple[str, str]) -> list[str]:
    """Differences of two values of one kind, each with the path that leads to it."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = []
        for name in sorted(a.keys() | b.keys()):
            if name not in a or name not in b:
                who, value = (names[1], a[name]) if name in a else (names[0], b[name])
                found.append(f" [{name}]: {who} has none, the other has {value!r}")
            else:
                found += [f" [{name}]{line}" for line in _in_values(a[name], b[name], names)]
        return found
    if a == b:
        return []
    if isinstance(a, list) and isinstance(b, list):
        return _in_lists(a, b, names)
    return [f": {a!r} in {names[0]}, {b!r} in {names[1]}"]


def _in_lists(a: list[Any], b: list[Any], names: tuple[str, str]) -> list[str]:
    """The first place where two lists part; what follows is most likely only moved."""
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    ours, theirs = (repr(x[place]) if place < len(x) else "nothing" for x in (a, b))
    lengths = "" if len(a) == len(b) else f" (lengths {len(a)} and {len(b)})"
    return [f" at {place}: {ours} in {names[0]}, {theirs} in {names[1]}{lengths}"]
