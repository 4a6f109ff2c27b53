"""The queue that is filled, and its tracker: each method is one script, or one command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toril.connection import Connection, Script, load_script
from toril.connection.wire import Argument
from toril.keyspace import QueueKeys
from toril.migrate.errors import SCRIPT_ERRORS, MigrationError


def _script(verb: str) -> Script:
    return load_script(f"migrate/{verb}", errors=SCRIPT_ERRORS)


BEGIN, COPY, SCHEDULER, SEIZE, RELEASE = map(_script, ("begin", "copy", "scheduler", "seize", "release"))

KEPT_FOR = 30 * 86_400_000
"""Milliseconds for which the tracker stays after a cleanup, for jobs that come late under the old name."""

Arrived = Literal["C", "T", "N", "E", "P", "U"]
"""What became of a job; see ``lua/migrate/copy.lua``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the tracker says of a job; see ``lua/migrate/_tracker.lua``."""

    letter: str
    timestamp: str
    digest: str
    id: str
    """Its id at the destination."""

    @classmethod
    def read(cls, ident: str, value: bytes) -> Entry:
        """From the tracker's value for a job."""
        letter, timestamp, digest, *other = value.decode().split(" ", 3)
        return cls(letter, timestamp, digest, other[0] if other else ident)


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a job that is to go back."""

    what: str
    id: str
    """At the destination."""
    state: str
    score: bytes
    turn: str = ""
    """Where it goes in a list: ``F…`` in front, in the order of turns; ``G…`` behind; nothing: as usual."""


class Destination:
    """See the module's text. ``runner`` is whoever fills it now."""

    def __init__(self, redis: Connection, keys: QueueKeys, runner: str) -> None:
        self.redis = redis
        self.keys = keys
        self.runner = runner

    async def _run(self, script: Script, *args: Argument) -> Any:
        # Each can be made again: the tracker knows what was done.
        return await self.redis.run(script, (self.keys.base, self.keys.meta), *args, repeatable=True)

    async def begin(
        self, source: str, *, was_paused: bool, lowest_id: int, counter: int, meta: dict[bytes, bytes]
    ) -> bool:
        """Begin, or go on; whether it is the beginning."""
        flat = [part for pair in meta.items() for part in pair]
        return bool(await self._run(BEGIN, self.runner, source, int(was_paused), lowest_id, counter, *flat))

    async def copy(self, counter: int, jobs: Sequence[bytes]) -> list[Arrived]:
        """Let jobs arrive."""
        return [each.decode() for each in await self._run(COPY, self.runner, counter, *jobs)]

    async def schedule(self, ident: str, due: bytes, fields: Sequence[bytes]) -> int:
        """Let a scheduler arrive: 1 it has, 0 it had before, 2 there is one."""
        return int(await self._run(SCHEDULER, self.runner, ident, due, *fields))

    async def seize(self, jobs: Sequence[tuple[str, str]]) -> list[Taken]:
        """Take jobs (id and turn) out of the hands of workers."""
        replies = await self._run(SEIZE, self.runner, *(part for job in jobs for part in job))
        return [
            Taken(what.decode(), ident.decode(), state.decode(), score, turn.decode())
            for what, ident, state, score, turn in replies
        ]

    async def release(self, jobs: Sequence[tuple[str, str]]) -> None:
        """Let go of jobs: id in the old queue, and ``back`` or ``done``."""
        await self._run(RELEASE, self.runner, *(part for job in jobs for part in job))

    # ------------------------------------------------------------------ what is known

    async def facts(self) -> dict[str, str]:
        """What is noted of the migration; nothing where there was none."""
        flat = await self.redis.command("HGETALL", self.keys.migration)
        return {flat[at].decode(): flat[at + 1].decode(errors="replace") for at in range(0, len(flat), 2)}

    async def note(self, **facts: Argument) -> None:
        """Note something of the migration."""
        flat = [part for pair in facts.items() for part in pair]
        await self.redis.command("HSET", self.keys.migration, *flat, repeatable=True)

    async def take_over(self, phase: str) -> dict[str, str]:
        """Become the one who works on it; an error where nothing was ever copied here."""
        facts = await self.facts()
        if "source" not in facts:
            raise MigrationError(f"nothing was copied to {self.keys.name!r}: there is nothing to do")
        await self.note(runner=self.runner, phase=phase)
        return facts

    async def entries(self, ids: Sequence[str]) -> list[Entry | None]:
        """What the tracker says of jobs."""
        if not ids:
            return []
        values = await self.redis.command("HMGET", self.keys.migrated, *ids)
        return [
            None if value is None else Entry.read(ident, value)
            for ident, value in zip(ids, values, strict=True)
        ]

    async def all_entries(self) -> AsyncIterator[list[tuple[str, Entry]]]:
        """All of the tracker, in portions; one may come twice."""
        cursor = b"0"
        while True:
            cursor, flat = await self.redis.command("HSCAN", self.keys.migrated, cursor, "COUNT", 1000)
            ids = [each.decode() for each in flat[::2]]
            yield [(ident, Entry.read(ident, value)) for ident, value in zip(ids, flat[1::2], strict=True)]
            if cursor == b"0":
                return

    async def schedulers(self) -> dict[str, bool]:
        """The schedulers of the old queue, and whether they were copied: others were here already."""
        flat = await self.redis.command("HGETALL", self.keys.migrated_schedulers)
        return {flat[at].decode(): flat[at + 1] != b"here" for at in range(0, len(flat), 2)}

    async def keep_for(self, ms: int) -> None:
        """Let the tracker stay for a while."""
        for key in (self.keys.migrated, self.keys.migrated_schedulers, self.keys.migration):
            await self.redis.command("PEXPIRE", key, ms, repeatable=True)
