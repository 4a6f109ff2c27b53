"""The table ``runs``: what was run on a lake, when, by which code, and what became of it.

A run may have been told a tenant. When that tenant is erased, the rows of the run go, and nothing of it comes
back: its end is noted by a transaction that sees its beginning in the table, or not at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.functions import coalesce, col, desc, lit, max_by, struct

import toril
from toril.errors import InvalidValue
from toril.lake.fence import again_and_again
from toril.lake.lake import Lake
from toril.lake.problems import one_line
from toril.lake.tables import Column, Table

RUNS = Table(
    name="runs",
    comment="What was run on this lake: a row when a run begins, and one when it ends.",
    columns=(
        Column("run", "string", "The run's name; commits of tables bear it.", True),
        Column("what", "string", "The command: run, replay, maintain …", True),
        Column("started_at", "bigint", "When it began: ns since 1970.", True),
        Column("ended_at", "bigint", "When it ended: ns since 1970; null while it runs."),
        Column("code", "string", "The version of Toril.", True),
        Column("arguments", "string", "What it was given, as JSON.", True),
        Column("host", "string", "The machine that it was started on.", True),
        Column("pid", "bigint", "The process there.", True),
        Column(
            "rows",
            "map<string,bigint>",
            "By table or check: of run, events of the log that it brought in; else rows that it worked on.",
            True,
        ),
        Column("seconds", "map<string,double>", "By table or check, how long it worked on it.", True),
        Column("outcome", "string", "running, done, stopped or failed.", True),
        Column("problem", "string", "What went wrong, where something did."),
    ),
    constraints={"an_outcome": "outcome IN ('running', 'done', 'stopped', 'failed')"},
)

ONLY_READ = ("audit", "diff", "load")
"""Commands that change nothing in the lake."""

_SCHEMA = RUNS.schema()


class OneRun(msgspec.Struct, kw_only=True):
    """A run, as far as it has got."""

    run: str
    what: str
    started_at: int
    ended_at: int | None = None
    code: str = toril.__version__
    arguments: dict[str, Any] = {}
    host: str = ""
    pid: int = 0
    rows: dict[str, int] = {}
    seconds: dict[str, float] = {}
    outcome: str = "running"
    problem: str | None = None

    @property
    def is_gone(self) -> bool:
        """Whether it says that it runs, and its process is not there any more; only its machine knows."""
        if self.outcome != "running" or self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


class Runs:
    """The runs of a lake: noting them, and looking them up."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def begin(self, what: str, arguments: Mapping[str, Any]) -> OneRun:
        """Note that something begins. Where one of the lake's tables is not what it must be, nothing does."""
        self._lake.check_all()
        self._lake.ensure(RUNS)
        now = time.time_ns()
        made = OneRun(
            run=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now // 10**9))}-{secrets.token_hex(3)}",
            what=what,
            started_at=now,
            arguments=dict(arguments),
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        self._note(made)
        return made

    def end(self, one: OneRun, outcome: str = "done", problem: str | None = None) -> None:
        """Note that it has ended."""
        one.ended_at, one.outcome, one.problem = time.time_ns(), outcome, problem
        self._note(one)

    @contextmanager
    def recorded(
        self,
        what: str,
        arguments: Mapping[str, Any],
        *,
        if_there: bool = False,
        untold: Callable[[str], None] | None = None,
    ) -> Iterator[OneRun]:
        """What is done in it is a run: noted when it begins, and when it ends, however it does.

        It is done, unless its ``outcome`` and ``problem`` say otherwise; where it raises it has failed, or
        was stopped. ``if_there``: only in a lake that has had runs. ``untold`` is told why the end of a run
        that did not raise could not be noted; without it, that is raised.
        """
        if if_there and not self._lake.exists(RUNS):
            yield OneRun(run="", what=what, started_at=time.time_ns(), arguments=dict(arguments))
            return
        one = self.begin(what, arguments)
        try:
            yield one
        except BaseException as problem:
            stopped = isinstance(problem, (KeyboardInterrupt, asyncio.CancelledError))
            why = None if stopped else one.problem or one_line(problem)
            with suppress(Exception):  # what went wrong first is what is to be told
                self.end(one, "stopped" if stopped else "failed", why)
            raise
        try:
            self.end(one, "done" if one.outcome == "running" else one.outcome, one.problem)
        except Exception as problem:
            if untold is None:
                raise
            untold(one_line(problem))

    def last(self, most: int = 20) -> list[OneRun]:
        """The latest runs, the last one first."""
        return _runs_in(self._newest().limit(most))

    def running(self) -> list[OneRun]:
        """All runs that have not said that they ended, and are not known to be gone."""
        found = _runs_in(self._newest().where(col("outcome") == "running"))
        return [one for one in found if not one.is_gone]

    def still(self, some: Iterable[OneRun]) -> list[OneRun]:
        """Those of some runs that have not said that they ended, and are not known to be gone."""
        ended = self._lake.read(RUNS).where("ended_at IS NOT NULL").select("run").distinct().collect()
        over = {row["run"] for row in ended}
        return [one for one in some if one.run not in over and not one.is_gone]

    def note_ended(self, run: str) -> OneRun:
        """Note that a run has ended which cannot say so itself: it was killed, on another machine."""
        rows = self._newest().where(col("run") == run) if self._lake.exists(RUNS) else None
        found = [] if rows is None else _runs_in(rows)
        if not found:
            raise InvalidValue("run", run, "the name of a run of this lake: `toril lake runs` lists them")
        (one,) = found
        if one.outcome != "running":
            raise InvalidValue("run", run, f"one that has not ended; this one is {one.outcome}")
        if one.host == socket.gethostname() and not one.is_gone:
            raise InvalidValue("run", run, f"one whose process is gone; {one.pid} is still there")
        self.end(one, "stopped", "somebody noted its end")
        return one

    def _newest(self) -> DataFrame:
        """What is known of each run, the last one first."""
        self._lake.check(RUNS)
        newest = max_by(struct(*RUNS.names), coalesce(col("ended_at"), lit(0))).alias("it")
        rows = self._lake.read(RUNS).groupBy("run").agg(newest).select("it.*")
        return rows.orderBy(desc("started_at"), desc("run"))

    def _note(self, one: OneRun) -> None:
        row = {**msgspec.structs.asdict(one), "arguments": json.dumps(one.arguments, default=str)}
        values = [tuple(row[name] for name in RUNS.names)]
        made = self._lake.spark.createDataFrame(values, _SCHEMA)
        if one.ended_at is not None:
            begun = self._lake.read(RUNS).where(col("run") == one.run).select("run")
            made = made.join(begun, "run", "left_semi").select(*RUNS.names)
        # Another run may begin or end just now, or a tenant be erased from what they were told.
        append = made.write.format("delta").mode("append")
        again_and_again(self._lake, RUNS.name, lambda: append.save(self._lake.place(RUNS)))


def _runs_in(rows: DataFrame) -> list[OneRun]:
    return [
        msgspec.convert({**row.asDict(), "arguments": json.loads(row["arguments"])}, OneRun)
        for row in rows.collect()
    ]
