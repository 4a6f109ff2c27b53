"""The promise retention-safe: trimming never removes what some reader still needs.

Readers stop, die, are retired and come back, temporary ones come and go, and all the time the log is trimmed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from tests.conftest import SCALE
from tests.log.audit import check_books, check_in_order, check_lives
from tests.log.blows import Hurt, storm
from tests.log.crew import Crew
from tests.log.victim import Settings
from tests.waiting import until
from toril import Connection, connect
from toril.aggregate import Aggregate
from toril.connection import ConnectionFailed, OutcomeUnknown
from toril.log import Log, Partition, Position, ReaderFenced, ReaderGone, Retention, WrongPosition
from toril.log.store import PartitionStore
from toril.testing import Cluster, Server, cluster, standalone

T = TypeVar("T")

SMALL_NODES = 5
"""Entries in a node of a stream: trimming takes whole nodes, so it is to take many small ones."""


class Passers:
    """Temporary readers of this process, that come, read, and go, in order or not."""

    def __init__(self, log: Log, rng: random.Random) -> None:
        self.log = log
        self.rng = rng
        self.came = self.saw = 0
        self.closing = False

    async def work(self) -> None:
        while not self.closing:
            try:
                await self._visit()
            except (ConnectionFailed, OutcomeUnknown):
                await asyncio.sleep(0.05)

    async def _visit(self) -> None:
        reader = self.log.reader(start=self.rng.choice(("first", "tail")), page=20, silent=1)
        self.came += 1
        try:
            await reader.__aenter__()
            at = {partition: position.ordinal for partition, position in reader.positions.items()}
            until = time.monotonic() + self.rng.uniform(0, 0.5)
            while time.monotonic() < until:
                async for batch in reader.until_now():
                    for entry in batch.entries:
                        assert entry.ordinal == at[batch.partition] + 1, "a temporary reader missed something"
                        at[batch.partition] = entry.ordinal
                        self.saw += 1
                await asyncio.sleep(0.01)
            if self.rng.random() < 0.5:
                await reader.close()  # or it is left alone, and forgotten after its time
        except ReaderGone:
            pass  # it was silent for a second, on a busy machine: that is what it was told would happen


@pytest.mark.timeout(120 + 40 * SCALE)
@pytest.mark.parametrize("shape", ["standalone", "cluster"])
async def test_retention_safe_when_readers_die_and_come_back(
    shape: str, binary: Path | None, rng: random.Random, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    settings: dict[str, str | int] = {"stream-node-max-entries": SMALL_NODES}
    with ExitStack() as stack:
        made: Server | Cluster
        if shape == "standalone":
            settings |= {"appendonly": "yes", "appendfsync": "always"}
            settings |= {"aof-use-rdb-preamble": rng.choice(("yes", "no"))}
            made = stack.enter_context(standalone(settings, binary=binary))
        else:
            made = stack.enter_context(cluster(settings=settings, binary=binary))
        async with connect(made.url) as redis:
            log = Log(redis, partitions=2)
            await log.choose_retention(Retention.keep_for(timedelta(milliseconds=1)))
            stores = [log.store(partition) for partition in (await log.layout()).partitions()]

            def restart() -> None:
                assert isinstance(made, Server)
                if rng.random() < 0.5:
                    made.ask("BGREWRITEAOF")
                made.kill()
                made.start()

            async def fault() -> None:
                if isinstance(made, Cluster):
                    await hurt.fail_over()
                else:
                    await asyncio.to_thread(restart)

            members = [
                Settings(
                    url=made.url,
                    name=name,
                    role="writer" if name == "w" else "reader",
                    journal=str(tmp_path / name),
                    page=15,
                    pause_ms=20,
                )
                for name in ("w", "steady", "other", "retired")
            ]
            going = True
            looked = retired = 0
            heard: dict[Partition, int] = {}

            async def trim() -> None:
                while going:
                    try:
                        await log.trim(at_once=rng.choice((10, 50, 10_000)))
                    except (ConnectionFailed, OutcomeUnknown):
                        await asyncio.sleep(0.05)
                    await asyncio.sleep(0.005)

            async def look() -> None:
                nonlocal looked
                trimmed: dict[Partition, int] = defaultdict(int)
                while going:
                    for store in stores:
                        books = await check_books(store)
                        assert books.trimmed >= trimmed[store.partition]
                        trimmed[store.partition] = books.trimmed
                        looked += 1
                    await asyncio.sleep(0.003)

            async def subscribe() -> None:
                """One that waits for news all the time, through everything."""
                async with log.reader(silent=30) as reader:
                    at = {partition: position.ordinal for partition, position in reader.positions.items()}
                    async for batch in reader:
                        for entry in batch.entries:
                            assert entry.ordinal == at[batch.partition] + 1
                            at[batch.partition] = entry.ordinal
                        heard.update(at)

            async def retire() -> None:
                nonlocal retired
                retired += await log.retire("retired")

            if isinstance(made, Cluster):
                hurt = Hurt(made, [store.keys.head for store in stores], rng)
            async with Crew(members, rng) as crew:
                passers = Passers(log, rng)
                async with log.upkeep(every=0.05), asyncio.TaskGroup() as tasks:
                    subscribed = tasks.create_task(subscribe())
                    for task in (trim, look, passers.work, passers.work):
                        tasks.create_task(task())
                    dealt = await storm(
                        rng,
                        [
                            lambda: crew.kill_one("reader"),
                            lambda: crew.kill_one("reader"),
                            retire,
                            fault,
                        ],
                    )
                    await crew.close("writer")
                    await caught_up(log, ("steady", "other"))
                    going, passers.closing = False, True
                    tails = {each.partition: each.tail.ordinal for each in await log.standings()}
                    await until(lambda: heard == tails)
                    await until(lambda: mostly_trimmed(log))
                    subscribed.cancel()
                await crew.close("reader")
            journals = crew.journals("reader")
            events = again = 0
            for store in stores:
                books = await check_books(store)
                events += books.ordinal
                assert heard[store.partition] == books.ordinal
                for name in ("steady", "other"):
                    assert books.floors[name] == books.ordinal
                    again += check_lives(journals[name], store.partition, books.ordinal)
                for life in journals["retired"].lives[store.partition]:
                    check_in_order(life)
    with capsys.disabled():
        print(
            f"\n  retention on {shape}: {events} events, {crew.kills} readers killed, {retired} retired, "
            f"{passers.came} temporary ones saw {passers.saw}, {again} events seen again, "
            f"{looked} looks at the books, {dealt} blows, {time.monotonic() - started:.1f} s"
        )
    assert events > 200
    assert passers.saw
    assert not set(journals["steady"].left_with) & {"ReaderGone", "ReaderFenced"}


async def caught_up(log: Log, names: tuple[str, ...]) -> None:
    """Wait until these readers have committed all there is."""
    async with asyncio.timeout(30 + 30 * SCALE):
        while any(
            name not in standing.readers or standing.backlog(name)
            for standing in await log.standings()
            for name in names
        ):
            await asyncio.sleep(0.05)


async def mostly_trimmed(log: Log) -> bool:
    """Whether half of what was ever there is gone; those who left without a word hold it up for a second."""
    return all(each.trimmed > each.tail.ordinal * 0.5 for each in await log.standings())


# ------------------------------------------------------------------------- positions, against a model


@dataclass
class Known:
    """A reader as it should be."""

    ordinal: int
    fence: int = 0
    fences: list[int] = field(default_factory=lambda: [0])
    """All that were ever given out under its name."""


@pytest.fixture
async def small_nodes(redis: Connection) -> AsyncIterator[Connection]:
    await redis.each_primary("CONFIG", "SET", "stream-node-max-entries", SMALL_NODES)
    yield redis
    await redis.each_primary("CONFIG", "SET", "stream-node-max-entries", 100)


class Model:
    """Any sequence of calls, sent by the right ones and by zombies; what should come of each."""

    NAMES = ("a", "b", "~c", "~d")

    def __init__(self, log: Log, store: PartitionStore, rng: random.Random) -> None:
        self.log = log
        self.store = store
        self.rng = rng
        self.ids = ["0-0"]
        """By ordinal."""
        self.trimmed = 0
        self.readers: dict[str, Known] = {}
        self.fences: dict[str, list[int]] = defaultdict(lambda: [0])

    @property
    def last(self) -> int:
        return len(self.ids) - 1

    def position(self) -> tuple[Position, str | None]:
        """Some position, and what is wrong with it whoever sends it."""
        kind = self.rng.randrange(10)
        if kind < 6 and self.last > self.trimmed:
            ordinal = self.rng.randint(self.trimmed + 1, self.last)
            return Position(ordinal, self.ids[ordinal]), None
        if kind == 6:
            beyond = self.last + self.rng.choice((1, 2, 10**6))
            return Position(beyond, self.rng.choice((self.ids[-1], "99999999999999-0"))), "PAST"
        if kind == 7 and self.last > 1:
            ordinal = self.rng.randint(1, self.last)
            return Position(ordinal, self.ids[ordinal - 1]), "NOPLACE"
        if kind == 8 and self.trimmed:
            ordinal = self.rng.randint(1, self.trimmed)
            return Position(ordinal, self.ids[ordinal]), "NOPLACE"
        return Position(self.rng.randint(0, self.last), "5-5"), "NOPLACE"

    def silent(self, name: str) -> int:
        return 600_000 if name.startswith("~") else 0

    async def refused(self, call: Awaitable[T], code: str | None) -> T | None:
        """What a call gives; None where it is refused, which it is with this code."""
        given, said = None, None
        try:
            given = await call
        except (ReaderGone, ReaderFenced, WrongPosition) as problem:
            said = problem.code
        assert said == code
        return given

    async def append(self) -> None:
        count = self.rng.randint(1, 8)
        done = await self.log.append(Aggregate("acme", "order", str(self.rng.randrange(3))), [b"x"] * count)
        ms, seq = done.first_id.split("-")
        self.ids += [f"{ms}-{int(seq) + place}" for place in range(count)]
        assert done.position == Position(self.last, self.ids[-1])

    async def register(self) -> None:
        name = self.rng.choice(self.NAMES)
        start: Position | str
        wrong = None
        if self.rng.random() < 0.5:
            start = self.rng.choice(("first", "tail"))
            ordinal = self.trimmed if start == "first" else self.last
        else:
            start, wrong = self.position()
            ordinal = start.ordinal
            if ordinal == self.trimmed:  # before the first entry, whatever its id was
                wrong = None
        if name in self.readers:
            wrong = None
        state = await self.refused(self.store.register(name, start, self.silent(name)), wrong)
        if state is None:
            return
        known = self.readers.setdefault(name, Known(ordinal))
        assert (state.position.ordinal, state.fence) == (known.ordinal, known.fence)

    async def claim(self) -> None:
        name = self.rng.choice(self.NAMES)
        state = await self.refused(self.store.claim(name), None if name in self.readers else "GONE")
        if state is None:
            return
        known = self.readers[name]
        assert (state.position.ordinal, state.fence) == (known.ordinal, known.fence + 1)
        known.fence = state.fence
        self.fences[name].append(state.fence)

    async def advance(self) -> None:
        name = self.rng.choice(self.NAMES)
        position, wrong = self.position()
        known = self.readers.get(name)
        right = known is not None and self.rng.random() < 0.7
        fence = known.fence if known is not None and right else self.rng.choice((*self.fences[name], 10**6))
        if known is None:
            expected: str | None = "GONE"
        elif fence != known.fence:
            expected = "FENCED"
        elif position.ordinal < known.ordinal:
            expected = "BACKWARDS"
        elif position.ordinal == known.ordinal:
            expected = None
        else:
            expected = wrong
        moved = await self.refused(self.store.advance(name, fence, position, self.silent(name)), expected)
        if moved is None:
            return
        assert known is not None
        assert moved == (position.ordinal > known.ordinal)
        known.ordinal = position.ordinal

    async def retire(self) -> None:
        name = self.rng.choice(self.NAMES)
        assert await self.store.retire(name) == (self.readers.pop(name, None) is not None)

    async def trim(self) -> None:
        needed = self.rng.choice(("", "", *self.NAMES))
        removed, trimmed, holding = await self.store.trim(needed, 0, 1000)
        assert removed == trimmed - self.trimmed
        if not self.readers or (needed and needed not in self.readers):
            assert (removed, holding) == (0, [])
            return
        floor = min(known.ordinal for known in self.readers.values())
        assert sorted(holding) == sorted(name for name, its in self.readers.items() if its.ordinal == floor)
        assert self.trimmed <= trimmed <= floor
        assert floor - trimmed < SMALL_NODES
        self.trimmed = trimmed

    async def step(self) -> None:
        calls = (self.append, self.register, self.claim, self.advance, self.retire, self.trim)
        (call,) = self.rng.choices(calls, weights=(6, 4, 3, 12, 1, 4))
        await call()
        books = await check_books(self.store)
        assert (books.ordinal, books.trimmed) == (self.last, self.trimmed)
        assert books.floors == {name: known.ordinal for name, known in self.readers.items()}


async def test_retention_safe_whatever_a_zombie_sends(small_nodes: Connection, rng: random.Random) -> None:
    """A position is never moved backwards, past the tail, or to where no entry is."""
    for run in range(round(4 * max(SCALE, 1))):
        log = Log(small_nodes, f"run{run}", partitions=1)
        model = Model(log, log.store((await log.layout()).partitions()[0]), rng)
        for _ in range(150):
            await model.step()
