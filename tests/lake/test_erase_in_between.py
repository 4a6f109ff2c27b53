"""Jobs that had read rows of a tenant when it was erased, and had not written them, write none of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.classic import dataframe

from tests.conftest import Servers, emptied
from tests.lake.filling import with_log
from tests.lake.rows import add_events, as_texts
from tests.lake.shop import Basket, Shop, archive, during, folded, states
from tests.lake.span_events import a_span, body_of
from tests.lake.span_events import archive as archive_spans
from tests.lake.test_erase import SUMS, found
from toril.events import Upcasters
from toril.lake.erase import erase
from toril.lake.erasures import ERASURES, note
from toril.lake.errors import OtherWriter
from toril.lake.files import own_session
from toril.lake.generations import find, read
from toril.lake.lake import Lake, Record
from toril.lake.maintain import Upkept, maintain
from toril.lake.problems import passing
from toril.lake.quarantine import requeue
from toril.lake.replay import replay
from toril.lake.rollups import RollupsStep, rollups_of
from toril.lake.runs import Runs
from toril.lake.spans import SpansStep
from toril.lake.storage import LocalFiles
from toril.lake.summaries import TRACE_SUMMARIES, SummariesStep, summaries_of
from toril.lake.tables import EVENTS, QUARANTINE, ROLLUPS, SPANS, WHOSE, Table
from toril.pipelines.spans.recording import SPAN_RECORDED

pytestmark = pytest.mark.timeout(900)

PATIENCE = 240.0
"""Seconds within which something ends, on the slowest machine."""

GONE = "walled"


class Gate(Lake):
    """A lake for one job: its first batch of a table waits when all that goes into it was read."""

    def __init__(self, lake: Lake, table: Table | str, *, batch: int = 0) -> None:
        mine = own_session(lake)
        super().__init__(mine.spark, mine.path)
        self._name = table if isinstance(table, str) else table.name
        self._batch = batch
        self.reached = threading.Event()
        self.opened = threading.Event()

    def append(self, rows: DataFrame, table: Table, record: Record) -> None:
        self._wait(table, record)
        super().append(rows, table, record)

    @contextmanager
    def recording(self, table: Table, record: Record) -> Iterator[None]:
        self._wait(table, record)
        with super().recording(table, record):
            yield

    def _wait(self, table: Table, record: Record) -> None:
        if table.name == self._name and record.batch >= self._batch and not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(300)


class Job(threading.Thread):
    """Works beside the test, up to its gate."""

    def __init__(self, gate: Gate, work: Callable[[Lake], object]) -> None:
        super().__init__()
        self.gate = gate
        self.problems: list[Exception] = []
        self._work = work
        self.start()

    def run(self) -> None:
        try:
            self._work(self.gate)
        except Exception as problem:  # noqa: BLE001 - the test looks at it
            self.problems.append(problem)
        finally:
            self.gate.reached.set()

    def finish(self) -> None:
        """Let it through, until it has ended."""
        self.gate.opened.set()
        self.join()


class HeldUpkeep(threading.Thread):
    """Upkeep of a table beside the test: it has written its files, and waits before it commits them.

    By what Delta has in it for such tests: each thread may have an observer of its transactions.
    """

    def __init__(self, lake: Lake, table: str) -> None:
        super().__init__(daemon=True)
        self.table = table
        self.done: list[Upkept] = []
        self._lake = lake
        self._delta: Any = lake.spark._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]
        phases = self._delta.fuzzer.OptimisticTransactionPhases.forName(table)
        for phase in ("analysis", "initial", "prepare", "backfill", "postCommit"):
            getattr(phases, f"{phase}Phase")().entryBarrier().unblock()
        phases.postCommitPhase().exitBarrier().unblock()  # it would wait there for the next observer's turn
        self._commit = phases.commitPhase()
        self._observer = self._delta.fuzzer.PhaseLockingTransactionExecutionObserver(phases)
        others = getattr(getattr(self._delta, "NoOpTransactionExecutionObserver$"), "MODULE$")
        self._observer.setNextObserver(others, True)
        self.start()
        while not self._commit.hasReached():
            assert self.is_alive()
            time.sleep(0.05)

    def run(self) -> None:
        self._delta.TransactionExecutionObserver.setObserver(self._observer)
        self.done += maintain(self._lake, [self.table])

    def finish(self) -> None:
        """Let it commit, until it has ended."""
        if self.is_alive():
            self._commit.entryBarrier().unblock()
            self.join(PATIENCE)
            assert not self.is_alive(), "it does not end"


@pytest.fixture
def fixed() -> Upcasters:
    made = Upcasters()
    made.register(SPAN_RECORDED, 1, 2, dict)
    return made


@pytest.fixture
def kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is persisted stays as it is: of its own process, Spark renews it when its table is changed."""
    monkeypatch.setattr(dataframe.DataFrame, "persist", lambda frame, *_: frame.localCheckpoint())


