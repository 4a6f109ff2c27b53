"""A job as its handler sees it."""

from __future__ import annotations

from typing import Any

from toril import codec
from toril.connection.wire import Argument
from toril.errors import InvalidValue
from toril.keyspace import Key
from toril.stream.job import Effect, JobOptions, Taken
from toril.stream.partitions import public_id
from toril.stream.store import PartitionStore

KEPT_FOR = 86_400_000
"""Milliseconds that the progress and the log of a job are kept for."""


class StreamJob:
    """A job that is being worked on."""

    __slots__ = ("_brought", "data", "effects", "store", "taken")

    def __init__(self, store: PartitionStore, taken: Taken) -> None:
        self.store = store
        self.taken = taken
        self.data: Any = None
        """What it is about, as JSON has it. The handler's second argument is this as the type it declares."""
        self.effects: list[Effect] = []
        self._brought: JobOptions | None = None

    @property
    def id(self) -> str:
        """Its id, as whoever added it knows it."""
        return public_id(self.taken.local_id, self.store.keys.number)

    @property
    def name(self) -> str:
        """By which its handler was found."""
        return self.taken.name.decode(errors="replace")

    @property
    def brought(self) -> JobOptions:
        """What it brings along for its worker."""
        if self._brought is None:
            self._brought = self.taken.brought
        return self._brought

    def __repr__(self) -> str:
        return f"StreamJob({self.id!r}, {self.name!r})"

    @property
    def key(self) -> str:
        """Its order key, or ''."""
        return self.taken.key.decode(errors="replace")

    @property
    def tenant(self) -> str:
        """Its tenant, or ''."""
        return self.taken.tenant.decode(errors="replace")

    @property
    def priority(self) -> int:
        """Its level; 0 comes first."""
        return int(self.taken.level)

    @property
    def attempts_made(self) -> int:
        """Runs that have failed so far."""
        return self.taken.attempts

    @property
    def deliveries(self) -> int:
        """How often it was given to a worker: this time, and those when the worker was lost with it."""
        return self.taken.crashes + self.taken.delivery

    @property
    def trace_context(self) -> str | None:
        """The trace that added it, as OpenTelemetry carries it."""
        return self.brought.trace_context

    @property
    def fence(self) -> str:
        """Names this run of the job: for services that can refuse a second one."""
        return f"{self.id}/{self.taken.entry.decode()}/{self.taken.delivery}"

    def effect_key(self, name: str) -> Key:
        """A key of your own in the job's slot, for :meth:`effect`."""
        return self.store.keys.effect(name)

    def effect(self, *command: Argument) -> None:
        """Let a Redis command take place when the job is done, and only then, in the script that ends it.

        Its keys come from :meth:`effect_key`. A command that Redis refuses makes the job fail for good;
        commands before it have taken place by then.
        """
        keys = [word for word in command if isinstance(word, Key)]
        if len(command) < 2 or not isinstance(command[0], str) or not keys:
            raise InvalidValue("effect", command, "a command, with a key made by job.effect_key(…)")
        strange = [key for key in keys if not key.startswith(self.store.keys.effect(""))]
        if strange:
            raise InvalidValue("effect", strange, "its keys must be made by job.effect_key(…)")
        self.effects.append(command)

    async def update_progress(self, progress: Any) -> None:
        """Tell how far it is: any JSON value."""
        raw = codec.encode("progress", progress)
        key = self.store.keys.progress(self.taken.local_id)
        await self.store.redis.command("SET", key, raw, "PX", KEPT_FOR, repeatable=True)

    async def log(self, line: str) -> int:
        """Add a line to its log; how many there are."""
        if not isinstance(line, str) or line != line.encode(errors="replace").decode():
            raise InvalidValue("log line", line, "it must be a string that UTF-8 can encode")
        key = self.store.keys.log(self.taken.local_id)
        count: int = await self.store.redis.command("RPUSH", key, line)
        await self.store.redis.command("PEXPIRE", key, KEPT_FOR, repeatable=True)
        return count
