"""Steps whose outcome is known, whatever happens to the server and on the way to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from toril.connection import CommandRefused, ConnectionFailed, OutcomeUnknown
from toril.queue.job import JobData
from toril.queue.outcomes import Outcome
from toril.queue.store import QueueStore, StepResult, TakeOptions

REFUSED_PAUSE = 1.0
"""Seconds until a server that has refused a call is asked again."""

_NO_WRITES_NOW = frozenset({"MISCONF", "OOM", "BUSY", "NOPERM", "NOAUTH"})
"""Codes of a server that executed nothing, until somebody sees to it: its disk is full, say."""

_GONE = frozenset({-1, -2, -3})
"""What a job that was given up already answers: it is missing, has no lock, or is not active."""


class Steps:
    """The steps of a worker.

    ``report`` hears of every failure on the way; ``start`` gets the jobs that came with a lost reply, as soon
    as they are found.
    """

    def __init__(
        self,
        store: QueueStore,
        take: TakeOptions,
        *,
        report: Callable[[BaseException], None],
        start: Callable[[JobData], None],
    ) -> None:
        self._store = store
        self._take = take
        self._report = report
        self._start = start

    async def step(self, outcomes: Sequence[Outcome], tokens: Sequence[str]) -> StepResult:
        """A step, repeated until its outcome is known: a job that is done must not be run again."""
        repeated = False
        while True:
            try:
                result = await self._store.step(outcomes, tokens, self._take)
                if repeated:
                    codes = [0 if code in _GONE else code for code in result.codes]
                    result = replace(result, codes=codes)
                return result
            except ConnectionFailed as problem:
                self._report(problem)  # not executed; the connection has waited already
            except (OutcomeUnknown, CommandRefused) as problem:
                self._report(problem)
                if isinstance(problem, CommandRefused):
                    await asyncio.sleep(REFUSED_PAUSE)
                    if problem.code in _NO_WRITES_NOW:
                        continue
                # It may have been executed, wholly or in part. Giving up twice is harmless: the lock says
                # whose a job is. The jobs that came with the lost reply are found by their tokens.
                repeated = True
                for job in await self._until_heard(tokens):
                    self._start(job)
                tokens = ()

    async def _until_heard(self, tokens: Sequence[str]) -> list[JobData]:
        while tokens:
            try:
                return await self._store.reclaim(tokens)
            except (ConnectionFailed, OutcomeUnknown) as problem:
                self._report(problem)
            except CommandRefused as problem:
                self._report(problem)
                await asyncio.sleep(REFUSED_PAUSE)
        return []