@pytest.mark.usefixtures("kept_elsewhere")
def test_tenant_walls_no_step_and_no_requeue_writes_what_it_had_read(lake: Lake, fixed: Upcasters) -> None:
    """All of them have read when the erasure begins, and write when it has looked for the last time."""
    newer = [(body_of(a_span(number), schema_version=2), name) for number, name in ((8, GONE), (9, "globex"))]
    archive_spans(lake, [(a_span(1), GONE), (a_span(4), "globex"), *newer])
    steps = [SpansStep(), SummariesStep(), RollupsStep()]
    for step in steps:
        step.prepare(lake)
    steps[0].once(lake)
    archive_spans(lake, [(a_span(12), GONE), (a_span(16), "globex"), (b"nonsense", GONE), (b"!", "globex")])
    jobs = [
        Job(Gate(lake, SPANS), lambda mine: SpansStep().once(mine)),
        Job(Gate(lake, TRACE_SUMMARIES), lambda mine: SummariesStep().once(mine)),
        Job(Gate(lake, ROLLUPS), lambda mine: RollupsStep().once(mine)),
        Job(Gate(lake, SPANS), lambda mine: requeue(mine, upcasters=fixed)),
    ]
    try:
        for job in jobs:
            assert job.gate.reached.wait(300)
            assert job.problems == []

        def told(_: int, __: int, what: str) -> None:
            if "former versions" in what:
                for job in jobs:
                    job.finish()

        report = erase(lake, GONE, told)
    finally:
        for job in jobs:
            job.finish()
    assert [str(one) for job in jobs for one in job.problems if not passing(one)] == []
    assert found(lake, GONE) == []
    assert report.remains == []

    while any(step.once(lake) is not None for step in steps):
        pass
    requeue(lake, upcasters=fixed)
    while any(step.once(lake) is not None for step in steps):
        pass
    assert found(lake, GONE) == []
    assert [row["ordinal"] for row in lake.read(SPANS).orderBy("ordinal").collect()] == [2, 4, 6]
    waits = lake.read(QUARANTINE).where("requeued_at IS NULL").collect()
    assert [(row["tenant"], row["ordinal"]) for row in waits] == [("globex", 8)]
    for table, made, by in (
        (TRACE_SUMMARIES, summaries_of, ("tenant", "trace_id")),
        (ROLLUPS, rollups_of, ("model", "grain", "start")),
    ):
        rows = made(lake.read(SPANS)).drop("state").orderBy(*by)
        there = lake.read(table).select(*rows.columns).orderBy(*by).collect()
        assert there == rows.collect()
        assert {row["tenant"] for row in there} == {"globex"}


