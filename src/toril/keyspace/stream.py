"""The keys of stream queues."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from toril.keyspace.key_set import KeySet
from toril.keyspace.names import NAME_RULES, Kind
from toril.keyspace.slots import InvalidName, Key

_LIKE_A_PARTITION = re.compile(r".*:\d+", re.DOTALL)


@dataclass(frozen=True)
class StreamKeys(KeySet):
    """The keys of one partition of a stream queue.

    The tag is ``{fd:step_queue}``, and of one of several partitions ``{fd:step_queue:07}``.

    ``number`` is None for a queue with one partition; that is also where a queue with several keeps what is
    true of all of them.
    """

    kind: ClassVar[Kind] = "stream"

    name: str
    number: int | None = None

    def __post_init__(self) -> None:
        NAME_RULES["stream"].check(self.name)
        if _LIKE_A_PARTITION.fullmatch(self.name):
            rule = "it must not end in ':' and digits, as the name of a partition does"
            raise InvalidName("stream name", self.name, rule)
        number = self.number
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise InvalidName("partition", number, "a whole number of at least 0")
        object.__setattr__(self, "base", Key(f"toril:stream:{{{self.label}}}:"))

    @property
    def label(self) -> str:
        """Its name: ``fd:step_queue``, of one of several partitions ``fd:step_queue:07``."""
        return self.name if self.number is None else f"{self.name}:{self.number:02d}"

    @property
    def meta(self) -> Key:
        """Hash: the queue's options, whether it is paused, its counters."""
        return self["meta"]

    @property
    def inlet(self) -> Key:
        """Stream into which programs in any language add jobs; a script takes them into the queue."""
        return self["inlet"]

    @property
    def bell(self) -> Key:
        """Stream of one entry that idle workers block on: there may be something to take."""
        return self["bell"]

    @property
    def news(self) -> Key:
        """Channel that rings when a running job is to be stopped."""
        return self["news"]

    @property
    def dead(self) -> Key:
        """Stream of the dead letters."""
        return self["dead"]

    @property
    def buried(self) -> Key:
        """Hash: which entry of the dead letters a job is."""
        return self["buried"]

    @property
    def delayed(self) -> Key:
        """Sorted set of the jobs that are due later."""
        return self["delayed"]

    @property
    def bound(self) -> Key:
        """Hash: which job a token that was taken from a stream stands for."""
        return self["bound"]

    @property
    def heads(self) -> Key:
        """Hash: the job of each order key whose turn it is."""
        return self["heads"]

    @property
    def dropping(self) -> Key:
        """Hash: of order keys whose head is dead, how many jobs are still to follow it."""
        return self["dropping"]

    @property
    def cancels(self) -> Key:
        """Hash of the jobs that are to be stopped, or dropped when their turn comes."""
        return self["cancels"]

    @property
    def schedules(self) -> Key:
        """Sorted set of the schedules, by when they are due."""
        return self["schedules"]

    @property
    def plans(self) -> Key:
        """Hash: what each schedule adds, and when."""
        return self["plans"]

    @property
    def rates(self) -> Key:
        """Hash: jobs added and done in the last periods of ten seconds."""
        return self["rates"]

    @property
    def upkeep(self) -> Key:
        """String that lets one worker at a time look after the queue."""
        return self["upkeep"]

    def level(self, number: str) -> Key:
        """Stream of the jobs of one level of priority that are ready."""
        return self[f"s:{number}"]

    def ring(self, level: str) -> Key:
        """List of the tenants that have jobs ready, in the order of their turns."""
        return self[f"ring:{level}"]

    def ready(self, ident: str) -> Key:
        """List of the jobs of one tenant that are ready; ``<level>:<tenant>``."""
        return self[f"r:{ident}"]

    def mailbox(self, key: str) -> Key:
        """List of the jobs that wait for those before them with the same order key."""
        return self[f"m:{key}"]

    def job(self, job_id: str) -> Key:
        """Hash of a job that waits outside a stream, or has waited there."""
        return self[f"j:{job_id}"]

    def result(self, job_id: str) -> Key:
        """What became of a job; also the channel that says so."""
        return self[f"o:{job_id}"]

    def progress(self, job_id: str) -> Key:
        """How far a job is."""
        return self[f"p:{job_id}"]

    def log(self, job_id: str) -> Key:
        """List of the lines that a job has logged."""
        return self[f"l:{job_id}"]

    def unique(self, name: str) -> Key:
        """The job that was added under a name that is to be unique."""
        return self[f"u:{name}"]

    def heartbeat(self, consumer: str) -> Key:
        """String that is there as long as a worker is heard of."""
        return self[f"hb:{consumer}"]

    def effect(self, name: str) -> Key:
        """A key of the user's own, which the end of a job may change."""
        return self[f"x:{name}"]


STREAM_METAS = "toril:stream:{*}:meta"
"""The pattern of the keys under which stream queues describe themselves."""


def stream_of(meta: bytes) -> str | None:
    """The queue that a key of the pattern :data:`STREAM_METAS` belongs to; None where it is a partition's."""
    name = meta.decode(errors="replace").removeprefix("toril:stream:{").removesuffix("}:meta")
    if _LIKE_A_PARTITION.fullmatch(name) or not NAME_RULES["stream"].allowed.fullmatch(name):
        return None
    return name
