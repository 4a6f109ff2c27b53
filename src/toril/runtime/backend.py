"""What processors need of the place where events, leases and checkpoints are: one door, two rooms behind it.

:class:`~toril.runtime.redis.RedisBackend` is the log; :class:`~toril.runtime.memory.MemoryBackend` is one
process. Both keep the same promises, except for what a process that dies takes with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import msgspec

from toril.aggregate import Aggregate
from toril.events.errors import Category, EventSourcingError
from toril.log.entry import Entry, Partition, Position, Positions
from toril.runtime.decisions import Decision

DUE_NEVER = float("inf")
"""When an event is due that waits for a person's decision."""


class GenerationError(EventSourcingError):
    """A generation of a projection cannot be brought to the stage that was asked for; nothing was changed."""

    category = Category.CRITICAL
    retryable = False


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Why the events of an aggregate are parked."""

    status: str
    """``retry``, ``failed``, ``waits`` (for another processor), ``paused``."""
    version: int
    event_id: str
    event_type: str = ""
    attempts: int = 0
    error: str = ""
    first_at: int = 0
    """When it first failed (ms)."""
    last_at: int = 0
    """When it was last tried (ms)."""
    begun: int = 0
    """Attempts in a row that began and have not ended: where a worker dies of one, it never does."""


Stage = Literal["before", "open", "over", "finished"]
"""Of a partition, for a processor: its turn has not come, as older epochs are not done with; it is worked on;
all its events are processed or parked, and no more will come; and nothing is parked any more either."""


class Strikes(NamedTuple):
    """How often in a row a worker died while one event was running alone."""

    deaths: int
    aggregate: str
    version: int


class Lease(NamedTuple):
    """A partition that is a worker's for a processor."""

    partition: Partition
    worker: str
    position: Position
    fence: int
    tail: int
    """The last ordinal there was: what comes later, nobody before us can have processed."""
    commits: int = 0
    """How many commits there were: the next one is the one after."""
    deaths: int = 0
    """How often in a row a worker went without giving it back, and without having got anywhere."""
    strikes: Strikes | None = None


class Loaded(NamedTuple):
    """How far a processor is with an aggregate."""

    status: str
    """``p`` processed, ``n`` pending, ``f`` failed; empty where it has not seen it."""
    version: int
    """Up to which version events are processed."""
    state: bytes | None
    event_id: str = ""
    """The event that the checkpoint is about: the last one processed, or the one that waits."""
    updated_at: int = 0
    """When it came to this status (ms)."""


@dataclass(frozen=True, slots=True)
class Done:
    """Events of an aggregate are processed."""

    aggregate: str
    first: int
    last: int
    event_id: str
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class Park:
    """An event and those after it wait; the processor goes on with other aggregates."""

    aggregate: str
    trouble: Trouble
    due: float
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class More:
    """More events of an aggregate that has parked ones."""

    aggregate: str
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Resume:
    """The first parked event is processed."""

    aggregate: str
    version: int
    event_id: str
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """The first parked event is tried again later, or has failed for good."""

    aggregate: str
    trouble: Trouble
    due: float


@dataclass(frozen=True, slots=True)
class Begin:
    """An event is begun, where a worker may die of it: whoever comes next can see it."""

    aggregate: str
    version: int


@dataclass(frozen=True, slots=True)
class Handed:
    """The parked events of an aggregate are in the next epoch now."""

    aggregate: str


