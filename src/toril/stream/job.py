"""Jobs of a stream queue: to be added, as a worker gets them, and as they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from toril import codec
from toril.connection.wire import Argument

DEFAULT_NAME = "job"
"""The name of a job that has none, and by which its handler is found."""

_DEFAULT_NAME = DEFAULT_NAME.encode()


class AddJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be added. What is None is as the data says (see :class:`Route`), or as the queue has it."""

    data: Any
    name: str | None = None
    """By which its handler is found."""
    key: str | None = None
    """Jobs with the same key run one after the other, in the order they were added."""
    tenant: str | None = None
    """Tenants take turns."""
    priority: int | None = None
    """0 comes first."""
    delay: float = 0.0
    """Seconds until it may run."""
    unique: str | None = None
    """A name under which it is added once: who adds it again gets the id of the first one."""
    unique_for: float | None = None
    """Seconds that the unique name is remembered for."""
    result_ttl: float | None = None
    """Seconds that its result is kept for."""
    retries: int | None = None
    """How often it is tried again after its handler has failed."""
    timeout: float | None = None
    """Seconds after which a run is stopped and has failed."""


class JobOptions(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={
        "result_ttl": "t",
        "retries": "r",
        "timeout": "w",
        "trace_context": "x",
    },
):
    """What a job brings along for its worker. No script looks into it."""

    result_ttl: int = 0
    """Milliseconds."""
    retries: int | None = None
    timeout: float | None = None
    trace_context: str | None = None


_USUAL = JobOptions()
_options = msgspec.json.Decoder(JobOptions)


def options_brought(raw: bytes) -> JobOptions:
    """What a job brings along, from its entry or hash."""
    return _options.decode(raw) if raw else _USUAL


class NewJob(msgspec.Struct, frozen=True):
    """A job to be added: checked, and in the form it is stored in."""

    name: str
    data: bytes
    options: bytes
    key: str
    tenant: str
    level: int
    delay: int
    unique: str
    unique_for: int

    def args(self) -> tuple[Argument, ...]:
        """For the script ``stream/add``."""
        return (
            *(self.name, self.data, self.options, self.key, self.tenant),
            *(self.level, self.delay, self.unique, self.unique_for),
        )


class Taken:
    """A job that a worker has, with the lease it has it under."""

    __slots__ = (
        "attempts",
        "crashes",
        "data",
        "delivery",
        "entry",
        "held_id",
        "key",
        "lease",
        "level",
        "name",
        "options",
        "tenant",
    )

    def __init__(
        self, level: bytes, entry: bytes, delivery: int, held_id: bytes, flat: Sequence[bytes]
    ) -> None:
        self.level = level
        self.entry = entry
        self.delivery = delivery
        """How often its entry was given to a worker: with the worker's name, what a fenced end goes by."""
        self.held_id = held_id
        """Its id, where that is not the entry's."""
        self.lease = (level, entry, delivery)
        """Under what a worker has it: a job that was lost and comes back has another one."""
        self.attempts = self.crashes = 0
        self.key = self.tenant = self.options = b""
        if len(flat) == 2:  # most have nothing but data
            self.name, self.data = _DEFAULT_NAME, flat[1]
            return
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        self.name, self.data = fields.get(b"n", _DEFAULT_NAME), fields.get(b"d", b"")
        self.options = fields.get(b"o", b"")
        if held_id:
            self.key, self.tenant = fields[b"k"], fields[b"t"]
            self.attempts, self.crashes = int(fields.get(b"a", 0)), int(fields.get(b"c", 0))

    @property
    def local_id(self) -> str:
        """Its id in its partition."""
        return (self.held_id or self.entry).decode()

    @property
    def brought(self) -> JobOptions:
        """What it brings along."""
        return options_brought(self.options)

    def words(self) -> tuple[Argument, ...]:
        """For the scripts: which entry, and which delivery of it."""
        return (self.level, self.entry, self.delivery, self.held_id, len(self.data), self.key)


class Outcome(msgspec.Struct, frozen=True):
    """How a job ended, as those who wait for its result are told."""

    state: str
    """completed, dead or cancelled."""
    value: Any = None
    reason: str = ""
    error: str = ""

    def text(self) -> bytes:
        """As it is kept."""
        return codec.encode("result", self)

    @classmethod
    def read(cls, raw: bytes) -> Outcome:
        """As it was kept."""
        return cls(**codec.decode(raw))


# ---------------------------------------------------------------------------- how a worker gives a job up

Effect = tuple[Argument, ...]


def done(job: Taken, ttl: int, result: bytes, effects: Sequence[Effect]) -> list[Argument]:
    """It is done; its effects take place together with that.

    Nothing, where nothing is to be said of it: of such jobs, a step names the entries only.
    """
    if not (ttl or effects or job.held_id) and job.delivery == 1:
        return []
    args: list[Argument] = ["done", *job.words(), ttl, result, len(effects)]
    for effect in effects:
        args.append(len(effect))
        args.extend(effect)
    return args


def later(job: Taken, delay: int, attempts: int, error: str) -> list[Argument]:
    """It is tried again after so many ms; without an error it is only handed back."""
    return ["later", *job.words(), delay, attempts, error]


def dead(job: Taken, reason: str, attempts: int, error: str, ttl: int, outcome: bytes) -> list[Argument]:
    """It has failed for good."""
    return ["dead", *job.words(), reason, attempts, error, ttl, outcome]


def cancelled(job: Taken, ttl: int, outcome: bytes) -> list[Argument]:
    """It was to be stopped, and is."""
    return ["cancelled", *job.words(), ttl, outcome]
