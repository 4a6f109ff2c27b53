"""How a worker gives a job up, and who decides it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

import msgspec

from toril import codec
from toril.connection.wire import Argument
from toril.errors import TorilError
from toril.queue.errors import UnrecoverableError
from toril.queue.job import JobData
from toril.queue.options import KeepJobs, kept

BackoffStrategy = Callable[[int, str, BaseException, JobData], int]
"""From the attempt that failed (1 for the first), the backoff's type, the error and the job: how many
milliseconds to wait. -1 gives up."""


class UnknownBackoff(TorilError):
    """A job asks for a backoff that this worker has no strategy for."""


class Completed(msgspec.Struct, frozen=True):
    """It is done."""

    id: str
    token: str
    value: bytes
    keep: KeepJobs

    verb: ClassVar[str] = "moveToFinished"

    def args(self) -> tuple[Argument, ...]:
        """For the script ``queue/step``."""
        return ("completed", self.id, self.token, self.value, *_keep(self.keep))


class Failed(msgspec.Struct, frozen=True):
    """It has failed for good."""

    id: str
    token: str
    reason: str
    keep: KeepJobs
    attempts: int
    stack_traces: bytes = b""
    telemetry: str = ""

    verb: ClassVar[str] = "moveToFinished"

    def args(self) -> tuple[Argument, ...]:
        """For the script ``queue/step``."""
        end = (*_keep(self.keep), self.attempts, self.stack_traces, self.telemetry)
        return ("failed", self.id, self.token, self.reason, *end)


class Retried(msgspec.Struct, frozen=True):
    """It is tried again at once."""

    id: str
    token: str
    lifo: bool
    reason: str = ""
    stack_traces: bytes = b""
    telemetry: str = ""

    verb: ClassVar[str] = "retryJob"

    def args(self) -> tuple[Argument, ...]:
        """For the script ``queue/step``."""
        return ("retry", self.id, self.token, int(self.lifo), self.reason, self.stack_traces, self.telemetry)


class Delayed(msgspec.Struct, frozen=True):
    """It is tried again after ``delay`` ms."""

    id: str
    token: str
    delay: int
    keeps_attempt: bool = False
    reason: str = ""
    stack_traces: bytes = b""
    telemetry: str = ""

    verb: ClassVar[str] = "moveToDelayed"

    def args(self) -> tuple[Argument, ...]:
        """For the script ``queue/step``."""
        end = (self.reason, self.stack_traces, self.telemetry)
        return ("delay", self.id, self.token, self.delay, int(self.keeps_attempt), *end)


class HandedBack(msgspec.Struct, frozen=True):
    """It goes back to the front of the queue, as if it had not been taken."""

    id: str
    token: str

    verb: ClassVar[str] = "moveJobFromActiveToWait"

    def args(self) -> tuple[Argument, ...]:
        """For the script ``queue/step``."""
        return ("back", self.id, self.token)


Outcome = Completed | Failed | Retried | Delayed | HandedBack


def _keep(keep: KeepJobs) -> tuple[Argument, Argument]:
    return ("" if keep.count is None else keep.count, "" if keep.age is None else keep.age)


def completed(job: JobData, value: Any, keep: KeepJobs | None = None) -> Completed:
    """The handler has returned."""
    raw = codec.encode("return value", value)
    return Completed(job.id, job.token, raw, _kept_completed(job.fields.get(b"opts", b"{}"), keep))


@lru_cache(maxsize=64)
def _kept_completed(raw_options: bytes, keep: KeepJobs | None) -> KeepJobs:
    """Jobs by the thousand have the same options."""
    return kept(codec.decode(raw_options).get("removeOnComplete"), keep)


def failed(
    job: JobData,
    problem: BaseException,
    trace: str,
    *,
    keep: KeepJobs | None = None,
    strategy: BackoffStrategy | None = None,
    chance: Callable[[], float] = random.random,
) -> Failed | Retried | Delayed:
    """The handler has raised: another attempt now or later, or none."""
    reason, traces = _storable(str(problem)), _traces(job, _storable(trace))
    attempts = int(job.opts.get("attempts") or 0)
    if job.attempts_made + 1 < attempts and not isinstance(problem, UnrecoverableError):
        wait = backoff_delay(job, problem, strategy, chance)
        if wait > 0:
            return Delayed(job.id, job.token, wait, False, reason, traces)
        if wait == 0:
            return Retried(job.id, job.token, bool(job.opts.get("lifo")), reason, traces)
    return Failed(job.id, job.token, reason, kept(job.opts.get("removeOnFail"), keep), attempts, traces)


def _storable(text: str) -> str:
    """A text that UTF-8 can encode: file names in messages may hold lone surrogates."""
    return text.encode(errors="backslashreplace").decode()


def _traces(job: JobData, trace: str) -> bytes:
    traces = [*job.stack_traces, trace]
    limit = job.opts.get("stackTraceLimit")
    if limit is not None:
        traces = traces[-limit:] if limit else []
    return codec.encode("stack traces", traces)


def backoff_delay(
    job: JobData, problem: BaseException, strategy: BackoffStrategy | None, chance: Callable[[], float]
) -> int:
    """Milliseconds until the next attempt; -1 to give up."""
    rule = job.opts.get("backoff")
    if not rule:
        return 0
    if not isinstance(rule, dict):
        rule = {"type": "fixed", "delay": rule}
    attempt, kind = job.attempts_made + 1, rule.get("type")
    wait, jitter = rule.get("delay") or 0, rule.get("jitter") or 0
    if kind == "exponential":
        wait = math.floor(2 ** (attempt - 1) * wait + 0.5)
    elif kind != "fixed":
        if strategy is None:
            raise UnknownBackoff(
                f"Unknown backoff strategy {kind}: job {job.id} asks for it, and the worker has none. "
                "Give the worker a backoff_strategy"
            )
        return strategy(attempt, str(kind), problem, job)
    if jitter > 0:
        wait = math.floor(chance() * wait * jitter + wait * (1 - jitter))
    return int(wait)
