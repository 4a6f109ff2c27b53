"""Jobs that had read rows of a tenant when it was erased, and had not written them, write none of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.classic import dataframe

from tests.conftest import Servers, emptied
from tests.lake.filling import with_log
from tests.lake.shop import Basket, Shop, archive, during, folded, states
from tests.lake.span_events import a_span, body_of
from tests.lake.span_events import archive as archive_spans
from tests.lake.test_erase import found
from toril.events import Upcasters
from toril.lake.erase import erase
from toril.lake.errors import OtherWriter
from toril.lake.files import own_session
from toril.lake.generations import find, read
from toril.lake.lake import Lake, Record
from toril.lake.problems import passing
from toril.lake.quarantine import requeue
from toril.lake.replay import replay
from toril.lake.rollups import RollupsStep, rollups_of
from toril.lake.spans import SpansStep
from toril.lake.summaries import TRACE_SUMMARIES, SummariesStep, summaries_of
from toril.lake.tables import QUARANTINE, ROLLUPS, SPANS, Table
from toril.pipelines.spans.recording import SPAN_RECORDED

pytestmark = pytest.mark.timeout(900)

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
