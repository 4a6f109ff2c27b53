"""Copying queues: parents first, the oldest first, each job once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from toril.connection import Connection
from toril.errors import TorilError
from toril.keyspace import OLD_TRACKER, Key
from toril.migrate.ahead import ahead
from toril.migrate.destination import Arrived, Destination, Entry
from toril.migrate.discovery import dedup_ids
from toril.migrate.errors import LinkedOutside, MigrationError, WorkersConnected
from toril.migrate.jobs import NAMES, STATES, Place, StoredJob
from toril.migrate.moves import Move, Moves
from toril.migrate.reading import PORTION, QueueReader
from toril.migrate.report import Pace, QueueReport, Told, tell_nobody
from toril.queue.store import QueueStore, speaks_v6

ID_GAP = 1_000_000
"""Ids that old producers may still give out before the new queue's ids are reached."""

LOOKS = 10
"""Old producers may go on adding: after so many looks, the rest is for another run, or for following."""

LOOK_EVERY = 0.5
"""Seconds between two looks at the old queue, when following it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How to copy."""

    pause: bool = True
    """Pause the old queues first, so that no old worker takes a job that is copied."""
    allow_workers: bool = False
    """Copy from a queue that is not paused although old workers are there: jobs may run twice."""
    take_active: bool = False
    """Copy also active jobs whose lock is alive: their workers are gone for good."""
    renumber: bool = False
    """Give a new id to a job whose id another job has at the destination."""
    rate: float | None = None
    """Jobs a second at most."""


@dataclass(frozen=True, slots=True)
class _Portion:
    """Jobs of one queue that are written at once."""

    queue: int
    """Its place among the moves."""
    seen: int
    """How many jobs were looked at for it."""
    jobs: Sequence[StoredJob] = ()
    elsewhere: Collection[str] = ()