Change = Begin | Done | Park | More | Resume | Later | Handed


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a generation of a projection."""

    stage: Literal["reserved", "loaded", "retiring", "retired"] = "loaded"
    """Its place in the log is kept and states come; all have come; it is going; it is gone."""
    version: int = 0
    """The version of the projection that it was made by; 0: nobody said."""
    cut: dict[str, tuple[int, str]] = {}
    """By partition, up to where in the log it was made: ordinal and id."""
    kept: bool = False
    """Whether nothing after the cut can be trimmed any more."""
    came: bool = True
    """Whether states of it may have come: in a store of their own they stay when it is retired."""
    reserved_at: int = 0
    loaded_at: int = 0
    """Milliseconds since 1970."""

    @property
    def positions(self) -> Positions:
        """The cut."""
        return {Partition.parse(name): Position(*at) for name, at in self.cut.items()}


def seen_generation(
    projection: str, said: Mapping[str, int], known: Mapping[tuple[str, int], Generation]
) -> int:
    """Which generation readers see: the one that somebody let them see, else the first.

    A first one that comes from elsewhere, and so is known, is not seen before somebody says so: 0.
    """
    return said.get(projection, 0 if (projection, 1) in known else 1)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The state of one aggregate, made elsewhere: of its events up to the cut."""

    aggregate: Aggregate
    version: int
    """Up to which version it is made, events that the projection does not want included."""
    state: bytes
    """As the projection encodes it; empty where there is none yet."""
    event_id: str = ""
    """The last event that is in it, where that is known."""
    waiting: Sequence[tuple[int, int, bytes]] = ()
    """The events from there up to the cut, where one could not be applied: version, when it was recorded
    (ns), body. They are tried before any other, and wait for a person where they fail again."""
    after: int = 0
    """How many of those that wait came before these: then this one brings no state, only more of them. It is
    in a later batch than the one before it."""

    def entries(self, partition: Partition) -> list[Entry]:
        """Those that wait, as the log has them."""
        key = self.aggregate.key
        return [
            Entry(partition, f"{recorded_at // 1_000_000}-0", 0, version, key, body)
            for version, recorded_at, body in self.waiting
        ]


Arrived = Literal["placed", "there", "gone"]
"""Of a state made elsewhere: it has come; it had come before; its aggregate is no more."""


class GenerationStore(Protocol):
    """Where the generations of projections are: what is known of them, and their states.

    ``projection`` is its full name without a number, ``processor`` a generation's full name.
    """

    async def current(self, projection: str) -> int:
        """Which generation readers see; 0: none yet, see :func:`seen_generation`."""
        ...

    async def seen(self, processors: Sequence[str]) -> tuple[str, ...]:
        """For the names of projections, those of the generations that readers see; others as they are.

        Where they see none yet, it is a name that nobody has.
        """
        ...

    async def all(self) -> tuple[dict[str, int], dict[tuple[str, int], Generation]]:
        """Which generations readers were let see, and what is known of each."""
        ...

    async def may_begin(self, processor: str, start: str) -> bool:
        """Whether workers may run a processor: not while it is being loaded, nor once it is retired."""
        ...

    async def begin(self, projection: str, number: int, made: Generation) -> Generation:
        """Make a generation known; where it is known already, what is known."""
        ...

    async def note(self, projection: str, number: int, made: Generation | None) -> str:
        """What is known from now on; None: nothing. The stage, where it is being retired, or was."""
        ...

    async def before(self, projection: str) -> tuple[int, ...]:
        """Which generations readers saw before, each once, the last one last."""
        ...

    async def see(self, projection: str, number: int, *, back: bool = False) -> str:
        """Let readers see it, in one write; where its stage forbids that, the stage.

        ``back``: go back to what they saw before; ``other`` where that was not this one.
        """
        ...

    async def dismiss(self, projection: str, number: int, made: Generation) -> str:
        """Begin to retire it; ``current`` where readers see it, and nothing is done."""
        ...

    async def tails(self) -> Positions:
        """A cut: up to where the log is now."""
        ...

    async def hold(self, processor: str) -> None:
        """Keep a place before the first event there is, so that nothing is trimmed while a cut is chosen."""
        ...

    async def reserve(self, processor: str, cut: Positions) -> None:
        """Keep a place in the log, so that nothing after the cut is trimmed; all of it or nothing."""
        ...

    async def place(self, processor: str, batch: Sequence[Rebuilt]) -> list[Arrived]:
        """Bring states to a processor that has not begun. What it has already stays."""
        ...

    async def enlist(self, processor: str) -> None:
        """Let workers begin from the cut."""
        ...

    async def release(self, processor: str) -> None:
        """Give up the place that was kept."""
        ...

    async def clear(self, processor: str, progress: Callable[[int], None] | None = None) -> int:
        """Remove a retired processor's position, checkpoints, states and parked events, in small steps.

        Says how many aggregates had some; ``progress`` is told so as it goes.
        """
        ...


