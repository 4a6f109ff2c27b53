"""Worker processes of a test's own, what they wrote, and how to check it."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT, create_subprocess_exec
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.queue import crew as queue_crew
from tests.runtime.processor_victim import Settings, ledger
from toril import Connection
from toril.aggregate import Aggregate
from toril.events import AnyEvent, EventHandler, HandlerContext
from toril.runtime import EventSourcing, RegisteredPipeline

ROOT = Path(__file__).parents[2]
PROCESSORS = ("journal", "chained", "summed")


class Victim(queue_crew.Victim):
    """A process that runs the pipeline ``ledger``."""

    async def start(self) -> Victim:
        told = msgspec.json.encode(self.settings).decode()
        self._process = await create_subprocess_exec(
            *(sys.executable, "-m", "tests.runtime.processor_victim", told),
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
        )
        self._reader = asyncio.create_task(self._read())
        await self.until("ready")
        return self

    @property
    def is_gone(self) -> bool:
        return "gone" in self.said


class Crew(queue_crew.Crew):
    """So many of them at all times."""

    def __init__(self, settings: Settings, size: int, rng: random.Random) -> None:
        self._settings: Any = settings
        self._size = size
        self._rng = rng
        self._hired = 0
        self.members: list[Any] = []
        self.kills = 0

    async def hire(self) -> None:
        self._hired += 1
        seed, name = self._rng.randrange(2**32), f"{self._settings.name}-{self._hired}"
        made: Any = msgspec.structs.replace(self._settings, name=name, seed=seed)
        member = Victim(made)
        self.members.append(member)
        await member.start()


class _Never(EventHandler[Any]):
    """Looking on, nobody handles anything."""

    async def handle(self, event: AnyEvent, context: HandlerContext) -> None:
        raise AssertionError(event, context)


@asynccontextmanager
async def looking_on(url: str, partitions: int) -> AsyncIterator[tuple[EventSourcing, RegisteredPipeline]]:
    """The pipeline of the victims, without a worker."""
    async with EventSourcing(url, partitions=partitions) as sourcing:
        yield sourcing, ledger(sourcing, _Never())


@asynccontextmanager
async def folder() -> AsyncIterator[Path]:
    """Where the victims write."""
    with tempfile.TemporaryDirectory(prefix="toril-journal-") as name:
        yield Path(name)


class Line(NamedTuple):
    """One line of a journal."""

    at: int
    by: str
    what: str
    words: list[str]


def read_journal(where: Path) -> list[Line]:
    """All lines of all victims, in the order of time. The last one of a victim may be cut off."""
    lines = []
    for file in where.iterdir():
        for text in file.read_text().split("\n")[:-1]:
            at, what, *words = text.split(" ")
            lines.append(Line(int(at), file.name, what, words))
    return sorted(lines)


def check_order(
    lines: Sequence[Line], versions: dict[str, int], *, commits_hold: bool = True, sleeps: int = 0
) -> int:
    """The promise order-kept: n + 1 begins only after n ended; all were handled. Says how often again.

    ``commits_hold``: nothing that a commit has returned for is begun again, but for one event for each time
    that a process was put to sleep: just between its look at the lease and the handler's first line.
    """
    ended: dict[str, int] = defaultdict(int)
    committed: dict[str, int] = defaultdict(int)
    begun: dict[str, int] = defaultdict(int)
    again = 0
    for line in lines:
        if line.what not in ("begin", "end", "done"):
            continue
        key, version = line.words[0], int(line.words[1])
        if line.what == "begin":
            assert version <= ended[key] + 1, f"{key}: {version} began when {ended[key]} had ended"
            if commits_hold and version <= committed[key]:
                sleeps -= 1
                assert sleeps >= 0, f"{key}: {version} began after its commit"
            again += version <= begun[key]
            begun[key] = max(begun[key], version)
        elif line.what == "end":
            ended[key] = max(ended[key], version)
        else:
            committed[key] = max(committed[key], version)
    assert dict(ended) == versions
    return again


def check_fences(lines: Sequence[Line]) -> int:
    """No partition has two owners: no fence is given twice, no commit with an old one is accepted.

    A take is noted when its answer is read: a victim that stands still notes it after those that followed.
    """
    taken_at: dict[tuple[str, str, int], int] = {}
    takes = 0
    for line in lines:
        if line.what == "take":
            processor, partition, fence = line.words
            take = processor, partition, int(fence)
            assert take not in taken_at, f"{take} was given twice"
            taken_at[take] = line.at
            takes += 1
    for line in lines:
        if line.what == "commit":
            processor, partition, fence, sent = line.words
            following = [
                at
                for (name, where, number), at in taken_at.items()
                if (name, where) == (processor, partition) and number > int(fence)
            ]
            assert not following or int(sent) < min(following), f"{line} was accepted too late"
    return takes


async def check_states(
    pipeline: RegisteredPipeline, aggregates: Sequence[Aggregate], skipped: Sequence[str] = ()
) -> dict[str, int]:
    """The promise once-per-state: every state is what its events give. Says the versions of all."""
    service = pipeline.service
    versions = {}
    for aggregate in aggregates:
        tenant, ident = aggregate.tenant, aggregate.id
        events = (await service.get_events(tenant, ident)).events
        assert [event.version for event in events] == list(range(1, len(events) + 1))
        assert {event.tenant for event in events} <= {tenant}
        versions[aggregate.key] = len(events)
        for name in PROCESSORS[1:]:
            if name in skipped:
                continue
            work: Any = pipeline.definition.works[name]
            state = work.projection.initial()
            for event in events:
                state = work.projection.apply(state, event)
            found = await service.get_projection(name, tenant, ident)
            assert found is not None, f"{name} has nothing of {aggregate.key}"
            assert found.version == len(events), f"{name} of {aggregate.key} is at {found.version}"
            assert work.projection.encode(found.state) == work.projection.encode(state), aggregate.key
    return versions


async def all_done(pipeline: RegisteredPipeline) -> bool:
    """Whether every processor is at the tail, and has nothing parked."""
    return not any(lag.events for lag in await pipeline.service.lag()) and not await parked(pipeline)


async def parked(pipeline: RegisteredPipeline) -> list[tuple[str, str]]:
    """The aggregates that wait, by processor."""
    backend = pipeline.sourcing.backend
    assert backend is not None
    return [
        (name, key)
        for name in PROCESSORS
        for partition in await backend.partitions()
        for key in await backend.parked(f"ledger/{name}", partition)
    ]


async def check_lag(redis: Connection, sourcing: EventSourcing) -> None:
    """What standard tools say: no group of any partition lags."""
    assert sourcing.log is not None
    for partition in (await sourcing.log.layout()).partitions():
        groups = await redis.command("XINFO", "GROUPS", sourcing.log.store(partition).keys.entries)
        for group in groups:
            said = dict(zip(group[::2], group[1::2], strict=True))
            assert said[b"lag"] == 0, (partition, said)
