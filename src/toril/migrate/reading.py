"""Reading a queue in portions, also where its keys lie on several servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from itertools import chain
from typing import Any

from toril.connection import CommandRefused, Connection, load_script
from toril.connection.wire import Command
from toril.errors import InvalidValue
from toril.keyspace import Key, QueueKeys, dependencies_of, lock_of
from toril.migrate.jobs import LISTS, STATES, Place, StoredJob
from toril.queue.queue import client_name

READ, LINKS = load_script("migrate/read"), load_script("migrate/links")

PORTION = 100
"""Jobs that one step moves: a server is busy with them for two milliseconds."""

PORTION_BYTES = 2 << 20
"""And the bytes they have, if no single job has more."""

IDS = 1000
"""Ids that are read at once."""


class QueueReader:
    """A queue to be read. Its keys may have no tag, and be anywhere in a cluster."""

    def __init__(self, redis: Connection, keys: QueueKeys) -> None:
        self.redis = redis
        self.keys = keys
        self.together = keys.tag is not None or not redis.clustered
        """Whether one script can read all of it."""
        self._named = (keys.base, keys.base if keys.tag is None else keys.meta)

    async def run(self, script: Any, *args: Any) -> Any:
        """Call a script on the queue."""
        return await self.redis.run(script, self._named, *args)

    async def exists(self) -> bool:
        """Whether there is anything of it."""
        keys = self.keys
        own = [keys.meta, keys.id, keys.repeat, *(keys[state] for state in STATES)]
        return any(await asyncio.gather(*(self.redis.command("EXISTS", key) for key in own)))

    async def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        asked = [self.redis.command(_counted(state), self.keys[state]) for state in STATES]
        return dict(zip(STATES, await asyncio.gather(*asked), strict=True))

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return bool(await self.redis.command("HEXISTS", self.keys.meta, "paused"))

    async def number(self, key: Key) -> int:
        """A counter."""
        return int(await self.redis.command("GET", key) or 0)

    async def workers(self) -> list[str] | None:
        """The workers that are connected, by name and address; None where the server does not tell."""
        mine = client_name(self.keys)
        try:
            replies = await self.redis.each_primary("CLIENT", "LIST")
        except CommandRefused:
            return None
        found = set()
        for line in b"\n".join(replies.values()).decode(errors="replace").splitlines():
            client = dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
            own = client.get("name", "")
            if own == mine or own.startswith(f"{mine}:w:"):
                name = own.removeprefix(mine).removeprefix(":w:") or "a worker"
                found.add(f"{name} at {client.get('addr', '?')}")
        return sorted(found)

    # ------------------------------------------------------------------ jobs

    async def page(self, state: str, start: int, count: int) -> list[Place]:
        """So many jobs of a state from a place on, those that come first first."""
        key = self.keys[state]
        if state in LISTS:
            # From the end that workers take from: what producers add at the other end moves nothing.
            ids = await self.redis.command("LRANGE", key, -(start + count), -(start + 1))
            return [_place(each, state) for each in reversed(ids)]
        flat = await self.redis.command("ZRANGE", key, start, start + count - 1, "WITHSCORES")
        return [_place(flat[at], state, flat[at + 1]) for at in range(0, len(flat), 2)]

    async def walk(self, state: str) -> AsyncIterator[list[Place]]:
        """All jobs of a state, in pages.

        Jobs that are added meanwhile may be seen or not, and one may be seen twice.
        """
        done = 0
        while found := await self.page(state, done, IDS):
            yield found
            done += len(found)

    async def read(self, places: Sequence[Place]) -> list[StoredJob]:
        """Jobs, whole: as many of the first ones as are not too many bytes for one step."""
        if self.together:
            replies = await self.run(READ, PORTION_BYTES, *(place.id for place in places))
        else:
            replies = await self._read_apart(places)
        return [
            StoredJob.read(place, reply)
            if place.readable
            else StoredJob(place, {}, problem="its id is not text in UTF-8")
            for place, reply in zip(places, replies, strict=False)
        ]

    async def read_all(self, places: Sequence[Place]) -> AsyncIterator[list[StoredJob]]:
        """Jobs, whole, in portions."""
        left = list(places)
        while left:
            jobs = await self.read(left[:PORTION])
            yield jobs
            left = left[len(jobs) :]

    async def _read_apart(self, places: Sequence[Place]) -> list[list[Any]]:
        replies: list[list[Any]] = []
        size = 0
        for start in range(0, len(places), 20):
            part = await asyncio.gather(*(self._read_one(place.id) for place in places[start : start + 20]))
            replies += part
            read = chain.from_iterable(chain(*reply[1:6], reply[0]) for reply in part)
            size += sum(len(value) for value in read if isinstance(value, bytes))
            if size > PORTION_BYTES:
                break
        return replies

    async def _read_one(self, ident: str) -> list[Any]:
        """One job by commands of one key each; nobody can work in a queue whose keys are apart."""
        keys, ask = self.keys, self.redis.command
        try:
            fields = await ask("HGETALL", keys.job(ident))
        except CommandRefused as problem:
            return [str(problem).encode(), [], [], [], [], [], 0, 0, []]
        its = dict(zip(fields[::2], fields[1::2], strict=True))
        *extras, locked = await asyncio.gather(
            ask("LRANGE", keys.logs(ident), 0, -1),
            ask("SMEMBERS", keys.dependencies(ident)),
            ask("HGETALL", keys.processed(ident)),
            ask("HGETALL", keys.failed_children(ident)),
            ask("ZRANGE", keys.unsuccessful(ident), 0, -1, "WITHSCORES"),
            ask("EXISTS", keys.lock(ident)),
        )
        awaited, owner = 0, []
        if b"parentKey" in its:
            waiting = dependencies_of(_text(its[b"parentKey"]))
            awaited = await ask("SISMEMBER", waiting, str(keys.job(ident)))  # here it is a member, no key
        if b"deid" in its:
            dedup = keys.deduplication(_text(its[b"deid"]))
            owner = [await ask("GET", dedup) or b"", await ask("PTTL", dedup)]
        return [fields, *extras, locked, awaited, owner]

    async def timestamps(self, ids: Sequence[str]) -> dict[str, str]:
        """When jobs were made; nothing for one that is not there."""
        return await self._field(ids, "timestamp")

    async def starts(self, ids: Sequence[str]) -> dict[str, str]:
        """How often jobs were begun; nothing for one that never was."""
        return await self._field(ids, "ats")

    async def _field(self, ids: Sequence[str], field: str) -> dict[str, str]:
        asked: list[Command] = [("HGET", self.keys.job(ident), field) for ident in ids]
        replies = await self._ask_many(asked)
        return {
            ident: "" if said is None else said.decode(errors="replace")
            for ident, said in zip(ids, replies, strict=True)
        }

    async def any_locked(self, jobs: Sequence[bytes]) -> bool:
        """Whether one of the jobs (whole keys, of any queue) is being worked on."""
        return any(await self._ask_many([("EXISTS", lock_of(_text(job))) for job in jobs]))

    async def _ask_many(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        if not self.redis.clustered:
            return await self.redis.read_many(commands, self.keys.base)
        return list(await asyncio.gather(*(self.redis.command(*each) for each in commands)))

    async def links(self, places: Sequence[Place]) -> tuple[list[bytes], list[bytes]]:
        """The queues of the jobs' parents (``prefix:name``), and keys of children, one of each queue."""
        parents: list[bytes] = []
        children: list[bytes] = []
        for start in range(0, len(places), PORTION):
            ids = [place.id for place in places[start : start + PORTION]]
            found = await (self.run(LINKS, *ids) if self.together else self._links_apart(ids))
            parents += found[0]
            children += found[1]
        return parents, children

    async def _links_apart(self, ids: Sequence[str]) -> tuple[list[bytes], list[bytes]]:
        keys, ask = self.keys, self.redis.command
        asked = [ask("HGET", keys.job(ident), "parentKey") for ident in ids]
        for ident in ids:
            asked.append(ask("SMEMBERS", keys.dependencies(ident)))
            asked.append(ask("HKEYS", keys.processed(ident)))
            asked.append(ask("HKEYS", keys.failed_children(ident)))
            asked.append(ask("ZRANGE", keys.unsuccessful(ident), 0, -1))
        # One that is not what it should be says so when it is read whole.
        replies = await asyncio.gather(*(_or_none(each) for each in asked))
        parents = [key.rpartition(b":")[0] for key in replies[: len(ids)] if key]
        return parents, [key for found in replies[len(ids) :] for key in found or ()]

    # ------------------------------------------------------------------ beside jobs

    async def schedulers(self) -> AsyncIterator[tuple[str, bytes, list[bytes]]]:
        """The job schedulers: id, when it is due next, fields and values in turn."""
        flat = await self.redis.command("ZRANGE", self.keys.repeat, 0, -1, "WITHSCORES")
        for at in range(0, len(flat), 2):
            ident = _text(flat[at])
            yield ident, flat[at + 1], await self.redis.command("HGETALL", self.keys.scheduler(ident))


async def _or_none(asked: Awaitable[Any]) -> Any:
    try:
        return await asked
    except CommandRefused:
        return None


def _counted(state: str) -> str:
    return "LLEN" if state in LISTS else "ZCARD"


def _place(raw: bytes, state: str, score: bytes = b"") -> Place:
    try:
        return Place(raw.decode(), state, score)
    except UnicodeDecodeError:
        return Place(raw.decode(errors="backslashreplace"), state, score, readable=False)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidValue("id in a queue", raw, "it must be text in UTF-8") from None
