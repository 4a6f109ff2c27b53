"""Committing: what was done in a partition, in one step with how far it is."""

from __future__ import annotations

import logging
from functools import partial

from toril.log.errors import ReaderFenced, ReaderGone
from toril.runtime.desk import Desk
from toril.runtime.slice import Slice

logger = logging.getLogger("toril.runtime")

COMMIT_AT_ONCE = 200
"""Changes in one commit."""


class Committing:
    """See the module's text."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def run(self, part: Slice) -> None:
        """Commit what was noted, as long as the partition is ours."""
        while not part.dropped:
            await part.to_commit.wait()
            part.to_commit.clear()
            if not await self._commit(part):
                return

    async def _commit(self, part: Slice) -> bool:
        """One commit; whether another one can follow."""
        desk = self._desk
        changes, waiting, position = part.take(COMMIT_AT_ONCE)
        if not changes and position == part.position:
            part.idle.set()
            return True
        part.idle.clear()
        commit = partial(
            desk.backend.commit,
            desk.processor,
            part.lease,
            part.commits + 1,
            position,
            changes,
            awaited=desk.work.awaited,
        )
        try:
            await desk.patiently(commit)
        except (ReaderFenced, ReaderGone) as problem:
            desk.lose(part, str(problem))
            return False
        except Exception:
            logger.exception("%s: a commit to %s failed", desk.processor, part.partition)
            desk.drop(part)
            return False
        desk.counts.commits += 1
        room = part.room
        part.committed(changes, position)
        for future in waiting:
            if not future.done():
                future.set_result(None)
        if part.pending:
            part.to_commit.set()
        else:
            part.idle.set()
        if part.room != room:
            desk.wake_work.set()
        if len(part.window) < desk.options.read_ahead:
            desk.wake_fetch.set()
        return True
