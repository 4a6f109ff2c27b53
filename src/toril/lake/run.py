"""A run: every step in a thread of its own, so that a slow table does not hold up the archive.

A step that has written wakes those that read its table. What may pass (a failover, another writer, a worker
that died, a full disk) is tried again, with more time in between. Any other problem ends that step. With
``once`` the others go on, up to what there is; without it the whole run ends, as whoever looks after it would
not see that a part of it is missing.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

from pyspark.sql import SparkSession

from toril.errors import InvalidValue
from toril.lake.lake import NEVER, Lake, Record
from toril.lake.problems import no_room, one_line, passing, unknown
from toril.lake.sessions import another, is_remote
from toril.lake.source import between
from toril.lake.steps import Step

T = TypeVar("T")

Kind = Callable[[BaseException], bool]
"""A kind of problem: whether one is of it."""

LOOK_AT_LOG = 1.0
"""Seconds after which the log is looked at for news."""

LOOK_AT_TABLE = 10.0
"""Seconds after which a table is looked at that nobody here has written to: another process may have."""

FIRST_REST = 0.5
LONGEST_REST = 30.0
"""Seconds before something that may pass is tried again: twice as long each time, up to this."""

TRIES_ONCE = 10
"""How often it is tried by a run that is to end."""

TRIES_UNKNOWN = 3
"""How often something is tried of which nobody knows whether it may pass."""


@dataclass(frozen=True, slots=True)
class Wrote:
    """A batch is in a table."""

    table: str
    batch: int
    events: int
    """Of the log, which the table has now and had not before."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Missing:
    """Events had left the log before there was an archive: no table will have them."""

    table: str
    events: int


@dataclass(frozen=True, slots=True)
class Retries:
    """Something went wrong that may pass."""

    table: str
    problem: str
    again_in: float


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A part of a source that cannot be read on; the table goes on with the others."""

    table: str
    part: str
    problem: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A step has ended before it was done."""

    table: str
    problem: str


News = Wrote | Missing | Retries | LeftAlone | Failed


@dataclass(slots=True, eq=False)
class Line:
    """How one step of a run is doing."""

    step: Step
    record: Record = NEVER
    events: int = 0
    """Of the log, that this run has brought into its table."""
    batches: int = 0
    seconds: float = 0.0
    """Spent on them."""
    problems: list[str] = field(default_factory=list)
    """For which the run is not a success."""
    ready: threading.Event = field(default_factory=threading.Event)
    """Its table is there, unless the step has ended before that."""
    is_prepared: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    news: threading.Event = field(default_factory=threading.Event)
    """Its source may have more."""

    @property
    def name(self) -> str:
        """The table's."""
        return self.step.table.name


