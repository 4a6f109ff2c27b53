"""Tables of a lake are looked at by ClickHouse as they are, and loaded into its own tables once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.lake.span_events import a_span, events_of
from toril.cli.main import cli
from toril.errors import InvalidValue
from toril.events.errors import StoreError
from toril.lake import serving
from toril.lake.errors import LakeError
from toril.lake.files import files_of
from toril.lake.lake import Lake, Record
from toril.lake.packing import in_chunks
from toril.lake.rollups import RollupsStep
from toril.lake.serving import Loaded, ask, ask_spark, check_statement, load, source_sql, views
from toril.lake.spans import spans_of
from toril.lake.tables import ROLLUPS, SPANS
from toril.stores.clickhouse import Database


def add_spans(lake: Lake, batch: int, first: int, count: int) -> None:
    """One batch of spans, and the rollups of it."""
    lake.ensure(SPANS)
    rows = events_of(lake.spark, [(a_span(n), f"t{n % 3}") for n in range(first, first + count)], first)
    lake.append(spans_of(rows), SPANS, Record(batch=batch))
    step = RollupsStep()
    step.prepare(lake)
    assert step.once(lake) is not None


def test_what_changes_something_is_refused() -> None:
    """By its first word, by a second statement, and hidden behind a WITH; not by what is in quotes."""
    for good in (
        "SELECT 1;",
        " with a as (select 'DROP TABLE; x' as b) select * from a -- delete",
        "(SELECT 1)",
        "SHOW CREATE TABLE spans",
        "describe spans",
        'SELECT `delete`, "insert" FROM x /* update ; */',
        "SELECT replace(name, 'a', 'b'), created_at FROM x",
    ):
        check_statement(good)
    for bad in (
        "",
        "DROP TABLE spans",
        "INSERT INTO spans SELECT 1",
        "SELECT 1; DROP TABLE x",
        "WITH a AS (SELECT 1) INSERT INTO b SELECT * FROM a",
        "SELECT 1 INTO OUTFILE '/tmp/x'",
        "EXPLAIN ANALYZE DELETE FROM x",
        "-- SELECT\nVACUUM x",
    ):
        with pytest.raises(InvalidValue, match="statement"):
            check_statement(bad)


async def test_tables_are_asked_and_loaded_once_however_often(lake: Lake, tmp_path: Path) -> None:
    """From the files by both engines; into ClickHouse by batch, killed in between, and erased with it."""
    add_spans(lake, 1, 1, 40)
    asked = (
        "SELECT tenant, CAST(sum(spans) AS INT) AS n FROM rollups WHERE grain = 'day' GROUP BY 1 ORDER BY 1"
    )
    there = ["rollups", "spans"]
    found = ask(lake.path, there, asked)
    assert (found.columns, found.more) == (("tenant", "n"), False)
    assert sum(row[1] for row in found.rows) == 40
    assert ask_spark(lake, there, asked).rows == found.rows
    few = ask(lake.path, there, "SELECT span_id, attributes, labels, cost FROM spans", most=3)
    assert (len(few.rows), few.more) == (3, True)
    with pytest.raises(LakeError, match="nothing"):
        ask(lake.path, there, "SELECT nothing FROM spans")
    with pytest.raises(LakeError, match="nothing"):
        ask_spark(lake, there, "SELECT nothing FROM spans")

    async with await Database.open(directory=tmp_path / "clickhouse") as database:

        async def held() -> list[tuple[Any, ...]]:
            return await database.query(
                "SELECT tenant, model, grain, start, spans, toString(cost), duration_buckets "
                "FROM {database}.lake_rollups FINAL ORDER BY ALL"
            )

        first = await load(lake, database, "rollups")
        assert (first.rows, first.batch, first.removed) == (lake.read(ROLLUPS).count(), 1, 0)
        assert (await load(lake, database, "rollups")).rows == 0
        add_spans(lake, 2, 30, 30)  # some in the same minutes
        insert = serving._inserting

        def killed(name: str, place: str, arrow: Any) -> Any:
            done = insert(name, place, arrow.slice(0, 5))

            def work(client: Any) -> None:
                done(client)
                raise ConnectionError("cut off")

            return work

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(serving, "_inserting", killed)
            with pytest.raises(StoreError, match="could not be reached"):
                await load(lake, database, "rollups")
        again = await load(lake, database, "rollups")
        assert again.batch == 2
        rows = await held()
        assert len(rows) == lake.read(ROLLUPS).count()
        assert sum(row[4] for row in rows if row[2] == "day") == 70
        total = lake.read(ROLLUPS).selectExpr("CAST(sum(cost) AS STRING)").collect()[0][0]
        assert str(sum(int(row[5]) for row in rows)) == total
        lake.spark.sql(f"DELETE FROM {lake.sql_name(ROLLUPS)} WHERE tenant = 't1'")
        gone = await load(lake, database, "rollups")
        assert gone.removed == sum(row[0] == "t1" for row in rows)
        assert {row[0] for row in await held()} == {"t0", "t2"}
        spans = await load(lake, database, "spans")
        assert spans.rows == 70
        with pytest.raises(InvalidValue, match="one of"):
            await load(lake, database, "events")
        with pytest.raises(LakeError, match="no table"):
            await load(lake, database, "trace_summaries")

    at = ["lake", "sql", "--lake", lake.path]
    shown = CliRunner().invoke(
        cli, [*at, "SELECT tenant, count() AS n FROM spans GROUP BY tenant ORDER BY n"]
    )
    assert (shown.exit_code, shown.output.count("t0")) == (0, 1), shown.output
    said = CliRunner().invoke(
        cli, [*at, "--json", "--limit", "1", "SELECT span_id, start, labels FROM spans"]
    )
    value = json.loads(said.output)
    assert value["more"] is True
    assert value["columns"]["start"] == "Int64"
    assert "deltaLakeLocal" in CliRunner().invoke(cli, [*at, "--views"]).output
    refused = CliRunner().invoke(cli, [*at, "DROP TABLE spans"])
    assert isinstance(refused.exception, InvalidValue)


async def test_what_is_loaded_is_what_the_lake_has_whatever_became_of_it(lake: Lake, tmp_path: Path) -> None:
    """A tenant that was erased and came back, a load that was cut off, tables made anew, another lake."""
    add_spans(lake, 1, 1, 12)
    older = Lake(lake.spark, tmp_path / "older")
    shutil.copytree(lake.path, older.path)
    add_spans(lake, 2, 100, 12)
    async with await Database.open(directory=tmp_path / "clickhouse") as database:

        async def loaded(of: Lake) -> Loaded:
            done = await load(of, database, "rollups")
            here = await database.query(f"SELECT {KEYS} FROM {{database}}.lake_rollups FINAL ORDER BY ALL")
            there = of.read(ROLLUPS).selectExpr("tenant", "model", "grain", "unix_micros(start)", "batch")
            assert here == sorted(tuple(row) for row in there.collect())
            return done

        first = await loaded(lake)
        assert (await loaded(lake)).rows == 0
        # Erased, and back with other rows before anything was loaded again.
        had = rows_of_t1(lake)
        lake.spark.sql(f"DELETE FROM {lake.sql_name(ROLLUPS)} WHERE tenant = 't1'")
        add_spans(lake, 3, 1001, 3)
        again = await loaded(lake)
        gone = had - rows_of_t1(lake)
        assert gone
        assert (again.batch, again.removed) == (3, len(gone))
        # Cut off when rows were erased here, and had not come again.
        await database.run("erase", serving._erasing(f"{database.name}.lake_rollups", "t0"))
        assert (await loaded(lake)).removed == 0
        # The lake was put back: the same table, at an earlier batch.
        back = await loaded(older)
        assert (back.batch, back.rows) == (1, older.read(ROLLUPS).count())
        assert (await loaded(older)).rows == 0
        # Made anew, as after a rewind: another table, whose batches begin at 1 again.
        await loaded(lake)
        files_of(lake).remove(ROLLUPS.name)
        lake.spark.sql(f"DELETE FROM {lake.sql_name(SPANS)} WHERE version > 100")
        step = RollupsStep()
        step.prepare(lake)
        assert step.once(lake) is not None
        anew = await loaded(lake)
        assert (anew.batch, anew.rows) == (1, lake.read(ROLLUPS).count())
        assert anew.rows < first.rows


KEYS = "tenant, model, grain, toUnixTimestamp64Micro(start), batch"


async def test_long_texts_are_loaded_in_one_pass_and_in_small_pieces(lake: Lake, tmp_path: Path) -> None:
    """However many bytes a row has, and however many rows there are; a load that is cut off goes on."""
    lake.ensure(SPANS)
    spans = [a_span(n, name=f"{n} " + "long" * 500) for n in range(1, 41)]
    lake.append(spans_of(events_of(lake.spark, [(span, "t0") for span in spans])), SPANS, Record(batch=1))
    sizes: list[int] = []
    insert = serving._inserting

    def seen(name: str, place: str, arrow: Any) -> Any:
        if len(sizes) == 3:
            sizes.append(0)
            raise ConnectionError("cut off")
        sizes.append(arrow.num_rows)
        return insert(name, place, arrow)

    jobs = lake.spark.sparkContext._jsc.sc().dagScheduler()
    async with await Database.open(directory=tmp_path / "clickhouse") as database:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(serving, "_inserting", seen)
            patched.setattr(serving, "in_chunks", lambda rows, _: in_chunks(rows, 20_000, 9_000))
            with pytest.raises(ConnectionError):
                await load(lake, database, "spans")
            before = jobs.numTotalJobs()
            assert (await load(lake, database, "spans")).rows == 40
            made = jobs.numTotalJobs() - before
            whole = [size for size in sizes[4:] if size]
            assert max(sizes) < 12
            assert (sum(whole), len(whole) > 4) == (40, True)
        held = await database.query("SELECT count(), uniqExact(name) FROM {database}.lake_spans FINAL")
        assert held == [(40, 40)]
        assert made < 12


def rows_of_t1(lake: Lake) -> set[tuple[Any, ...]]:
    """Which rows of that tenant there are, by what makes two rows the same."""
    return {
        tuple(row)
        for row in lake.read(ROLLUPS).where("tenant = 't1'").select("model", "grain", "start").collect()
    }


def test_the_sql_for_a_server_names_the_files() -> None:
    """By what ClickHouse calls each storage; others are refused."""
    assert source_sql("/data/it's/spans") == "deltaLakeLocal('/data/it\\'s/spans')"
    assert source_sql("s3a://lake/a/spans").startswith("deltaLakeS3('https://lake.s3.")
    azure = source_sql("abfss://box@acme.dfs.core.windows.net/a/spans")
    assert azure == (
        "deltaLakeAzure(toril_lake, storage_account_url = 'https://acme.blob.core.windows.net', "
        "container = 'box', blob_path = 'a/spans')"
    )
    with pytest.raises(InvalidValue, match="CONTAINER@ACCOUNT"):
        source_sql("abfss://box/a")
    with pytest.raises(InvalidValue, match="Spark"):
        source_sql("hdfs://x/y")
    made, view = views("/data", ["generations/p/q/2"])
    assert "`generations/p/q/2` AS SELECT" in view
    assert made.startswith("CREATE DATABASE")


def test_views_are_printed_of_a_lake_that_only_spark_and_a_server_reach(lake: Lake) -> None:
    """What stands there as a bucket is a folder of this machine, by a file system of Hadoop that does so."""
    lake.ensure(SPANS)
    bucket = {
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.s3a.impl.disable.cache": "true",
        "fs.viewfs.mounttable.box.link./company": f"file://{lake.path}",
    }
    conf = lake.spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in bucket.items():
        conf.set(name, value)
    try:
        shown = CliRunner().invoke(cli, ["lake", "sql", "--lake", "s3a://box/company", "--views"])
    finally:
        for name in bucket:
            conf.unset(name)
    source = "deltaLakeS3('https://box.s3.amazonaws.com/company/spans')"
    assert f"CREATE OR REPLACE VIEW `lake`.`spans` AS SELECT * FROM {source};" in shown.output
    refused = CliRunner().invoke(cli, ["lake", "sql", "--lake", "hdfs://box/company", "--views"])
    assert isinstance(refused.exception, InvalidValue)
