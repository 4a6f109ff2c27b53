"""The one door to a partition of a stream queue: each method is one script, or one command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from toril.connection import Connection, Durability, Script, load_script
from toril.connection.durability import Level
from toril.connection.wire import Argument
from toril.keyspace import StreamKeys
from toril.stream.errors import BacklogFull, Unconfigured
from toril.stream.job import NewJob, Taken

_ERRORS = {"FULL": BacklogFull, "UNCONFIGURED": Unconfigured}


def _script(verb: str) -> Script:
    return load_script(f"stream/{verb}", errors=_ERRORS)


CONFIGURE, ADD, STEP, RENEW, RECLAIM = map(_script, ("configure", "add", "step", "renew", "reclaim"))
OWN, UPKEEP, CANCEL, LOOK, REDRIVE = map(_script, ("own", "upkeep", "cancel", "look", "redrive"))
DISCARD, PAUSE, FIRE, SCHEDULE, MEASURE = map(_script, ("discard", "pause", "fire", "schedule", "measure"))

TRIMMED_AT_ONCE, DROPPED_AT_ONCE = 10_000, 500


class StepResult(NamedTuple):
    """What a step brought."""

    codes: list[Any]
    """For each job given up: 1; 0 where it was no longer ours; or why an effect failed."""
    jobs: list[Taken]
    due_in: float | None
    """Seconds until something is due; None for nothing."""
    schedules_due: int
    paused: bool


GivenUp = tuple[Taken, list[Argument]]
"""A job, and its outcome for the script ``stream/step``: nothing, where it is plainly done."""


class Reclaimed(NamedTuple):
    """What was taken over from others."""

    jobs: list[Taken]
    cursors: list[bytes]
    lost: list[bytes]


class Letter(NamedTuple):
    """A dead letter, as it is stored."""

    entry: bytes
    fields: dict[bytes, bytes]


class PartitionStore:
    """One partition of a queue. ``configure`` writes its options, when it is found to have none."""

    def __init__(
        self, redis: Connection, keys: StreamKeys, configure: Callable[[PartitionStore], Awaitable[None]]
    ) -> None:
        self.redis = redis
        self.keys = keys
        self._configure = configure

    async def _run(
        self,
        script: Script,
        *args: Argument,
        durability: Durability | Level = "memory",
        repeatable: bool = False,
    ) -> Any:
        try:
            return await self.redis.run(
                script, self.keys, *args, durability=durability, repeatable=repeatable
            )
        except Unconfigured:
            await self._configure(self)
            return await self.redis.run(
                script, self.keys, *args, durability=durability, repeatable=repeatable
            )

    async def configure(self, fields: Sequence[Argument]) -> None:
        """Write options down, and make the groups."""
        await self.redis.run(CONFIGURE, self.keys, *fields, repeatable=True)

    # ------------------------------------------------------------------ producers

    async def add(
        self,
        jobs: Sequence[NewJob],
        more: int = 0,
        more_bytes: int = 0,
        durability: Durability | Level = "memory",
    ) -> list[bytes]:
        """Add jobs, all or none; their ids, with ``=`` before those that were there already.

        Sent again after a broken connection only where each has a unique name, and so is added once.
        """
        args = chain.from_iterable(job.args() for job in jobs)
        once = all(job.unique for job in jobs)
        ids: list[bytes] = await self._run(
            ADD, more, more_bytes, *args, durability=durability, repeatable=once
        )
        return ids

    async def cancel(self, job_id: str, ttl: int, outcome: bytes) -> str:
        """``removed``, ``asked`` or ``missing``."""
        answer: bytes = await self._run(CANCEL, job_id, ttl, outcome, repeatable=True)
        return answer.decode()

    async def look(self, job_id: str) -> list[Any]:
        """One job, wherever it is: see the script."""
        found: list[Any] = await self._run(LOOK, job_id)
        return found

    async def redrive(self, ids: Sequence[str]) -> list[int]:
        """Make jobs of dead letters: 1 for each, 0 where there is none."""
        codes: list[int] = await self._run(REDRIVE, *ids)
        return codes

    async def discard(self, ids: Sequence[str]) -> list[int]:
        """Throw dead letters away: 1 for each, 0 where there is none."""
        codes: list[int] = await self._run(DISCARD, *ids)
        return codes

    async def pause(self, paused: bool) -> bool:
        """Pause, or go on; whether that changed something."""
        return bool(await self._run(PAUSE, int(paused), repeatable=True))

    async def letters(self, count: int, after: str = "") -> list[Letter]:
        """Dead letters from the oldest on, after an entry."""
        start = f"({after}" if after else "-"
        found = await self.redis.command("XRANGE", self.keys.dead, start, "+", "COUNT", count)
        return [Letter(entry, _as_dict(flat)) for entry, flat in found]

    async def measure(self) -> list[Any]:
        """What the script ``stream/measure`` says."""
        measured: list[Any] = await self._run(MEASURE)
        return measured

    # ------------------------------------------------------------------ schedules

    async def schedule(self, schedule: str, due: int, plan: bytes = b"") -> bool:
        """Set a schedule that is due at a time, or with 0 end it."""
        return bool(await self._run(SCHEDULE, schedule, due, plan, repeatable=True))

    async def schedules(self, due_only: bool = False) -> list[tuple[str, int, bytes]]:
        """Schedules with when they are due, and their plans; all of them, or those that are due."""
        until: str | bytes = "+inf"
        if due_only:
            until = str(await self.now())
        flat = await self.redis.command("ZRANGEBYSCORE", self.keys.schedules, "-inf", until, "WITHSCORES")
        if not flat:
            return []
        plans = await self.redis.command("HMGET", self.keys.plans, *flat[::2])
        rows = zip(flat[::2], flat[1::2], plans, strict=True)
        return [(name.decode(), int(float(due)), plan) for name, due, plan in rows if plan is not None]

    async def fire(self, schedule: str, due: int, next_due: int, job: NewJob) -> str:
        """Add the job of a schedule that is due: its id, '' if others were faster, '!' if it has no room."""
        args = (job.name, job.data, job.options, job.key, job.tenant, job.level)
        answer: bytes = await self._run(FIRE, schedule, due, next_due, *args, repeatable=True)
        return answer.decode()

    # ------------------------------------------------------------------ workers

    async def step(self, consumer: str, wanted: int, most: int, given_up: Sequence[GivenUp]) -> StepResult:
        """Give jobs up, and take as many as are wanted. ``most``: how many the consumer may have now."""
        plain: dict[bytes, list[int]] = {}
        others: list[int] = []
        for place, (job, outcome) in enumerate(given_up):
            if outcome:
                others.append(place)
            else:
                plain.setdefault(job.level, []).append(place)
        args: list[Argument] = [consumer, wanted, most, len(plain)]
        for level, places in plain.items():
            jobs = [given_up[place][0] for place in places]
            args += (level, len(jobs), " ".join([str(len(job.data)) for job in jobs]))
            args += [job.entry for job in jobs]
        for place in others:
            args += given_up[place][1]
        answers, groups, due, now, schedules, paused = await self._run(STEP, *args)
        codes: list[Any] = [0] * len(given_up)
        for place, code in zip(chain(*plain.values(), others), answers, strict=True):
            codes[place] = code
        taken = [
            Taken(level, row[0], 1, row[2] if len(row) > 2 else b"", row[1])
            for level, rows in groups
            for row in rows
        ]
        due_in = (int(due) - int(now)) / 1000 if int(due) else None
        return StepResult(codes, taken, due_in, schedules, bool(paused))

    async def renew(self, consumer: str, alive_for: int, jobs: Sequence[Taken]) -> list[int]:
        """Say that a worker lives, and renew its leases: 1, 0 for a lost one, 2 for one to be cancelled."""
        args: list[Argument] = []
        for job in jobs:
            args += (job.level, job.entry, job.delivery, job.local_id)
        codes: list[int] = await self._run(RENEW, consumer, alive_for, *args, repeatable=True)
        return codes

    async def reclaim(
        self, consumer: str, idle: int, wanted: int, suspects: int, cursors: Sequence[bytes]
    ) -> Reclaimed:
        """Take over what others have let go; at most so many that two workers were lost with."""
        rows, after, lost = await self._run(RECLAIM, consumer, idle, wanted, suspects, *cursors)
        return Reclaimed([Taken(*row) for row in rows], after, lost)

    async def own(self, consumer: str, most: int, known: Sequence[Taken]) -> list[Taken]:
        """What a consumer has that it does not know of: the reply that brought it was lost."""
        args: list[Argument] = []
        for job in known:
            args += (job.level, job.entry)
        return [Taken(*row) for row in await self._run(OWN, consumer, most, *args, repeatable=True)]

    async def upkeep(self) -> tuple[int, int]:
        """Look after the partition: entries trimmed, and jobs that have vanished."""
        trimmed, lost = await self._run(UPKEEP, TRIMMED_AT_ONCE, DROPPED_AT_ONCE, repeatable=True)
        return trimmed, lost

    async def bury_heartbeat(self, consumer: str) -> None:
        """Be heard of no more: what the consumer still has, others may take at once."""
        await self.redis.command("DEL", self.keys.heartbeat(consumer), repeatable=True)

    async def repair(self) -> None:
        """Write the options and make the groups again: the server was flushed."""
        await self._configure(self)

    async def ring(self) -> None:
        """Wake an idle worker."""
        await self.redis.command("XADD", self.keys.bell, "MAXLEN", 1, "*", "r", "", repeatable=True)

    async def may_look_after(self, milliseconds: int) -> bool:
        """Whether it is this worker's turn to look after the partition; one is, in so many ms."""
        return bool(await self.redis.command("SET", self.keys.upkeep, "1", "NX", "PX", milliseconds))

    async def now(self) -> int:
        """The server's time in ms."""
        seconds, micros = await self.redis.command("TIME", near=self.keys.meta)
        return int(seconds) * 1000 + int(micros) // 1000

    async def wait(self, group: str, seconds: float) -> bool:
        """Block until somebody rings, or adds to the inlet; whether that was so.

        With NOACK, a ring is for one worker, whoever it is, and leaves nothing behind.
        """
        told = await self.redis.command(
            *(
                "XREADGROUP",
                "GROUP",
                group,
                "bell",
                "COUNT",
                1,
                "BLOCK",
                max(1, round(seconds * 1000)),
                "NOACK",
            ),
            *("STREAMS", self.keys.bell, self.keys.inlet, ">", ">"),
            blocks_for=seconds,
            repeatable=True,
        )
        return bool(told)


def _as_dict(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