class Backend(Protocol):
    """See the module's text. ``processor`` is always the full name, ``pipeline/processor``."""

    @property
    def generations(self) -> GenerationStore:
        """The generations of projections."""
        ...

    async def partitions(self) -> list[Partition]:
        """All partitions, oldest epoch first."""
        ...

    async def stages(self, processor: str, finished: Collection[Partition]) -> dict[Partition, Stage]:
        """How far a processor is with each partition, oldest epoch first; some are known to be finished."""
        ...

    async def register(self, processor: str, start: str) -> None:
        """Make a processor known as a reader of the log, so that nothing is trimmed before it."""
        ...

    async def members(self, processor: str, worker: str, lasts: float) -> list[str]:
        """Be known as a worker for this long (0: no more); who else is."""
        ...

    async def take(
        self, processor: str, worker: str, partitions: Iterable[Partition], lasts: float
    ) -> list[Lease]:
        """Take partitions that nobody has, each with a new fence; those that are ours now."""
        ...

    async def keep(
        self, processor: str, worker: str, partitions: Iterable[Partition], lasts: float
    ) -> dict[Partition, int]:
        """Keep partitions that we have; those that are still ours, with their fences."""
        ...

    async def release(self, processor: str, worker: str, partitions: Iterable[Partition]) -> None:
        """Give partitions back."""
        ...

    async def page(self, partition: Partition, after: Position, most: int) -> list[Entry]:
        """The entries after a position."""
        ...

    async def load(self, processor: str, partition: Partition, keys: Sequence[str]) -> list[Loaded]:
        """How far a processor is with aggregates."""
        ...

    async def commit(
        self,
        processor: str,
        lease: Lease,
        number: int,
        position: Position,
        changes: Sequence[Change],
        *,
        awaited: bool = False,
    ) -> None:
        """Note changes and move the position, in one step.

        ``number`` is one more with each commit: one that is made again, because its answer was lost, changes
        nothing, and one that does not follow the last one there is, because that was lost in a failover, is
        refused. Raises :class:`~toril.log.ReaderFenced` where the lease is another's.
        """
        ...

    async def hand_on(self, processor: str, partition: Partition, key: str) -> None:
        """Have the next epoch go on with the parked events of an aggregate. They stay here as well."""
        ...

    async def tail(self, partition: Partition) -> int:
        """The last ordinal there is."""
        ...

    async def find(self, processor: str, aggregate: Aggregate) -> Loaded | None:
        """How far a processor is with an aggregate, wherever that is; None where it has not seen it."""
        ...

    async def owner(self, processor: str, partition: Partition) -> str | None:
        """The worker that runs a processor in a partition; None where nobody does."""
        ...

    async def retire(self, processor: str) -> bool:
        """Forget where a processor is, so that it holds up nothing; whether it was known."""
        ...

    async def positions(self, partition: Partition, processors: Sequence[str]) -> list[Position | None]:
        """How far other processors are."""
        ...

    async def parked(self, processor: str, partition: Partition) -> dict[str, float]:
        """The aggregates that have parked events, with when they are due (ms)."""
        ...

    async def parked_among(self, processor: str, partition: Partition, keys: Sequence[str]) -> set[str]:
        """Those of the aggregates that have parked events."""
        ...

    async def parked_entries(self, processor: str, partition: Partition, key: str, most: int) -> list[Entry]:
        """The parked events of an aggregate, in order."""
        ...

    async def troubles(
        self, processor: str, partition: Partition, keys: Sequence[str] | None = None
    ) -> dict[str, Trouble]:
        """Why aggregates are parked."""
        ...

    async def decided(self, aggregate: Aggregate) -> list[tuple[str, Decision]]:
        """What people decided about the events of an aggregate, see :func:`~toril.runtime.skipped`."""
        ...

    async def paused(self) -> set[str]:
        """``processor <name>`` and ``tenant <name>`` of all that is paused."""
        ...

    async def pause(self, what: str, *, on: bool) -> None:
        """Pause a processor or a tenant, or let it go on."""
        ...

    def listen(
        self, partitions: Iterable[Partition]
    ) -> AbstractAsyncContextManager[AsyncIterator[set[Partition]]]:
        """Partitions that may have news, as they come."""
        ...

    async def now(self) -> int:
        """Milliseconds since 1970, by the clock that decides."""
        ...


def pack_entry(entry: Entry) -> bytes:
    """A parked event."""
    return msgspec.msgpack.encode((entry.id, entry.ordinal, entry.version, entry.key, entry.body))


def unpack_entry(partition: Partition, raw: bytes) -> Entry:
    """From its parked form."""
    entry_id, ordinal, version, key, body = msgspec.msgpack.decode(raw, type=tuple[str, int, int, str, bytes])
    return Entry(partition, entry_id, ordinal, version, key, body)
