"""The keys of BullMQ queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from toril.keyspace.key_set import KeySet
from toril.keyspace.names import Kind, is_utf8, make_queue_name
from toril.keyspace.slots import InvalidName, Key


@dataclass(frozen=True)
class QueueKeys(KeySet):
    """The keys of a BullMQ 5.62 queue: ``<prefix>:<name>:<suffix>``.

    The name is taken as Node has it, so that a queue can be shared: ``{collector}``, but also a plain
    ``collector`` on a standalone server. The tag may be in the prefix instead (``{bull}``).
    """

    kind: ClassVar[Kind] = "queue"

    name: str
    prefix: str = "bull"

    def __post_init__(self) -> None:
        given: dict[str, object] = {"queue name": self.name, "queue prefix": self.prefix}
        for what, value in given.items():
            if not isinstance(value, str) or not value:
                raise InvalidName(what, value, "it must be a string with at least one character")
            if not is_utf8(value):
                raise InvalidName(what, value, "it must be text that UTF-8 can encode")
        if ":" in self.name:
            raise InvalidName("queue name", self.name, "BullMQ queue names hold no ':'")
        object.__setattr__(self, "base", Key(f"{self.prefix}:{self.name}:"))

    @property
    def cluster_safe_name(self) -> str:
        """The name to use on a cluster: this one where prefix and name carry a tag, else a tagged one."""
        return self.name if self.tag is not None else make_queue_name(self.name)

    @property
    def id(self) -> Key:
        """Counter of job ids."""
        return self["id"]

    @property
    def meta(self) -> Key:
        """Hash: paused, concurrency, limits, version."""
        return self["meta"]

    @property
    def wait(self) -> Key:
        """List of waiting job ids; producers push at the head, workers take from the tail."""
        return self["wait"]

    @property
    def paused(self) -> Key:
        """What ``wait`` is called while the queue is paused."""
        return self["paused"]

    @property
    def active(self) -> Key:
        """List of job ids being worked on."""
        return self["active"]

    @property
    def prioritized(self) -> Key:
        """Sorted set of waiting jobs that have a priority."""
        return self["prioritized"]

    @property
    def priority_counter(self) -> Key:
        """Counter that keeps jobs of one priority in order."""
        return self["pc"]

    @property
    def delayed(self) -> Key:
        """Sorted set of jobs due later."""
        return self["delayed"]

    @property
    def waiting_children(self) -> Key:
        """Sorted set of parents whose children are not done."""
        return self["waiting-children"]

    @property
    def completed(self) -> Key:
        """Sorted set of completed jobs."""
        return self["completed"]

    @property
    def failed(self) -> Key:
        """Sorted set of failed jobs."""
        return self["failed"]

    @property
    def marker(self) -> Key:
        """Sorted set that workers block on."""
        return self["marker"]

    @property
    def stalled(self) -> Key:
        """Set of ids that may have stalled."""
        return self["stalled"]

    @property
    def stalled_check(self) -> Key:
        """String that lets one worker per interval look for stalled jobs."""
        return self["stalled-check"]

    @property
    def limiter(self) -> Key:
        """Counter of jobs started in the current rate-limit window."""
        return self["limiter"]

    @property
    def events(self) -> Key:
        """Stream of queue events."""
        return self["events"]

    @property
    def repeat(self) -> Key:
        """Sorted set of job schedulers by their next run."""
        return self["repeat"]

    @property
    def metrics_completed(self) -> Key:
        """Hash: completed jobs in the current minute."""
        return self["metrics:completed"]

    @property
    def metrics_completed_data(self) -> Key:
        """List: completed jobs per minute."""
        return self["metrics:completed:data"]

    @property
    def metrics_failed(self) -> Key:
        """Hash: failed jobs in the current minute."""
        return self["metrics:failed"]

    @property
    def metrics_failed_data(self) -> Key:
        """List: failed jobs per minute."""
        return self["metrics:failed:data"]

    @property
    def migration(self) -> Key:
        """Hash: from which queue this one was filled, and how far that is. Toril's own."""
        return self["toril:migration"]

    @property
    def migrated(self) -> Key:
        """Hash of the jobs that came from another queue, by the id they had there. Toril's own."""
        return self["toril:migrated"]

    @property
    def migrated_schedulers(self) -> Key:
        """Hash of the schedulers that came from another queue. Toril's own."""
        return self["toril:migrated-schedulers"]

    def job(self, job_id: str) -> Key:
        """Hash of one job."""
        return self[job_id]

    def lock(self, job_id: str) -> Key:
        """Lock of an active job."""
        return self[f"{job_id}:lock"]

    def logs(self, job_id: str) -> Key:
        """Log lines of a job."""
        return self[f"{job_id}:logs"]

    def dependencies(self, job_id: str) -> Key:
        """Set of a parent's unfinished children."""
        return self[f"{job_id}:dependencies"]

    def processed(self, job_id: str) -> Key:
        """Hash of a parent's finished children and their results."""
        return self[f"{job_id}:processed"]

    def failed_children(self, job_id: str) -> Key:
        """Hash of a parent's children whose failure is ignored."""
        return self[f"{job_id}:failed"]

    def unsuccessful(self, job_id: str) -> Key:
        """Sorted set of a parent's children whose failure fails it."""
        return self[f"{job_id}:unsuccessful"]

    def deduplication(self, dedup_id: str) -> Key:
        """The job that owns a deduplication id."""
        return self[f"de:{dedup_id}"]

    def scheduler(self, scheduler_id: str) -> Key:
        """Hash of one job scheduler."""
        return self[f"repeat:{scheduler_id}"]


OLD_TRACKER = Key("migration:queue-names:copied")
"""Set of what an older tool copied to tagged queues: ``<queue>:<job id>``, under other ids there."""


def dependencies_of(job_key: str) -> Key:
    """Set of the unfinished children of a job that is known by its whole key."""
    return Key(f"{job_key}:dependencies")


def lock_of(job_key: str) -> Key:
    """Lock of a job that is known by its whole key."""
    return Key(f"{job_key}:lock")


def _own_suffixes() -> frozenset[str]:
    keys = QueueKeys("q")
    own = [getattr(keys, name) for name, made in vars(QueueKeys).items() if isinstance(made, property)]
    suffixes = {key[len(keys.base) :] for key in own if isinstance(key, Key)}
    return frozenset(suffixes | {"delay", "priority"})  # the last two are older versions'


QUEUE_SUFFIXES = _own_suffixes()
"""The keys a queue has of its own: no job can have such an id."""
