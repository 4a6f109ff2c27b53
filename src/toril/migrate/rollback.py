"""Giving back what the new queue has not finished: each job to where it was, or to where it has come since.

The old queue still has everything as it was copied. So a job that goes back is taken out of the new queue's
states (from then on no worker can take it), written over the old one, and only then forgotten in the new
queue. One that was finished in the new queue stays there, and leaves the old queue. Each of these steps can
be taken twice, so a rollback that was cut off is taken up by running it again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toril.connection import Connection
from toril.keyspace import Key
from toril.migrate.copying import source_name
from toril.migrate.destination import KEPT_FOR, Destination, Taken
from toril.migrate.errors import LinkedOutside, MigrationError
from toril.migrate.jobs import LISTS, STATES, Place, StoredJob, scores_first
from toril.migrate.moves import Moves
from toril.migrate.reading import PORTION, QueueReader
from toril.migrate.report import MOST_PROBLEMS, Pace, Problem, Told, tell_nobody
from toril.queue.store import QueueStore

ON_ITS_WAY = frozenset("wpdhacfbr")
"""Letters of jobs that may have to go back."""


@dataclass(slots=True)
class QueueRollback:
    """What became of one queue."""

    source: str
    destination: str
    back: int = 0
    """Jobs that are in the old queue only, again."""
    done: int = 0
    """Jobs that the new queue has finished: they are not in the old queue any more."""
    busy: int = 0
    """Jobs that are being worked on."""
    own: int = 0
    """Jobs that were added to the new queue, and stay there."""
    resumed: bool = False
    """Whether the old queue goes on, as before it was copied."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing is left to be done."""
        return not self.busy and not self.problems

    def problem(self, job: str, what: str) -> None:
        """Note what went wrong with a job."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(self.source, job, what))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self) | {"whole": self.whole}


async def rollback(
    source: Connection,
    destination: Connection,
    moves: Moves,
    told: Told = tell_nobody,
    *,
    rate: float | None = None,
) -> list[QueueRollback]:
    """Put back what the new queues have not finished, and let the old queues go on."""
    runner, pace = uuid.uuid4().hex, Pace(rate)
    backs = [
        _Back(
            QueueReader(source, move.source),
            Destination(destination, move.destination, runner),
            moves.back(),
            pace,
        )
        for move in moves
    ]
    begun = [back for back in backs if await back.is_copied()]
    if not begun:
        names = ", ".join(repr(move.source.name) for move in moves)
        raise MigrationError(f"nothing was copied from {names or 'any queue'} that could go back")
    for back in begun:
        await back.begin()
    for back in begun:
        await back.give_back(told)
    if all(back.done.whole for back in begun):
        for back in begun:
            await back.end()
    return [back.done for back in backs]


class _Back:
    def __init__(self, old: QueueReader, new: Destination, moves: Moves, pace: Pace) -> None:
        self._old = old
        self._new = new
        self._there = QueueReader(new.redis, new.keys)
        self._moves = moves
        self._pace = pace
        self.done = QueueRollback(old.keys.name, new.keys.name)

    async def is_copied(self) -> bool:
        """Whether something was copied from the old queue, and is not all back."""
        return (await self._new.facts()).get("source") == source_name(self._old)

    async def begin(self) -> None:
        """Let nobody take jobs of the new queue any more."""
        facts = await self._new.facts()
        if facts.get("phase") == "cleaned":
            raise MigrationError(
                f"the old keys of {self._old.keys.name!r} were removed: move {self._new.keys.name!r} instead"
            )
        paused = await self._there.is_paused()
        await self._new.take_over("rolling back")
        if "pause_later" not in facts:
            await self._new.note(pause_later=int(paused))
        if not paused:
            await QueueStore(self._new.redis, self._new.keys).pause()

    async def give_back(self, told: Told) -> None:
        """Give back what was copied, in all states."""
        of, done = sum((await self._old.counts()).values()), 0
        for start in range(0, len(turns := await self._turns()), PORTION):
            part = turns[start : start + PORTION]
            await self._portion([Place(ident, "") for ident, _ in part], [turn for _, turn in part])
        for state in STATES:
            stay = 0
            while places := await self._old.page(state, stay, PORTION):
                stay += len(places) - await self._portion(places)
                done += len(places)
                told(self.done.source, done, max(of, done))
        # Whatever is left, wherever it is: jobs that were busy, or have vanished from the old queue.
        self.done.busy = 0
        self.done.problems.clear()
        async for entries in self._new.all_entries():
            left = [Place(ident, "") for ident, entry in entries if entry.letter in ON_ITS_WAY]
            await self._portion(left)
        await self._give_back_schedulers()

    async def _turns(self) -> list[tuple[str, str]]:
        """Jobs that wait here elsewhere than in the old queue: in the order in which they must go back.

        A parent came to the front here, and what became due, or is to be tried again, to the end. Those that
        were on their way when this was cut off come first.
        """
        noted = [value for name, value in (await self._new.facts()).items() if name.startswith("r:")]
        cut_off = sorted(
            (turn, ident) for _, _, turn, ident in (each.split(" ", 3) for each in noted) if turn
        )
        front: list[str] = []
        behind: list[str] = []
        met_old = False
        for state in ("wait", "paused"):
            async for places in self._there.walk(state):
                ids = [place.id for place in places]
                entries = await self._new.entries(ids)
                again = await self._begun_since(ids)
                for ident, entry in zip(ids, entries, strict=True):
                    if entry is not None and (entry.letter in "dhap" or ident in again):
                        (behind if met_old else front).append(ident)
                    else:
                        met_old = True
        late = [*(("F", ident) for ident in reversed(front)), *(("G", ident) for ident in behind)]
        first = 1 + max((int(turn[1:]) for turn, _ in cut_off), default=0)
        return [(ident, turn) for turn, ident in cut_off] + [
            (ident, f"{side}{number:09d}") for number, (side, ident) in enumerate(late, first)
        ]

    async def _begun_since(self, ids: Sequence[str]) -> set[str]:
        """Which of these jobs were begun in the new queue."""
        begun = {ident: count for ident, count in (await self._there.starts(ids)).items() if count}
        before = await self._old.starts(list(begun))
        return {ident for ident, count in begun.items() if count != before[ident]}

    async def _portion(self, places: Sequence[Place], turns: Sequence[str] = ()) -> int:
        """Give back jobs, or let them leave the old queue; how many are not any more where they were."""
        if not places:
            return 0
        await self._pace.take(len(places))
        asked = zip(places, turns or [""] * len(places), strict=True)
        taken = await self._new.seize([(place.id, turn) for place, turn in asked])
        pairs = list(zip(places, taken, strict=True))
        self.done.busy += sum(job.what == "busy" for job in taken)
        for place, job in pairs:
            if job.what == "lost":
                self.done.problem(place.id, f"it is in no state of {self.done.destination!r}")
        returned = [(place, job) for place, job in pairs if job.what == "back"]
        here = [Place(job.id, job.state, job.score) for _, job in returned]
        stored = {job.place.id: job async for part in self._there.read_all(here) for job in part}
        written = await asyncio.gather(
            *(self._write(place.id, stored[job.id]) for place, job in returned), return_exceptions=True
        )
        released, moved = [], 0
        for (place, job), problem in zip(returned, written, strict=True):
            if isinstance(problem, LinkedOutside):
                self.done.problem(place.id, str(problem))
                continue
            if problem is not None:
                raise problem
            moved += await self._place(place, job)  # one after the other: their order counts
            released.append((place.id, "back"))
        if released:
            await self._new.release(released)
        self.done.back += len(released)
        finished = [place for place, job in pairs if job.what == "done"]
        await self._drop(finished)
        return moved + len(finished)

    # ------------------------------------------------------------------ the old queue

    async def _write(self, ident: str, copy: StoredJob) -> None:
        """Write a job over what the old queue has of it."""
        keys, ask, job = self._old.keys, self._old.redis.command, copy.renamed(self._moves)
        for key, command, values in (
            (keys.job(ident), "HSET", [part for pair in job.fields.items() for part in pair]),
            (keys.logs(ident), "RPUSH", job.logs),
            (keys.dependencies(ident), "SADD", job.waits),
            (keys.processed(ident), "HSET", job.results),
            (keys.failed_children(ident), "HSET", job.ignored),
            (keys.unsuccessful(ident), "ZADD", scores_first(job.failures)),
        ):
            await ask("DEL", key, repeatable=True)
            if values:
                await ask(command, key, *values)

    async def _place(self, place: Place, taken: Taken) -> bool:
        """Put a job where it belongs by now; whether that is another place."""
        keys, ask, ident, now = self._old.keys, self._old.redis.command, place.id, taken.state
        was = place.state or await self._state_of(ident)
        if now == "none":  # it was here, but in no state yet
            return False
        if now not in LISTS:
            if now != was:
                await self._take_out(was, ident)
            if now != was or taken.score != place.score:
                await ask("ZADD", keys[now], taken.score, ident, repeatable=True)
            return now != was
        if not taken.turn and (now == was or (now == "wait" and was in ("wait", "paused"))):
            return False
        target = keys[await self._list() if now == "wait" else now]
        await self._take_out(was, ident)
        await ask("LREM", target, 0, ident, repeatable=True)
        await ask("RPUSH" if taken.turn.startswith("F") else "LPUSH", target, ident)
        return True

    async def _list(self) -> str:
        return "paused" if await self._old.is_paused() and self._old.together else "wait"

    async def _state_of(self, ident: str) -> str:
        for state in STATES:
            asked = "LPOS" if state in LISTS else "ZSCORE"
            if await self._old.redis.command(asked, self._old.keys[state], ident) is not None:
                return state
        return ""

    async def _take_out(self, state: str, ident: str) -> None:
        if state in LISTS:
            await self._old.redis.command("LREM", self._old.keys[state], -1, ident, repeatable=True)
        elif state:
            await self._old.redis.command("ZREM", self._old.keys[state], ident, repeatable=True)

    async def _drop(self, places: Sequence[Place]) -> None:
        """Let finished jobs leave the old queue."""
        keys, ask = self._old.keys, self._old.redis.command
        for place in places:
            dedup = await ask("HGET", keys.job(place.id), "deid")
            if dedup:
                await self._free(keys.deduplication(dedup.decode()), place.id)
            await self._take_out(place.state or await self._state_of(place.id), place.id)
        own = (keys.job, keys.logs, keys.dependencies, keys.processed, keys.failed_children)
        await asyncio.gather(
            *(
                ask("UNLINK", key(place.id), repeatable=True)
                for place in places
                for key in (*own, keys.unsuccessful)
            )
        )
        if places:
            await self._new.release([(place.id, "done") for place in places])
            self.done.done += len(places)

    async def _free(self, key: Key, ident: str) -> None:
        """A job that has ended gives its deduplication id back, unless that lasts for a time of its own."""
        ask = self._old.redis.command
        if await ask("GET", key) == ident.encode() and await ask("PTTL", key) < 0:
            await self._old.redis.command("DEL", key, repeatable=True)

    async def _give_back_schedulers(self) -> None:
        """A scheduler goes back with the next run it has by now."""
        keys, new = self._new.keys, self._new.redis
        for ident, copied in (await self._new.schedulers()).items():
            if not copied:
                continue
            due = await new.command("ZSCORE", keys.repeat, ident)
            if due is not None:
                fields = await new.command("HGETALL", keys.scheduler(ident))
                await self._old.redis.command("ZADD", self._old.keys.repeat, due, ident, repeatable=True)
                if fields:
                    await self._old.redis.command(
                        "HSET", self._old.keys.scheduler(ident), *fields, repeatable=True
                    )
                await self._give_back_next(f"repeat:{ident}:{int(float(due))}")
                await new.command("ZREM", keys.repeat, ident, repeatable=True)
                await new.command("DEL", keys.scheduler(ident), repeatable=True)
            await new.command("HDEL", keys.migrated_schedulers, ident, repeatable=True)

    async def _give_back_next(self, ident: str) -> None:
        """The next run was made in the new queue: the tracker learns of it, and it goes back like others."""
        keys, new = self._new.keys, self._new.redis
        made = await new.command("HGET", keys.job(ident), "timestamp")
        if made is None:
            return
        await new.command("HSETNX", keys.migrated, ident, f"d {made.decode()} ", repeatable=True)
        await self._portion([Place(ident, "")])

    async def end(self) -> None:
        """Let the queues go on as they were."""
        facts = await self._new.facts()
        counts = await self._there.counts()
        self.done.own = sum(counts.values()) - counts["completed"] - counts["failed"]
        if facts.get("paused") == "1" and facts.get("was_paused") == "0":
            await QueueStore(self._old.redis, self._old.keys).resume()
            self.done.resumed = True
        if facts.get("pause_later") == "0":
            await QueueStore(self._new.redis, self._new.keys).resume()
        await self._new.keep_for(KEPT_FOR)
        await self._new.redis.command("DEL", self._new.keys.migration, repeatable=True)
