"""Comparing an old queue with what was copied: counts and checksums by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toril.connection import Connection
from toril.errors import TorilError
from toril.migrate.copying import sort_out, source_name
from toril.migrate.destination import Destination, Entry
from toril.migrate.jobs import NAMES, STATES, Place, StoredJob
from toril.migrate.moves import Move, Moves
from toril.migrate.reading import QueueReader
from toril.migrate.report import MOST_PROBLEMS, Problem, Told, tell_nobody

CORE = (b"name", b"data", b"opts", b"timestamp")
"""What of a job nobody changes before it is begun."""


@dataclass(slots=True)
class QueueCheck:
    """How an old queue stands to the new one."""

    source: str
    destination: str
    begun: bool
    """Whether anything was ever copied, and not taken back."""
    old: Counter[str] = field(default_factory=Counter)
    """Jobs in the old queue, by state."""
    same: Counter[str] = field(default_factory=Counter)
    """Of these, those that are there just as they were copied."""
    gone_on: Counter[str] = field(default_factory=Counter)
    """Those that the new queue has begun, finished or removed since."""
    pending: int = 0
    """Jobs that were not copied."""
    busy: int = 0
    """Of these, those that an old worker is working on."""
    missing: int = 0
    """Ids in the old queue without a job."""
    changed: int = 0
    """Jobs that were changed in the old queue after they were copied."""
    differing: int = 0
    """Jobs that are not what was copied, although nobody has begun them."""
    stray: int = 0
    """Jobs, at least, that are as they were copied, but in no state of the new queue."""
    schedulers: int = 0
    """Schedulers that were not copied."""
    workers: list[str] | None = field(default_factory=list)
    """Old workers that are connected; None where the server does not tell."""
    problems: list[Problem] = field(default_factory=list)

    def reasons(self) -> list[str]:
        """Why the old keys must not be removed; nothing where that is safe."""
        if not self.begun:
            return [f"{self.source!r} was not copied"]
        found = []
        for count, what in (
            (self.pending - self.busy, "not copied"),
            (self.busy, "being worked on by old workers"),
            (self.changed, "changed in the old queue after being copied"),
            (self.differing, f"not the same in {self.destination!r}"),
            (self.stray, f"in no state of {self.destination!r}"),
        ):
            if count:
                found.append(f"{count:,} {'job' if count == 1 else 'jobs'} of {self.source!r} {what}")
        if self.schedulers:
            what = "scheduler" if self.schedulers == 1 else "schedulers"
            found.append(f"{self.schedulers:,} {what} of {self.source!r} not copied")
        return found

    def problem(self, job: str, what: str) -> None:
        """Note what is wrong with a job."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(self.source, job, what))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        counters = {"old": dict(self.old), "same": dict(self.same), "gone_on": dict(self.gone_on)}
        return asdict(self) | counters | {"safe": not self.reasons(), "reasons": self.reasons()}


async def verify(
    source: Connection, destination: Connection, moves: Moves, told: Told = tell_nobody
) -> list[QueueCheck]:
    """Look at every job of the old queues, and at its copy."""
    checks = []
    for move in moves:
        old, new = QueueReader(source, move.source), Destination(destination, move.destination, "")
        checks.append(await _verify_queue(old, new, move, moves, told))
    return checks


async def _verify_queue(
    old: QueueReader, new: Destination, move: Move, moves: Moves, told: Told
) -> QueueCheck:
    facts = await new.facts()
    check = QueueCheck(move.source.name, move.destination.name, facts.get("source") == source_name(old))
    check.workers = await old.workers()
    there = QueueReader(new.redis, new.keys)
    of, done = sum((await old.counts()).values()), 0
    held = sum((await there.counts()).values())
    for state in STATES:
        async for places in old.walk(state):
            known, fresh = await sort_out(old, new, places)
            check.old[NAMES[places[0].letter]] += len(places)
            await _check_known(old, there, known, moves, check)
            await _note_pending(old, fresh, check)
            done += len(places)
            told(check.source, done, max(of, done))
    # Counted before and after: those that leave meanwhile were there before, those that come are there now.
    held = max(held, sum((await there.counts()).values()))
    check.stray = max(0, check.same.total() - held)
    copied = await new.schedulers()
    async for ident, _, _ in old.schedulers():
        check.schedulers += ident not in copied
    return check


async def _note_pending(old: QueueReader, fresh: Sequence[Place], check: QueueCheck) -> None:
    check.pending += len(fresh)
    active = [place for place in fresh if place.state == "active"]
    busy = {job.place.id async for jobs in old.read_all(active) for job in jobs if job.locked}
    check.busy += len(busy)
    for place in fresh:
        check.problem(place.id, "an old worker is working on it" if place.id in busy else "it was not copied")


async def _check_known(
    old: QueueReader,
    there: QueueReader,
    known: Sequence[tuple[Place, Entry]],
    moves: Moves,
    check: QueueCheck,
) -> None:
    entries = {place.id: entry for place, entry in known}
    async for jobs in old.read_all([place for place, _ in known]):
        own = [Place(entries[job.place.id].id, job.place.state) for job in jobs]
        copies = {copy.place.id: copy async for part in there.read_all(own) for copy in part}
        for job in jobs:
            entry = entries[job.place.id]
            if not job.fields or entry.letter in "xouz":
                check.missing += not job.fields
                continue
            _compare(job, entry, copies[entry.id], moves, check)


def _compare(job: StoredJob, entry: Entry, copy: StoredJob, moves: Moves, check: QueueCheck) -> None:
    state = NAMES[job.place.letter]
    try:
        renamed = job.renamed(moves)
    except TorilError as problem:
        check.changed += 1
        check.problem(job.place.id, str(problem))
        return
    if renamed.digest() != entry.digest:
        check.changed += 1
        check.problem(job.place.id, "it was changed in the old queue after it was copied")
    elif copy.fields and copy.digest() == entry.digest:
        check.same[state] += 1
    elif _is_damaged(renamed, copy):
        check.differing += 1
        check.problem(job.place.id, f"it is not the same in {check.destination!r}")
    else:
        check.gone_on[state] += 1


def _is_damaged(job: StoredJob, copy: StoredJob) -> bool:
    if not copy.fields or copy.fields.get(b"ats") != job.fields.get(b"ats"):
        return False
    return any(copy.fields.get(name) != job.fields.get(name) for name in CORE)
