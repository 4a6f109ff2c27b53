"""Removing the old keys: only what is copied, in small steps, and written down."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toril.connection import Connection, load_script
from toril.keyspace import QUEUE_SUFFIXES, Key
from toril.migrate.copying import sort_out
from toril.migrate.destination import KEPT_FOR, Destination
from toril.migrate.discovery import quoted
from toril.migrate.errors import NotSafe
from toril.migrate.jobs import LISTS, STATES, Place
from toril.migrate.moves import Move, Moves
from toril.migrate.reading import QueueReader
from toril.migrate.report import Pace, Told, tell_nobody
from toril.migrate.verifying import verify

TRIM = load_script("migrate/trim")

STEP = 100
"""Keys that are removed at once."""

OF_A_JOB = (":logs", ":dependencies", ":processed", ":failed", ":unsuccessful", ":lock")

MANIFEST = "toril-migrate-removed.jsonl"


@dataclass(slots=True)
class QueueCleanup:
    """What was removed of an old queue."""

    source: str
    removed: int = 0
    """Keys."""
    left: int = 0
    """Keys that are not known, or belong to jobs that came meanwhile."""
    added: int = 0
    """Jobs that came meanwhile: they, and what the queue needs, stay."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


async def cleanup(
    source: Connection,
    destination: Connection,
    moves: Moves,
    *,
    manifest: Path,
    allow_workers: bool = False,
    rate: float | None = None,
    told: Told = tell_nobody,
) -> list[QueueCleanup]:
    """Remove the old queues; :class:`NotSafe`, and nothing is removed, where that is not safe."""
    checks = await verify(source, destination, moves, told)
    reasons = [reason for check in checks for reason in check.reasons()]
    if not allow_workers:
        reasons += [
            f"old workers of {check.source!r} are connected: {', '.join(check.workers)}"
            if check.workers
            else f"old workers of {check.source!r} may be connected: the server refuses CLIENT LIST"
            for check in checks
            if check.workers != []
        ]
    for move in moves:
        phase = (await Destination(destination, move.destination, "").facts()).get("phase")
        if phase == "rolling back":
            reasons.append(f"{move.source.name!r} is being rolled back")
    if reasons:
        raise NotSafe("nothing was removed", reasons)
    pace = Pace(rate)
    with manifest.open("a", encoding="utf-8") as written:
        return [
            await _Cleaner(
                QueueReader(source, move.source),
                Destination(destination, move.destination, ""),
                written,
                pace,
            ).clean(move, told)
            for move in moves
        ]


class _Cleaner:
    def __init__(self, old: QueueReader, new: Destination, manifest: Any, pace: Pace) -> None:
        self._old = old
        self._new = new
        self._manifest = manifest
        self._pace = pace
        self._done = QueueCleanup(old.keys.name)

    async def clean(self, move: Move, told: Told) -> QueueCleanup:
        for state in STATES:
            await self._empty(state)
        self._done.added = sum((await self._old.counts()).values())
        await self._remove_keys(move, told)
        if not self._done.added:
            await self._new.note(phase="cleaned")
            await self._new.keep_for(KEPT_FOR)
        return self._done

    async def _empty(self, state: str) -> None:
        """Take copied jobs out of a state; jobs that came meanwhile stay in it."""
        key, kept = self._old.keys[state], 0
        while True:
            if state in LISTS:
                ids = (await self._old.redis.command("LRANGE", key, -STEP, -1))[::-1]
            else:
                ids = await self._old.redis.command("ZRANGE", key, kept, kept + STEP - 1)
            if not ids:
                return
            known, fresh = await sort_out(self._old, self._new, [Place(each.decode(), state) for each in ids])
            await self._pace.take(len(ids))
            if state not in LISTS:
                if known:
                    await self._old.redis.command("ZREM", key, *(place.id for place, _ in known))
                kept += len(fresh)
            elif fresh:
                for place, _ in known:
                    await self._old.redis.command("LREM", key, -1, place.id)
                return  # what came meanwhile is at this end: the rest stays for another time
            else:
                await self._old.redis.run(TRIM, [key], *(place.id for place, _ in known))

    async def _remove_keys(self, move: Move, told: Told) -> None:
        batch: list[Key] = []
        pattern = f"{quoted(move.source.base)}*"
        async for raw in self._old.redis.scan(pattern):
            batch.append(move.source[raw.decode(errors="replace").removeprefix(move.source.base)])
            if len(batch) >= STEP:
                await self._remove(batch)
                told(self._done.source, self._done.removed, 0)
                batch = []
        await self._remove(batch)

    async def _remove(self, keys: Sequence[Key]) -> None:
        going = await self._removable(keys)
        if not going:
            return
        for key in going:
            self._manifest.write(json.dumps({"queue": self._done.source, "key": key}) + "\n")
        self._manifest.flush()
        os.fsync(self._manifest.fileno())
        await self._pace.take(len(going))
        # One by one: keys without a tag are in different slots.
        await asyncio.gather(*(self._old.redis.command("UNLINK", key, repeatable=True) for key in going))
        self._done.removed += len(going)

    async def _removable(self, keys: Sequence[Key]) -> list[Key]:
        """Those that belong to copied jobs, and the queue's own where no job came meanwhile."""
        going: list[Key] = []
        jobs: dict[str, list[Key]] = {}
        schedulers = await self._new.schedulers()
        for key in dict.fromkeys(keys):
            suffix = key.removeprefix(self._old.keys.base)
            ident = _job_of(suffix)
            if suffix in QUEUE_SUFFIXES or suffix.startswith("de:"):
                if not self._done.added:
                    going.append(key)
                else:
                    self._done.left += 1
            elif suffix.startswith("repeat:") and suffix.removeprefix("repeat:") in schedulers:
                going.append(key)
            else:
                jobs.setdefault(ident, []).append(key)
        known, _ = await sort_out(self._old, self._new, [Place(ident, "wait") for ident in jobs])
        for place, _ in known:
            going += jobs.pop(place.id)
        self._done.left += sum(map(len, jobs.values()))
        return going


def _job_of(suffix: str) -> str:
    for end in OF_A_JOB:
        if suffix.endswith(end):
            return suffix.removesuffix(end)
    return suffix
