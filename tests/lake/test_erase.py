"""A tenant that was erased is nowhere in the lake: not in a row, a former version, a statistic or a name."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from tests.conftest import SCALE
from tests.lake.rows import add_events, events, secret
from toril.errors import InvalidValue
from toril.lake.erase import erase, would_erase
from toril.lake.erasures import ERASURES
from toril.lake.generations import Filters, Plan, find, table_of
from toril.lake.lake import Lake, Record
from toril.lake.problems import passing
from toril.lake.runs import Runs
from toril.lake.subjects import Code
from toril.lake.tables import BATCH, EVENTS, WHOSE, Column, Table

pytestmark = pytest.mark.timeout(900)

ACME = "acme${x}"
"""Whom Spark would take for acme, who stays, were it let."""

SUMS = Table(
    name="sums",
    comment="What a job makes of events; rows change, and changes are kept for readers.",
    columns=(*WHOSE, Column("said", "string", "The last that was said."), BATCH),
    properties={"delta.enableChangeDataFeed": "true"},
)


def found(lake: Lake, *words: str) -> list[str]:
    """The files of a lake that have a word in them: plain, or packed in Parquet, or in their names."""
    names = []
    for path in sorted(Path(lake.path).rglob("*")):
        text = str(path).encode()
        if path.is_file():
            text += path.read_bytes()
        if path.suffix == ".parquet":
            text += str(pq.read_table(path, partitioning=None).to_pylist()).encode()
        if any(word.encode() in text for word in words):
            names.append(str(path.relative_to(lake.path)))
    return names


def summed(lake: Lake) -> None:
    """Rows of a table with a change feed, all of them changed once."""
    lake.ensure(SUMS)
    rows = lake.read(EVENTS).selectExpr(*(each.name for each in WHOSE), "CAST(body AS STRING) AS said")
    lake.append(rows, SUMS, Record(batch=1, source=1))
    lake.spark.sql(f"UPDATE {lake.sql_name(SUMS)} SET said = upper(said)").collect()


def a_generation(lake: Lake, number: int, tenant: str, *, portions: int = 1) -> Table:
    """A generation of a replay for one tenant, of which one portion is there: with none, it is whole."""
    plan = Plan(
        projection="p/q",
        number=number,
        cut={},
        engine="fold",
        code=Code(),
        filters=Filters(tenant=tenant),
        portions=portions,
    )
    made = table_of(plan)
    lake.ensure(made)
    said = {"state": "body"} | {name: name for name in EVENTS.names}
    rows = lake.read(EVENTS).selectExpr(
        *(f"CAST({said.get(each.name, 'NULL')} AS {each.type}) AS {each.name}" for each in made.columns)
    )
    lake.append(rows.where(rows.tenant == tenant), made, Record(batch=1))
    return made


class Killed(BaseException):
    """Stands for a process that ends at this moment."""


def test_tenant_walls_nothing_of_an_erased_tenant_is_found_in_any_file(lake: Lake) -> None:
    """Cut off after each of its steps in turn and run again; others' rows and how far tables are stay."""
    add_events(lake, 1, 24, [ACME, "acme", "aaa", "zzz"])
    summed(lake)
    part, begun = a_generation(lake, 3, ACME, portions=0), a_generation(lake, 4, ACME)
    (file,) = Path(lake.place(part)).glob("*.parquet")
    file.unlink()  # as where its removal was cut off
    with Runs(lake).recorded("replay", {"tenant": ACME}):
        pass
    lake.spark.range(3).write.format("delta").save(lake.place("others"))
    assert found(lake, ACME, secret(ACME, 4))
    before = {
        table.name: sorted(map(str, lake.read(table).where(col("tenant") != ACME).collect()))
        for table in (EVENTS, SUMS)
    }
    files = sorted(Path(lake.path).rglob("*"))
    would = {one.table: (one.rows, one.whole) for one in would_erase(lake, ACME).tables}
    whole = dict.fromkeys((part.name, begun.name), (6, True))
    assert would == {"events": (6, False), "sums": (6, False), "runs": (2, False), **whole}
    assert sorted(Path(lake.path).rglob("*")) == files, "nothing is changed"
    rest = lake.read(begun).localCheckpoint()
    records = {table.name: lake.last(table) for table in (EVENTS, SUMS)}
    identity = lake.identity(EVENTS)
    cuts = [9] if SCALE <= 1 else list(range(1, 16))  # 9: files are gone, and the log is not yet
    told: list[tuple[int, int, str]] = []

    def tell(done: int, of: int, what: str) -> None:
        told.append((done, of, what))
        if cuts and done >= cuts[0]:
            cuts.pop(0)
            raise Killed

    report = None
    while report is None:
        try:
            report = erase(lake, ACME, tell)
        except Killed:
            continue
    assert cuts == []
    assert found(lake, ACME, ACME.upper()) == []
    assert found(lake, secret("acme", 5))
    assert {one.table for one in report.tables} == {"events", "sums", "runs", begun.name}
    assert report.remains == ["others: it is not a table of Toril's, and was not touched"]
    assert not lake.exists(part)
    # A replay may be at it: what it still writes has a number that is taken.
    assert find(lake, "p/q", 4).state == "retired"
    lake.append(rest, begun, Record(batch=2))
    assert lake.read(begun).isEmpty()
    assert lake.identity(EVENTS) == identity
    for table in (EVENTS, SUMS):
        assert sorted(map(str, lake.read(table).collect())) == before[table.name]
        assert DeltaTable(lake.place(table)).to_pyarrow_table().num_rows == len(before[table.name])
        had, has = records[table.name], lake.last(table)
        assert has.batch > had.batch
        assert (has.source, has.positions) == (had.source, had.positions)
        with pytest.raises(Exception, match="(?i)version|commit"):
            lake.read(table, version=1).count()
    places = {
        ordinal
        for row in lake.read(ERASURES).collect()
        if row["log_partition"] == 0
        for ordinal in range(row["first"], row["last"] + 1)
    }
    assert places == {number // 2 + 1 for number in range(0, 24, 4)}  # acme's are every fourth
    add_events(lake, lake.last(EVENTS).batch + 1, 4, ["globex"])
    assert lake.read(EVENTS).count() == 22
    properties = lake.detail(EVENTS)["properties"]
    assert not [name for name in properties if name in ("toril.erasing", "delta.checkpointInterval")]


@pytest.mark.promise
def test_a_batch_that_is_under_way_fails_rather_than_losing_its_files(
    lake: Lake, spark: SparkSession
) -> None:
    """It has written files when the erasure begins; it is told, writes them again, and all are there."""
    add_events(lake, 1, 8, ["acme", "globex"])
    job = Lake(spark.newSession(), lake.path)
    problems: list[Exception] = []
    gate = Path(lake.path) / "gate"

    def files() -> int:
        return len(list(Path(lake.place(EVENTS)).rglob("part-*.parquet")))

    before = files()

    def wait(batches):  # type: ignore[no-untyped-def]
        while not gate.exists():
            time.sleep(0.05)
        yield from batches

    def write() -> None:
        late = events(job, 8, 8, ["globex"])
        # One file is written while the other waits.
        slow = late.limit(1).mapInArrow(wait, late.schema)
        try:
            job.append(late.where("log_partition = 0").union(slow), EVENTS, Record(batch=2))
        except Exception as problem:  # noqa: BLE001
            problems.append(problem)

    writer = threading.Thread(target=write)
    writer.start()
    while files() == before:
        assert writer.is_alive()
        time.sleep(0.05)

    def tell(_: int, __: int, what: str) -> None:
        if "history" in what:
            gate.touch()
            writer.join()

    report = erase(lake, "acme", tell)
    assert len(problems) == 1
    assert passing(problems[0])
    assert lake.read(EVENTS).count() == 4
    (said,) = report.remains or ["files that belong to no version"]
    assert "files that belong to no version" in said
    record = lake.last(EVENTS)
    job.append(events(job, 8, 8, ["globex"]), EVENTS, msgspec.structs.replace(record, batch=record.batch + 1))
    assert lake.read(EVENTS).count() == 12
    if SCALE > 1:
        erase(lake, "acme")
        assert lake.read(EVENTS).where("tenant = 'globex'").count() == 12


ODD = ("tenant", "null", 'a"\\b', "é\U0001f600", "it's ${x} $.tenant")
"""Tenants' names that are also names in what a run was told, or that JSON or SQL write otherwise."""


def test_of_runs_those_go_that_were_told_of_the_tenant_and_no_others(lake: Lake) -> None:
    runs = Runs(lake)
    told = [*ODD, None]
    for tenant in told:
        # What a run is called, or was given besides, may be what a tenant is called.
        runs.begin("replay", {"projection": "tenant", "tenant": tenant, "version_of_code": "null"})
    for tenant in ODD:
        would = {one.table: one.rows for one in would_erase(lake, tenant).tables}
        assert would == {"runs": 1}, tenant
    assert [one.rows for one in erase(lake, "tenant").tables] == [1]
    assert {one.arguments["tenant"] for one in runs.last()} == {*told} - {"tenant"}


def test_a_tenant_that_none_can_be_is_refused(lake: Lake) -> None:
    """Before anything is looked at."""
    with pytest.raises(InvalidValue):
        erase(lake, "")
