"""Who writes a sequence: it turns intents ("work on a job") into operations.

The author keeps just enough of a model for most operations to hit something: which tokens hold a job, how
many jobs can be waiting, what time it is. It believes that whoever fetches gets a job, which is near
enough; the rest is done by references like ``At("delayed")``, resolved when the operation runs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

from tests.conformance.operations import (
    Add,
    AddBulk,
    AddFlow,
    Advance,
    ExtendLocks,
    Fetch,
    Flow,
    Held,
    Id,
    JobOptions,
    JobRef,
    MoveToDelayed,
    Operation,
    Outcome,
    Process,
    Promote,
    Retry,
    Sweep,
    UpsertJobScheduler,
    WorkerOptions,
)
from tests.conformance.sides import START

LOCK = 30_000
"""The longest that a lock, or the pause between two sweeps, lives by default."""


class Author:
    """See the module's text."""

    def __init__(self) -> None:
        self.now = START
        self.operations: list[Operation] = []
        self._tokens = {"q": ("t1", "t2", "t3", "t4"), "p": ("u1", "u2")}
        self._holding: dict[str, list[str]] = {"q": [], "p": []}
        self._waiting = {"q": 0, "p": 0}  # at most so many jobs can be fetched now

    def write(self, *operations: Operation) -> None:
        """Add operations as they are."""
        self.operations += operations
        for operation in operations:
            match operation:
                case Add(queue=queue, opts=opts):
                    self._waiting[queue] += opts.delay is None
                case AddBulk(queue=queue, jobs=jobs):
                    self._waiting[queue] += len(jobs)
                case AddFlow(flow=flow):
                    for child in flow.children:
                        self._waiting[child.queue] += 1
                case UpsertJobScheduler(queue=queue) | Promote(queue=queue) | Retry(queue=queue):
                    self._waiting[queue] += 1
                case Fetch(queue=queue):
                    self._waiting[queue] -= 1
                case Advance(ms=ms) if ms >= 1000:
                    self._waiting = {queue: max(left, 0) + 1 for queue, left in self._waiting.items()}
                case _:
                    pass

    # ------------------------------------------------------------------ time

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now += ms
        self.write(Advance(ms=ms))

    def stall(self, queue: str, worker: WorkerOptions) -> None:
        """Lose every lock, with sweeps before and after, as a crashed worker's jobs are found."""
        if not self._holding[queue]:
            self.fetch(queue, 0, WorkerOptions())
        self.write(Sweep(queue=queue, worker=worker))
        self.advance(LOCK)
        self.write(Sweep(queue=queue, worker=worker))
        self._holding[queue].clear()

    # ------------------------------------------------------------------ workers

    def fetch(self, queue: str, slot: int, worker: WorkerOptions) -> str:
        """Ask for a job under a token that is free; when none is, the job it had is left to stall."""
        tokens = self._tokens[queue]
        free = [token for token in tokens if token not in self._holding[queue]] or tokens
        token = free[slot % len(free)]
        self.write(Fetch(queue=queue, token=token, worker=worker))
        if token not in self._holding[queue]:
            self._holding[queue].append(token)
        return token

    def finish(
        self, queue: str, slot: int, how: Callable[..., Operation], *, goes_on: bool = False, **args: Any
    ) -> None:
        """Do something with a job that a token holds; ``goes_on`` when it holds one afterwards too."""
        token = self._holder(queue, slot)
        self.write(how(queue=queue, job=Held(token), token=token, **args))
        if not goes_on:
            self._holding[queue].remove(token)

    def finish_wrongly(self, queue: str, slot: int, how: Callable[..., Operation], token: str) -> None:
        """The same, by someone who does not have the lock."""
        self.write(how(queue=queue, job=Held(self._holder(queue, slot)), token=token))

    def delay(self, queue: str, slot: int, after: int) -> None:
        """Move a job that a token holds to delayed."""
        self.finish(queue, slot, MoveToDelayed, timestamp=self.now + after)

    def extend_all(self, queue: str, *, wrong: bool) -> None:
        """Renew all locks at once, perhaps with one that was never there."""
        locks: list[tuple[JobRef, str]] = [(Held(token), token) for token in self._holding[queue]]
        if wrong or not locks:
            locks.append((Id("1"), "nobody"))
        self.write(ExtendLocks(queue=queue, locks=tuple(locks)))

    def _holder(self, queue: str, slot: int) -> str:
        holding = self._holding[queue]
        return holding[slot % len(holding)] if holding else self.fetch(queue, slot, WorkerOptions())

    # ------------------------------------------------------------------ stories

    def work(self, queue: str, worker: WorkerOptions, outcome: Outcome, *, fetch_next: bool = False) -> None:
        """Fetch a job and process it; when there can be none, add it first."""
        if self._waiting[queue] <= 0:
            self.write(Add(queue=queue))
        token = self.fetch(queue, 0, worker)
        self.write(
            Process(
                queue=queue,
                job=Held(token),
                token=token,
                worker=worker,
                outcome=outcome,
                fetch_next=fetch_next,
            )
        )
        if not fetch_next:
            self._holding[queue].remove(token)

    def family(self, flow: Flow, worker: WorkerOptions, outcomes: list[Outcome]) -> None:
        """Add a flow and work on its children, so that their parent is told."""
        self.write(AddFlow(flow=flow))
        for outcome, child in zip(outcomes, cycle(flow.children), strict=False):
            self.work(child.queue, worker, outcome)

    def wear_out(self, queue: str, opts: JobOptions, worker: WorkerOptions, outcomes: list[Outcome]) -> None:
        """Add a job and run it again and again, with time for its backoff to pass."""
        self.write(Add(queue=queue, opts=opts))
        for outcome in outcomes:
            self.work(queue, worker, outcome)
            self.advance(5000)
