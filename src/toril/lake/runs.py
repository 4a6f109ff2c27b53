"""The table ``runs``: what was run on a lake, when, by which code, and what became of it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from pyspark.sql.functions import coalesce, col, desc, lit, max_by, struct

import toril
from toril.lake.lake import Lake
from toril.lake.problems import explained, one_line
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
        Column("rows", "map<string,bigint>", "By table, the events of the log that it brought in.", True),
        Column("seconds", "map<string,double>", "By table, how long it worked on it.", True),
        Column("outcome", "string", "running, done, stopped or failed.", True),
        Column("problem", "string", "What went wrong, where something did."),
    ),
    constraints={"an_outcome": "outcome IN ('running', 'done', 'stopped', 'failed')"},
)

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
        """Note that something begins."""
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
    def recorded(self, what: str, arguments: Mapping[str, Any]) -> Iterator[OneRun]:
        """What is done in it is a run; where it raises, the run has failed."""
        one = self.begin(what, arguments)
        try:
            yield one
        except KeyboardInterrupt:
            self.end(one, "stopped")
            raise
        except BaseException as problem:
            self.end(one, "failed", one_line(problem))
            raise
        if one.ended_at is None:
            self.end(one)

    def last(self, most: int = 20) -> list[OneRun]:
        """The latest runs, the last one first."""
        self._lake.check(RUNS)
        newest = max_by(struct(*RUNS.names), coalesce(col("ended_at"), lit(0))).alias("it")
        rows = self._lake.read(RUNS).groupBy("run").agg(newest).select("it.*")
        found = rows.orderBy(desc("started_at"), desc("run")).limit(most).collect()
        return [
            msgspec.convert({**row.asDict(), "arguments": json.loads(row["arguments"])}, OneRun)
            for row in found
        ]

    def _note(self, one: OneRun) -> None:
        row = {**msgspec.structs.asdict(one), "arguments": json.dumps(one.arguments, default=str)}
        values = [tuple(row[name] for name in RUNS.names)]
        made = self._lake.spark.createDataFrame(values, _SCHEMA)
        with explained(self._lake.place(RUNS)):
            made.write.format("delta").mode("append").save(self._lake.place(RUNS))
