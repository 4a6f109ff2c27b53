"""How far a processor is with an aggregate: one checkpoint for each pair, and the rules by which it moves.

::

    (none) ──begin 1──► pending 1 ──complete──► processed 1 ──begin 2──► pending 2 …
                         │    ▲                     ▲
                       fail   └─clear─┐             │
                         └─────────► failed 1 ──skip┘

- Event *n* begins when *n* - 1 is processed, and 1 always; one that comes early waits.
- A pending event may begin again: that is a retry, of the same event.
- An event is failed when its attempts are used up, not before. Later events of the aggregate wait, until a
  person clears it (it is processed again) or skips it.
- Nothing moves back. What is processed stays so, whatever a late caller says.

Every version takes part, also events of types that the processor does not want: they are completed unseen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from toril.aggregate import Aggregate, Withheld
from toril.events.errors import CheckpointError, OrderingError, ValidationError
from toril.events.event import AnyEvent
from toril.events.tenancy import check_aggregate_of


class CheckpointStatus(StrEnum):
    """What a checkpoint says of its event."""

    PENDING = "pending"
    """It was begun: it runs, or waits for the next attempt."""
    PROCESSED = "processed"
    """It, and all before it, are done."""
    FAILED = "failed"
    """All attempts are used up. Later events wait for a person's decision."""