def test_tenant_walls_upkeep_that_has_written_its_files_loses_none_of_others_and_brings_nothing_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit meets the fence, or comes when the log was cut; and what the report cannot know, it says."""
    add_events(lake, 1, 20, ["globex"], files=6)
    add_events(lake, 2, 20, [GONE, "globex"], day=1)
    late = replace(SUMS, name="late")
    for table in (SUMS, late):
        lake.ensure(table)
        rows = lake.read(EVENTS).selectExpr(*(one.name for one in WHOSE), "CAST(body AS STRING) AS said")
        lake.append(rows.repartition(6), table, Record(batch=1, source=1))
    runs = Runs(lake)
    busy, quiet, ends, asked, _ = (
        runs.begin(what, {"tenant": GONE} if what == "requeue" else {})
        for what in ("run", "run", "maintain", "requeue", "audit")
    )
    before = {
        name: as_texts(lake.read(name).where(f"tenant <> '{GONE}'")) for name in ("events", "sums", "late")
    }
    version = lake.version(late)
    jobs = {name: HeldUpkeep(lake, name) for name in before}
    assert found(lake, GONE)

    def told(_: int, __: int, what: str) -> None:
        name, _colon, doing = what.partition(": ")
        if doing == "removing its history" and name in ("events", "sums"):
            jobs[name].finish()
        if doing == "removing its history" and name == "events":
            had = lake.last(EVENTS)
            batch = Record(batch=had.batch + 1, positions=had.positions, run=busy.run)
            lake.append(lake.read(EVENTS).limit(0), EVENTS, batch)
            runs.end(ends)

    def noted(mine: Lake, places: DataFrame) -> None:
        """A job comes in between the note and the deletion, once."""
        note(mine, places)
        if lake.last(EVENTS).batch == 2:
            add_events(lake, 3, 20, [GONE], day=2)

    remove = LocalFiles.remove

    def removed(files: LocalFiles, path: str) -> None:
        remove(files, path)
        if path == f"late/_delta_log/{version + 1:020d}.json":
            jobs["late"].finish()

    monkeypatch.setattr("toril.lake.erase.note", noted)
    monkeypatch.setattr(LocalFiles, "remove", removed)
    try:
        report = erase(lake, GONE, told)
    finally:
        for job in jobs.values():
            job.finish()
    assert [(job.done[0].compacted, job.done[0].problems) for job in jobs.values()] == [
        (2, []),
        (1, []),
        (1, []),
    ]
    for name, texts in before.items():
        assert as_texts(lake.read(name)) == texts
        assert DeltaTable(lake.place(name)).to_pyarrow_table().num_rows == len(texts)
    today = lake.read(EVENTS).where("recorded_day = current_date()")
    assert len(today.inputFiles()) == 2, "upkeep came through"
    assert found(lake, GONE) == []
    places = {
        (row["log_partition"], ordinal)
        for row in lake.read(ERASURES).collect()
        for ordinal in range(row["first"], row["last"] + 1)
    }
    assert places == {(number % 2, number // 2 + 1) for number in (*range(20, 40, 2), *range(40, 60))}
    silent, unknown = sorted(report.remains, key=lambda said: "has not ended" in said)
    assert f"run {quiet.run} " in silent
    assert "has written no batch of events since" in silent
    assert f"requeue {asked.run} " in unknown


def test_tenant_walls_a_replay_writes_nothing_of_what_it_had_read(servers: Servers, lake: Lake) -> None:
    """It has the end of the log in memory; it ends, and is taken up again after the portion that it has."""
    url = emptied(servers.get("valkey-standalone")).url

    def buy(price: int) -> dict[str, list[int]]:
        bought = {f"{tenant}:b{n}": [price + n] for tenant in (GONE, "globex") for n in range(6)}

        async def go() -> None:
            for key, prices in bought.items():
                tenant, _, basket = key.partition(":")
                await shop.buy(basket, *prices, tenant=tenant)

        shop = Shop(url)
        during(shop, go)
        return bought

    first = buy(10)
    archive(lake, url)
    second = buy(100)
    subject = Shop(url).subjects["shop/basket"]
    name = "generations/shop/basket/2"
    job = Job(Gate(lake, name, batch=2), lambda mine: replay(mine, subject, url=url, portions=2))
    try:
        assert job.gate.reached.wait(300)
        assert job.problems == []
        with_log(url, lambda log: log.erase_tenant(GONE))
        erase(lake, GONE)
    finally:
        job.finish()
    (problem,) = job.problems
    assert isinstance(problem, OtherWriter)
    assert "the same command takes it up again" in str(problem)
    assert found(lake, GONE) == []
    stopped = find(lake, "shop/basket", 2)
    assert (stopped.state, stopped.done, stopped.erasures) == ("unfinished", 1, 2)
    made = replay(lake, subject, url=url)
    assert (made.number, made.state) == (2, "whole")
    assert find(lake, "shop/basket", 2).state == "whole"
    bought = {key: first[key] + second[key] for key in first if key.startswith("globex:")}
    assert states(read(lake, made)) == folded(Basket(), bought)
    assert found(lake, GONE) == []