class Copier:
    """Copies queues that move together."""

    def __init__(
        self,
        source: Connection,
        destination: Connection,
        moves: Moves,
        options: CopyOptions = CopyOptions(),  # noqa: B008 - it is frozen
        told: Told = tell_nobody,
    ) -> None:
        self.moves = moves
        self.options = options
        self.reports = [QueueReport(move.source.name, move.destination.name) for move in moves]
        runner = uuid.uuid4().hex
        self._old = [QueueReader(source, move.source) for move in moves]
        self._new = [Destination(destination, move.destination, runner) for move in moves]
        self._told = told
        self._pace = Pace(options.rate)
        self._counters = [0] * len(moves)
        self._looks = 0
        self._busy: list[set[str]] = [set() for _ in moves]

    async def copy(self) -> list[QueueReport]:
        """Copy all there is, until a look at everything finds nothing new."""
        await self._begin()
        for _ in range(LOOKS):
            if not await self.look():
                break
        return self.reports

    async def follow(self, stopped: Callable[[], bool]) -> list[QueueReport]:
        """Copy, and go on copying what comes, until told to stop."""
        await self._begin()
        seen = None
        while not stopped():
            marks = await self._marks()
            if marks == seen and not any(report.left for report in self.reports):
                await asyncio.sleep(LOOK_EVERY)
                continue
            seen = marks
            if not await self.look():
                await asyncio.sleep(LOOK_EVERY)
        return self.reports

    async def _marks(self) -> list[tuple[int, dict[str, int]]]:
        """What changes whenever a job is added, or changes its state."""
        return [(await old.number(old.keys.id), await old.counts()) for old in self._old]

    # ------------------------------------------------------------------ the beginning

    async def _begin(self) -> None:
        for place, (move, old, new) in enumerate(zip(self.moves, self._old, self._new, strict=True)):
            self.reports[place].workers = await old.workers()
            await _refuse_v6(old)
            await _refuse_v6(QueueReader(new.redis, new.keys))
            await self._check(move, old, self.reports[place].workers)
            flat = await old.redis.command("HGETALL", old.keys.meta)
            meta = dict(zip(flat[::2], flat[1::2], strict=True))
            paused = meta.pop(b"paused", None) is not None
            facts = await new.facts()
            if paused and "source" not in facts:
                await QueueStore(new.redis, new.keys).pause()
            self._counters[place] = await old.number(old.keys.priority_counter)
            newest = await old.number(old.keys.id)
            own = await new.redis.command("GET", new.keys.id)
            lowest = newest + ID_GAP if int(own or 0) <= newest + ID_GAP // 2 and newest else 0
            await new.begin(
                source_name(old),
                was_paused=paused,
                lowest_id=lowest,
                counter=self._counters[place],
                meta=meta,
            )
        for old, new in zip(self._old, self._new, strict=True):
            if self.options.pause and old.together and not await old.is_paused():
                await new.note(paused=1)
                await QueueStore(old.redis, old.keys).pause()

    async def _check(self, move: Move, old: QueueReader, workers: Sequence[str] | None) -> None:
        if self.options.pause or self.options.allow_workers or workers == [] or await old.is_paused():
            return
        name = move.source.name
        who = (
            f"old workers of {name!r} are connected ({', '.join(workers)})"
            if workers
            else f"old workers of {name!r} may be connected (the server refuses CLIENT LIST)"
        )
        raise WorkersConnected(
            f"{who} and could run jobs that are copied: let the queue be paused, stop them, or let jobs run "
            "twice (--allow-workers)"
        )

    # ------------------------------------------------------------------ looking at everything once

    async def look(self) -> int:
        """Copy what is there and was not copied yet; how many jobs that were."""
        self._looks += 1
        before = sum(report.total + report.renumbered for report in self.reports)
        for busy in self._busy:
            busy.clear()
        for report in self.reports:
            report.busy = report.later = report.problem_count = 0
            report.problems.clear()
        counts = [sum((await old.counts()).values()) for old in self._old]
        done = [0] * len(counts)
        for place, old in enumerate(self._old):
            self._counters[place] = await old.number(old.keys.priority_counter)
            await self._copy_schedulers(place)
        async with aclosing(ahead(self._portions())) as portions:
            async for portion in portions:
                await self._write(portion.queue, portion.jobs, portion.elsewhere)
                at = portion.queue
                done[at] += portion.seen
                self._told(self.reports[at].source, done[at], max(counts[at], done[at]))
        if self._looks == 1:  # later ones come with their jobs
            await self._copy_dedup_windows()
        return sum(report.total + report.renumbered for report in self.reports) - before

    async def _portions(self) -> AsyncGenerator[_Portion]:
        """All jobs that the tracker does not know, in the order in which they are written."""
        for state in STATES:
            for at, old in enumerate(self._old):
                async for places in old.walk(state):
                    known, fresh = await sort_out(old, self._new[at], places, confirm=self._looks == 2)
                    if self._looks == 1:
                        self.reports[at].already += len(known)
                    yield _Portion(at, len(known))
                    elsewhere = await self._copied_by_older_tool(old, fresh)
                    while fresh:
                        jobs = await old.read(fresh[:PORTION])
                        fresh = fresh[len(jobs) :]
                        yield _Portion(at, len(jobs), await self._settled(at, jobs), elsewhere)

    async def _write(self, at: int, jobs: Sequence[StoredJob], elsewhere: Collection[str] = ()) -> None:
        """Let jobs arrive that can be moved now; ``elsewhere`` are ids that an older tool has copied."""
        if not jobs:
            return
        new, report = self._new[at], self.reports[at]
        await self._parents_first(jobs)
        await self._pace.take(len(jobs))
        packed: list[tuple[StoredJob, bytes]] = []
        for job in jobs:
            with_it = self._packed(job, report, copied=job.place.id in elsewhere)
            if with_it is not None:
                packed.append((job, with_it))
        outcomes = await new.copy(self._counters[at], [raw for _, raw in packed]) if packed else []
        for (job, _), outcome in zip(packed, outcomes, strict=True):
            self._count(job, outcome, report)

    async def _parents_first(self, jobs: Sequence[StoredJob]) -> None:
        """Copy parents that wait for these jobs, so that none of them finishes before its parent is there.

        A parent that is not in its turn yet comes without its place: that is left to its turn.
        """
        for key in {job.fields[b"parentKey"] for job in jobs if job.awaited}:
            try:
                move, ident = self.moves.owner(key)
            except LinkedOutside:
                continue  # the job itself says so
            at, parent = self.moves.index(move), ident.decode()
            if (await self._new[at].entries([parent]))[0] is not None:
                continue
            score = await self._old[at].redis.command("ZSCORE", move.source.waiting_children, parent)
            if score is not None:
                read = await self._old[at].read([Place(parent, "waiting-children", score)])
                await self._write(at, await self._settled(at, read))
                continue
            read = await self._old[at].read([Place(parent, "wait")])
            for parent_job in await self._settled(at, [job for job in read if job.fields]):
                with suppress(LinkedOutside):
                    body = parent_job.renamed(self.moves).packed(self.moves, letter="b")
                    await self._new[at].copy(self._counters[at], [body])

    async def _settled(self, place: int, jobs: list[StoredJob]) -> list[StoredJob]:
        """Without jobs that are worked on, and without parents of which a child is: its result is to come."""
        if self.options.take_active:
            return jobs
        old = self._old[place]
        busy = {job.place.id for job in jobs if job.locked}
        parents = [job for job in jobs if job.waits and old.together]
        busy |= {job.place.id for job in parents if await old.any_locked(job.waits)}
        self._busy[place] |= busy
        self.reports[place].busy = len(self._busy[place])
        # What was not locked cannot begin any more; what has ended just now is read again.
        again = [job.place for job in parents if job.place.id not in busy]
        newly = {job.place.id: job async for part in old.read_all(again) for job in part}
        return [newly.get(job.place.id, job) for job in jobs if job.place.id not in busy]

    def _packed(self, job: StoredJob, report: QueueReport, *, copied: bool) -> bytes | None:
        if job.problem:
            report.problem(job.place.id, job.problem)
            return None
        if copied or not job.fields:
            return job.packed(self.moves, letter="o" if copied else "x")
        try:
            return job.renamed(self.moves).packed(self.moves, renumber=self.options.renumber)
        except (TorilError, ValueError) as problem:
            report.problem(job.place.id, str(problem))
            return None

    def _count(self, job: StoredJob, outcome: Arrived, report: QueueReport) -> None:
        state = NAMES[job.place.letter]
        if outcome in "CN":
            report.copied[state] += 1
            report.missing += not job.fields
            report.renumbered += outcome == "N"
        elif outcome == "U":
            report.superseded += 1
        elif outcome == "P":
            report.later += 1
        elif outcome == "E":
            report.problem(
                job.place.id,
                f"another job has this id in {report.destination!r} (--renumber gives this one a new id)",
            )

    async def _copied_by_older_tool(self, old: QueueReader, places: Sequence[Place]) -> set[str]:
        if not places or not await old.redis.command("EXISTS", OLD_TRACKER):
            return set()
        members = [f"{old.keys.name}:{place.id}" for place in places]
        found = await old.redis.command("SMISMEMBER", OLD_TRACKER, *members)
        return {place.id for place, there in zip(places, found, strict=True) if there}

    # ------------------------------------------------------------------ beside jobs

    async def _copy_schedulers(self, place: int) -> None:
        old, new = self._old[place], self._new[place]
        async for ident, due, fields in old.schedulers():
            self.reports[place].schedulers += await new.schedule(ident, due, fields) == 1
        for key in (old.keys.metrics_completed, old.keys.metrics_failed):
            await self._copy_metrics(old, new, key)
        left = await old.redis.command("PTTL", old.keys.limiter)
        if left > 0 and (value := await old.redis.command("GET", old.keys.limiter)):
            await new.redis.command("SET", new.keys.limiter, value, "PX", left, "NX", repeatable=True)

    async def _copy_metrics(self, old: QueueReader, new: Destination, key: Key) -> None:
        suffix = key.removeprefix(old.keys.base)
        fields = await old.redis.command("HGETALL", key)
        if not fields or await new.redis.command("EXISTS", new.keys[suffix]):
            return
        rows = await old.redis.command("LRANGE", old.keys[f"{suffix}:data"], 0, -1)
        if rows and not await new.redis.command("EXISTS", new.keys[f"{suffix}:data"]):
            await new.redis.command("RPUSH", new.keys[f"{suffix}:data"], *rows)
        await new.redis.command("HSET", new.keys[suffix], *fields, repeatable=True)

    async def _copy_dedup_windows(self) -> None:
        """Deduplication ids with a time to live stay when their job is gone; so do these."""
        async for keys, ident in dedup_ids(self._old[0].redis, [move.source for move in self.moves]):
            place = next(at for at, move in enumerate(self.moves) if move.source == keys)
            old, new = self._old[place], self._new[place]
            key = old.keys.deduplication(ident)
            owner, left = await old.redis.command("GET", key), await old.redis.command("PTTL", key)
            if owner and left > 0:
                set_now = await new.redis.command(
                    "SET", new.keys.deduplication(ident), owner, "PX", left, "NX", repeatable=True
                )
                self.reports[place].dedup_keys += set_now is not None


