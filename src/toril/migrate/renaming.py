"""Renaming keys of any kind by a rule: ``dedupe:<user>:<event>`` → ``dedupe:{<event>}:<user>``."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from toril.connection import CommandRefused, Connection, load_script
from toril.errors import InvalidValue
from toril.keyspace import Key, foreign_key, tag_of
from toril.migrate.discovery import quoted
from toril.migrate.report import MOST_PROBLEMS, Pace, Problem, Told, tell_nobody

PUT = load_script("migrate/put")

TTL_TOLERANCE = 5000
"""Milliseconds by which the times to live of two copies may differ."""

STEP = 50
"""Keys that are worked on at once."""

EXAMPLES = 5

_PART = re.compile(r"<([a-z_][a-z0-9_]*)(\*?)>")

_READ: dict[bytes, tuple[str | int, ...]] = {
    b"string": ("GET",),
    b"list": ("LRANGE", 0, -1),
    b"set": ("SMEMBERS",),
    b"hash": ("HGETALL",),
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    b"stream": ("XRANGE", "-", "+"),
}


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How keys are renamed. ``<name>`` stands for a part without ``:``, ``<name*>`` for any text."""

    old: str
    new: str
    matcher: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = [found[1] for found in _PART.finditer(self.old)]
        if not names or len(set(names)) != len(names):
            raise InvalidValue("old key", self.old, "it needs parts like <event>, each named once")
        if strange := {found[1] for found in _PART.finditer(self.new)} - set(names):
            raise InvalidValue("new key", self.new, f"<{min(strange)}> is not a part of {self.old!r}")
        if tag_of(_PART.sub("x", self.new)) is None:
            raise InvalidValue("new key", self.new, "it needs a hash tag, like {<event>}")
        if tag_of(_PART.sub("x", self.old)) is not None:
            raise InvalidValue("old key", self.old, "it has a hash tag already")
        pattern, at = "", 0
        for found in _PART.finditer(self.old):
            pattern += re.escape(self.old[at : found.start()])
            pattern += f"(?P<{found[1]}>{'.+' if found[2] else '[^:]+'})"
            at = found.end()
        pattern += re.escape(self.old[at:])
        object.__setattr__(self, "matcher", re.compile(pattern, re.DOTALL))

    @property
    def glob(self) -> str:
        """What SCAN looks for."""
        parts = _PART.split(self.old)
        return "*".join(quoted(text) for text in parts[::3])

    def rename(self, key: str) -> str | None:
        """The new name; None for a key that the rule does not mean, or that has a hash tag already."""
        found = self.matcher.fullmatch(key)
        if found is None or tag_of(key) is not None:
            return None
        if any(char in value for value in found.groupdict().values() for char in "{}"):
            raise InvalidValue("key", key, "its parts hold braces, which would break the new hash tag")
        return _PART.sub(lambda part: found[part[1]], self.new)


@dataclass(slots=True)
class KeysReport:
    """What became of the keys of a rule."""

    old: str
    new: str
    found: int = 0
    copied: int = 0
    already: int = 0
    """Keys that were there, with the same value."""
    missing: int = 0
    """Keys that are not there; when verifying."""
    examples: list[tuple[str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, key: str, what: str) -> None:
        """Note what went wrong with a key."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(self.old, key, what))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


async def rename_keys(
    source: Connection,
    destination: Connection,
    rule: KeyRule,
    what: str = "plan",
    *,
    rate: float | None = None,
    told: Told = tell_nobody,
) -> KeysReport:
    """Look which keys a rule means (``plan``), ``copy`` them, or ``verify`` that they were."""
    report, pace = KeysReport(rule.old, rule.new), Pace(rate)
    step = {"copy": _copy, "verify": _verify}.get(what)
    batch: dict[Key, Key] = {}

    async def work_off() -> None:
        if step is not None and batch:
            await pace.take(len(batch))
            await asyncio.gather(*(step(source, destination, *pair, report) for pair in batch.items()))
        report.found += len(batch)
        batch.clear()
        told(rule.old, report.found, 0)

    async for raw in source.scan(rule.glob):
        try:
            renamed = rule.rename(raw.decode())
        except (UnicodeDecodeError, InvalidValue) as problem:
            report.problem(raw.decode(errors="replace"), str(problem))
            continue
        if renamed is None:
            continue
        if len(report.examples) < EXAMPLES:
            report.examples.append((raw.decode(), renamed))
        batch[foreign_key(raw)] = foreign_key(renamed)
        if len(batch) >= STEP:
            await work_off()
    await work_off()
    return report


async def _copy(source: Connection, destination: Connection, old: Key, new: Key, report: KeysReport) -> None:
    payload, ttl, kind = await source.read_many([("DUMP", old), ("PTTL", old), ("TYPE", old)], old)
    if payload is None:
        return  # it has just expired
    try:
        await destination.command("RESTORE", new, max(ttl, 0), payload, repeatable=True)
    except CommandRefused as problem:
        if problem.code == "BUSYKEY":
            await _compare(source, destination, old, new, report)
            return
        if "payload" not in str(problem).lower() or kind == b"stream":
            report.problem(old, str(problem))
            return
        # A server of another kind, which does not take the other's format.
        if not await destination.run(PUT, [new], kind, max(ttl, 0), *await _value(source, old, kind)):
            await _compare(source, destination, old, new, report)
            return
    report.copied += 1


async def _compare(
    source: Connection, destination: Connection, old: Key, new: Key, report: KeysReport
) -> None:
    if await _same(source, destination, old, new):
        report.already += 1
    else:
        report.problem(old, f"{new!r} is there already, and is something else")


async def _verify(
    source: Connection, destination: Connection, old: Key, new: Key, report: KeysReport
) -> None:
    if not await destination.command("EXISTS", new):
        report.missing += 1
        report.problem(old, f"{new!r} is not there")
        return
    left = await source.command("PTTL", old)
    there = await destination.command("PTTL", new)
    if (left < 0) != (there < 0) or abs(left - there) > TTL_TOLERANCE:
        report.problem(old, f"{new!r} lives for {there} ms, and this one for {left}")
    else:
        await _compare(source, destination, old, new, report)


async def _same(source: Connection, destination: Connection, old: Key, new: Key) -> bool:
    kinds = await source.command("TYPE", old), await destination.command("TYPE", new)
    if kinds[0] != kinds[1] or kinds[0] not in _READ:
        return False
    mine, other = await _value(source, old, kinds[0]), await _value(destination, new, kinds[1])
    if kinds[0] == b"set":
        return sorted(mine) == sorted(other)
    if kinds[0] == b"hash":
        return dict(zip(mine[::2], mine[1::2], strict=True)) == dict(
            zip(other[::2], other[1::2], strict=True)
        )
    return bool(mine == other)


async def _value(redis: Connection, key: Key, kind: bytes) -> list[Any]:
    """A value, as the command takes it that writes its type."""
    command, *more = _READ[kind]
    found = await redis.command(command, key, *more)
    if kind == b"string":
        return [found]
    if kind == b"zset":
        return [part for at in range(0, len(found), 2) for part in (found[at + 1], found[at])]
    return list(found)