class Run:
    """Steps that feed the tables of a lake, until they are done or told to stop.

    ``once``: until each table has what its source has, and the first what its step is to bring. ``every``:
    seconds from one batch of the log to the next, while there is no backlog; many small batches are many
    small files. ``told`` is called with news, from any thread.

    It does not begin where what is at the place of one of its tables is not that table.
    """

    def __init__(
        self,
        lake: Lake,
        steps: Sequence[Step],
        *,
        once: bool = False,
        every: float = 0.0,
        name: str = "",
        told: Callable[[News], None] = lambda _: None,
    ) -> None:
        if every < 0:
            raise InvalidValue("every", every, "seconds, from 0")
        self.lines = [Line(step) for step in steps]
        self._lake = lake
        self._once = once
        self._every = every
        self._name = name
        self._told = told
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._lake.check_all(
            {table.name: table for line in self.lines for table in line.step.tables}.values()
        )
        for line in self.lines:
            self._threads.append(threading.Thread(target=self._work, args=(line,), name=f"lake {line.name}"))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """End after the batches that are under way."""
        self._stop.set()
        for line in self.lines:
            line.news.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Until all steps have ended, or for a time; whether they have."""
        until = None if seconds is None else time.monotonic() + seconds
        return all(
            line.ended.wait(None if until is None else max(0.0, until - time.monotonic()))
            for line in self.lines
        )

    @property
    def problems(self) -> list[str]:
        """What went wrong, for good."""
        return [f"{line.name}: {problem}" for line in self.lines for problem in line.problems]

    # ------------------------------------------------------------------ one step

    def _work(self, line: Line) -> None:
        step, source = line.step, self._source(line)
        lake: Lake | None = None
        try:
            lake = Lake(own_session(self._lake.spark, line.name), self._lake.path)
            if self._prepare(line, source, lake):
                self._feed(line, source, lake)
        except Exception as problem:  # noqa: BLE001 - it is told, and the other steps go on
            self._failed(line, problem)
        finally:
            try:
                if lake is not None:
                    step.close(lake)
            except Exception as problem:  # noqa: BLE001
                self._failed(line, problem)
            finally:
                line.ended.set()
                line.ready.set()
                self._wake(line)

    def _prepare(self, line: Line, source: Line | None, lake: Lake) -> bool:
        """Have the table; False where there is nothing that it could be fed from."""
        if source is not None:
            source.ready.wait()
            if not source.is_prepared:
                return False
        self._patiently(line, lambda: line.step.prepare(lake))
        line.record = lake.last(line.step.table)
        self._look_at_stopped(line)
        line.is_prepared = True
        line.ready.set()
        if line.step.missing:
            self._told(Missing(line.name, line.step.missing))
        return True

    def _feed(self, line: Line, source: Line | None, lake: Lake) -> None:
        rest = LOOK_AT_LOG if line.step.reads is None else LOOK_AT_TABLE
        while not self._stop.is_set():
            line.news.clear()
            # Asked before the look: what is found to be all is all only of a source that had ended by then.
            last = source is None or source.ended.is_set()
            began = time.monotonic()
            record = self._patiently(line, lambda: line.step.once(lake, self._name))
            self._look_at_stopped(line)
            if record is not None:
                events = self._wrote(line, record, time.monotonic() - began)
                if line.step.reads is None and events < (line.step.most or 0) and not self._once:
                    self._stop.wait(max(0.0, self._every - (time.monotonic() - began)))
            elif self._once and last:
                return
            else:
                line.news.wait(rest)

    def _patiently(self, line: Line, what: Callable[[], T]) -> T:
        """Do something; where it fails in a way that may pass, again and again. Each time is told."""
        # Of each kind by itself: a night of failovers says nothing of what comes after it.
        tries: Counter[Kind | None] = Counter()
        while True:
            try:
                return what()
            except Exception as problem:
                kind = next((one for one in (passing, no_room, unknown) if one(problem)), None)
                tries[kind] += 1
                if self._stop.is_set() or tries[kind] >= self._most_tries(kind):
                    raise
                rest = _rest(kind, tries[kind])
                self._told(Retries(line.name, one_line(problem), rest))
                self._stop.wait(rest)

    def _most_tries(self, kind: Kind | None) -> float:
        if kind is passing:
            return TRIES_ONCE if self._once else math.inf
        if kind is no_room:
            return 1 if self._once else math.inf
        return TRIES_UNKNOWN if kind is unknown else 1

    def _wrote(self, line: Line, record: Record, seconds: float) -> int:
        events = between(line.record.positions, record.positions)
        line.record = record
        line.events += events
        line.batches += 1
        line.seconds += seconds
        self._told(Wrote(line.name, record.batch, events, seconds))
        self._wake(line)
        return events

    def _look_at_stopped(self, line: Line) -> None:
        for part, problem in list(line.step.stopped.items()):
            if str(problem) not in line.problems:
                line.problems.append(str(problem))
                self._told(LeftAlone(line.name, part, str(problem)))

    def _failed(self, line: Line, problem: Exception) -> None:
        line.problems.append(one_line(problem))
        if not self._once:
            self.stop()
        self._told(Failed(line.name, one_line(problem)))

    def _source(self, line: Line) -> Line | None:
        """The line of this run that feeds what a step reads."""
        reads = line.step.reads
        return next((other for other in self.lines if reads and other.name == reads.name), None)

    def _wake(self, line: Line) -> None:
        for other in self.lines:
            if self._source(other) is line:
                other.news.set()


def _rest(kind: Kind | None, tries: int) -> float:
    """How long to wait after so many tries. 2 to the power of all tries of a long night has no float."""
    if kind is no_room:
        return LONGEST_REST
    return min(LONGEST_REST, FIRST_REST * 2.0 ** min(tries - 1, 20))


def own_session(spark: SparkSession, name: str) -> SparkSession:
    """A session for this thread: a batch sets settings that must not be another's."""
    if not is_remote(spark):  # which has no context
        # Jobs of one pool wait for each other; those of several get a fair part each.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        spark.sparkContext.setJobDescription(f"toril lake: {name}")
    return another(spark)
