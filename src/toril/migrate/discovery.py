"""Finding queues, and what links them."""

from __future__ import annotations

import fnmatch
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from toril.connection import Connection
from toril.errors import InvalidValue
from toril.keyspace import QueueKeys
from toril.migrate.jobs import STATES
from toril.migrate.reading import QueueReader
from toril.migrate.report import Told, tell_nobody

TELLING = ("meta", "id", "repeat", *STATES)
"""The keys by which a queue is recognised: a queue need not have ``meta``."""


async def find_queues(redis: Connection, prefix: str = "bull") -> list[str]:
    """The names of all queues without a hash tag, from every server, in small steps."""
    start = f"{prefix}:".encode()
    found: set[str] = set()
    for suffix in TELLING:
        end = f":{suffix}".encode()
        async for key in redis.scan(QueueKeys("*", quoted(prefix))[suffix]):
            name = key[len(start) : -len(end)]
            if name and b":" not in name:  # else it is a key of a job, or of another prefix
                found.add(name.decode(errors="replace"))
    return sorted(name for name in found if QueueKeys(name, prefix).tag is None)


async def choose_queues(
    redis: Connection, names: Sequence[str], prefix: str = "bull", given: Mapping[str, str] | None = None
) -> list[str]:
    """The queues that are meant: by name, by pattern (``trace_processing/*``), of a mapping, or all."""
    wanted = [*names, *(given or {})]
    plain = [name for name in wanted if not _is_pattern(name)]
    patterns = [name for name in wanted if _is_pattern(name)]
    found: list[str] = []
    for name in plain:
        if QueueKeys(name, prefix).tag is not None and name not in (given or {}):
            raise InvalidValue("queue", name, "it carries a hash tag already: name the old queue")
        if await QueueReader(redis, QueueKeys(name, prefix)).exists():
            found.append(name)
        elif name in names:
            raise InvalidValue("queue", name, f"there is no such queue with prefix {prefix!r} at {redis.url}")
    if patterns or not wanted:
        every = await find_queues(redis, prefix)
        found += [
            name for name in every if not wanted or any(fnmatch.fnmatchcase(name, each) for each in patterns)
        ]
    return list(dict.fromkeys(found))


async def find_links(
    redis: Connection, names: Sequence[str], prefix: str = "bull", told: Told = tell_nobody
) -> list[list[str]]:
    """Groups of queues that flows link, with those that are linked to them and were not named."""
    linked: dict[str, set[str]] = {}
    to_look = list(names)
    while to_look:
        name = to_look.pop()
        if name in linked:
            continue
        linked[name] = {name}
        reader = QueueReader(redis, QueueKeys(name, prefix))
        of, done = sum((await reader.counts()).values()), 0
        for state in STATES:
            async for places in reader.walk(state):
                done += len(places)
                told(f"looking at {name}", done, max(of, done))
                parents, children = await reader.links(places)
                for key in [*(parent + b":" for parent in parents), *children]:
                    linked[name].add(_queue_of(key, prefix))
        to_look += linked[name] - linked.keys()
    return _groups(linked)


def _groups(linked: Mapping[str, Iterable[str]]) -> list[list[str]]:
    group_of: dict[str, set[str]] = {name: {name} for name in linked}
    for others in linked.values():
        joined = set[str]().union(*(group_of[each] for each in others))
        for each in joined:
            group_of[each] = joined
    unique = {id(group): sorted(group) for group in group_of.values()}
    return sorted(unique.values())


def _queue_of(key: bytes, prefix: str) -> str:
    """The queue that a job's key belongs to: a name holds no ``:``."""
    start = f"{prefix}:".encode()
    if not key.startswith(start):
        raise InvalidValue(
            "flow", key.decode(errors="replace"), f"it leads to a queue with another prefix than {prefix!r}"
        )
    return key[len(start) :].partition(b":")[0].decode(errors="replace")


async def dedup_ids(redis: Connection, queues: Sequence[QueueKeys]) -> AsyncIterator[tuple[QueueKeys, str]]:
    """The deduplication ids of queues, from one look at all keys of their prefixes."""
    bases = {keys.deduplication("").encode(): keys for keys in queues}
    for prefix in {keys.prefix for keys in queues}:
        only = queues[0].name if len(queues) == 1 else "*"
        pattern = QueueKeys(quoted(only) if only != "*" else "*", quoted(prefix)).deduplication("*")
        async for key in redis.scan(pattern):
            for base, keys in bases.items():
                if key.startswith(base):
                    yield keys, key[len(base) :].decode(errors="replace")


def quoted(text: str) -> str:
    """Text that a pattern takes as it is."""
    return "".join(f"\\{char}" if char in "*?[]\\" else char for char in text)


def _is_pattern(name: str) -> bool:
    return any(char in name for char in "*?[")