class Claim(StrEnum):
    """What becomes of an event that a processor was given."""

    RUN = "run"
    """Process it now."""
    DONE = "done"
    """It was processed before: pass it over."""
    EARLY = "early"
    """An event before it is not processed yet."""
    BLOCKED = "blocked"
    """It, or an event before it, has failed, and waits for a person's decision."""


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """Which processor, and which aggregate: ``tenant:pipeline:processor:aggregate_type:aggregate_id``."""

    tenant: str = field(repr=False)
    pipeline: str
    processor: str
    aggregate_type: str
    aggregate_id: str

    def __post_init__(self) -> None:
        Aggregate(self.tenant, self.aggregate_type, self.aggregate_id)
        for name, value in (("pipeline", self.pipeline), ("processor", self.processor)):
            if not isinstance(value, str) or not value or not value.isprintable() or value != value.strip():
                raise ValidationError(name, value, "printable text without blanks at its ends")
            if ":" in value or len(value) > 128:
                raise ValidationError(name, value, "1 to 128 characters, and no ':', which separates parts")

    @classmethod
    def of(cls, aggregate: Aggregate, pipeline: str, processor: str) -> CheckpointKey:
        """The key of a processor's checkpoint for an aggregate."""
        return cls(aggregate.tenant, pipeline, processor, aggregate.type, aggregate.id)

    @classmethod
    def parse(cls, text: str) -> CheckpointKey:
        """The key that a text names."""
        parts = text.split(":", 4) if isinstance(text, str) else []
        if len(parts) != 5:
            rule = "it has five parts, tenant:pipeline:processor:aggregate_type:aggregate_id"
            raise ValidationError("checkpoint key", Withheld(text), rule)
        return cls(*parts)

    def __str__(self) -> str:
        parts = (self.tenant, self.pipeline, self.processor, self.aggregate_type, self.aggregate_id)
        return ":".join(parts)

    @property
    def aggregate(self) -> Aggregate:
        """The aggregate."""
        return Aggregate(self.tenant, self.aggregate_type, self.aggregate_id)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a processor is with an aggregate."""

    key: CheckpointKey
    version: int
    """The version of the event it is about."""
    event_id: str
    status: CheckpointStatus
    updated_at: int
    """When it came to this status (ns)."""
    event_occurred_at: int
    """When the event happened (ns)."""
    attempts: int = 0
    """How often a failed event was tried."""
    error: str | None = None
    """Why it failed; kept when it is skipped."""
    skipped: bool = False
    """Whether a person decided to leave the event out."""


def claim(current: Checkpoint | None, key: CheckpointKey, event: AnyEvent) -> Claim:
    """What becomes of an event, by the checkpoint that is there."""
    check_aggregate_of(event, key.aggregate)
    if current is None:
        return Claim.RUN if event.version == 1 else Claim.EARLY
    if event.version < current.version:
        return Claim.DONE
    if event.version == current.version:
        _check_same(current, event)
        return {
            CheckpointStatus.PROCESSED: Claim.DONE,
            CheckpointStatus.FAILED: Claim.BLOCKED,
            CheckpointStatus.PENDING: Claim.RUN,
        }[current.status]
    if current.status is CheckpointStatus.FAILED:
        return Claim.BLOCKED
    follows = current.status is CheckpointStatus.PROCESSED and event.version == current.version + 1
    return Claim.RUN if follows else Claim.EARLY


def begun(current: Checkpoint | None, key: CheckpointKey, event: AnyEvent, now: int) -> Checkpoint:
    """The checkpoint after an event that can run has begun."""
    if current is not None and current.version == event.version:
        return current  # a retry
    return _about(key, event, CheckpointStatus.PENDING, now)


def completed(current: Checkpoint | None, key: CheckpointKey, event: AnyEvent, now: int) -> Checkpoint:
    """The checkpoint after an event was processed. For one processed before, the checkpoint as it is."""
    decided = claim(current, key, event)
    if decided is Claim.DONE:
        assert current is not None
        return current
    if decided is Claim.RUN:
        return _about(key, event, CheckpointStatus.PROCESSED, now)
    raise _refused(current, event, "completed")


def failed(
    current: Checkpoint | None, key: CheckpointKey, event: AnyEvent, now: int, error: str, attempts: int
) -> Checkpoint:
    """The checkpoint after all attempts at an event were used up."""
    if not isinstance(error, str):
        raise ValidationError("error", error, "it must be text")
    if type(attempts) is not int or attempts < 1:
        raise ValidationError("attempts", attempts, "a whole number from 1")
    decided = claim(current, key, event)
    same = current is not None and current.version == event.version
    if decided is Claim.RUN or (decided is Claim.BLOCKED and same):
        made = _about(key, event, CheckpointStatus.FAILED, now)
        return replace(made, error=error, attempts=attempts)
    raise _refused(current, event, "failed")


def cleared(current: Checkpoint | None, version: int, now: int) -> Checkpoint:
    """The checkpoint after a person had a failed event processed again."""
    there = _failed_at(current, version)
    return replace(there, status=CheckpointStatus.PENDING, updated_at=now, error=None, attempts=0)


def skipped(current: Checkpoint | None, version: int, now: int) -> Checkpoint:
    """The checkpoint after a person had a failed event left out. Why it failed stays on record."""
    there = _failed_at(current, version)
    return replace(there, status=CheckpointStatus.PROCESSED, updated_at=now, skipped=True)


def _about(key: CheckpointKey, event: AnyEvent, status: CheckpointStatus, now: int) -> Checkpoint:
    return Checkpoint(key, event.version, event.id, status, now, event.occurred_at)


def _check_same(current: Checkpoint, event: AnyEvent) -> None:
    if current.event_id != event.id:
        raise CheckpointError(
            f"version {event.version} is event {event.id}, but the checkpoint has it as {current.event_id}: "
            "these are two histories of one aggregate"
        )


def _failed_at(current: Checkpoint | None, version: int) -> Checkpoint:
    if current is None or current.status is not CheckpointStatus.FAILED or current.version != version:
        there = "there is none" if current is None else f"it is {current.status} at {current.version}"
        raise CheckpointError(f"the checkpoint is not failed at version {version}: {there}")
    return current


def _refused(current: Checkpoint | None, event: AnyEvent, verb: str) -> CheckpointError | OrderingError:
    if current is None or (current.status is not CheckpointStatus.FAILED and event.version > current.version):
        done = 0 if current is None else current.version
        waiting = current is not None and current.status is CheckpointStatus.PENDING
        return OrderingError(done if waiting else done + 1, event.version, f"it cannot be {verb}")
    return CheckpointError(
        f"version {event.version} cannot be {verb}: the checkpoint is {current.status} at {current.version}"
    )