async def sort_out(
    old: QueueReader, new: Destination, places: Sequence[Place], *, confirm: bool = False
) -> tuple[list[tuple[Place, Entry]], list[Place]]:
    """Which jobs the tracker knows, and which not. An id may belong to another job: a counter began anew.

    With ``confirm``, all were looked at just before, and ids are enough.
    """
    entries = await new.entries([each.id for each in places])
    asked = [place.id for place, entry in zip(places, entries, strict=True) if entry]
    made = dict.fromkeys(asked, "") if confirm else await old.timestamps(asked)
    known, fresh = [], []
    for place, entry in zip(places, entries, strict=True):
        if entry is None or entry.letter == "b" or not place.readable:
            fresh.append(place)
        elif made[place.id] in (entry.timestamp, ""):
            known.append((place, entry))
        else:
            fresh.append(place)
    return known, fresh


async def _refuse_v6(queue: QueueReader) -> None:
    version = (await queue.redis.command("HGET", queue.keys.meta, "version") or b"").decode(errors="replace")
    if speaks_v6(version):
        raise MigrationError(
            f"queue {queue.keys.name!r} belongs to {version}, which keeps waiting jobs in another way"
        )


def source_name(old: QueueReader) -> str:
    """How a tracker names the queue it is filled from."""
    return f"{old.keys.prefix}:{old.keys.name}"
