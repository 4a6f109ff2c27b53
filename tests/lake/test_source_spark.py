"""The source ``toril_log`` in Spark: batches, streams, and what plans and errors show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from tests.conftest import Servers, emptied
from tests.lake import streaming_victim
from tests.lake.filling import Row, event, everything, fill, filled, with_log
from tests.lake.streaming_victim import finish
from toril.errors import InvalidValue
from toril.lake.source import Marks, behind, between, next_batch, read_log, tails, told
from toril.lake.source.options import as_json
from toril.lake.tables import LOG_COLUMNS
from toril.log import Partition
from toril.log.errors import GapFound
from toril.testing import standalone

pytestmark = pytest.mark.timeout(400)


def rows(frame: DataFrame) -> list[Row]:
    found = []
    for row in frame.collect():
        partition = str(Partition(row.log_epoch, row.log_partition))
        key = f"{row.tenant}:{row.aggregate_type}:{row.aggregate_id}"
        place = (partition, row.ordinal, row.entry_id)
        found.append(Row(*place, key, row.version, row.recorded_at, bytes(row.body)))
    return sorted(found)


def test_both_ways_to_read_give_what_the_logs_own_reader_gives(servers: Servers, spark: SparkSession) -> None:
    server = emptied(servers.get("valkey-cluster"))
    filled(server.url, 300)
    own = sorted(with_log(server.url, everything))
    upto = next_batch(server.url, "log", {}, 100)
    first = read_log(spark, server.url, "log", {}, upto)
    rest = read_log(spark, server.url, "log", upto, tails(server.url, "log"))
    assert first.dtypes == [(column.name, column.type) for column in LOG_COLUMNS]
    assert len(rows(first)) == 100
    assert sorted(rows(first) + rows(rest)) == own
    assert read_log(spark, server.url, "log", upto, upto).count() == 0
    plain = spark.read.format("toril_log").option("url", server.url)
    assert plain.load().dtypes == first.dtypes
    assert rows(plain.option("after", as_json(upto)).load()) == rows(rest)
    head = spark.read.format("toril_log").option("url", server.url).load().where("event_id = 'e7'").first()
    assert head is not None
    assert (head.event_type, head.schema_version, head.occurred_at) == ("test.shop.order.placed", 1, 7)


def test_what_is_asked_for_decides_what_is_read(spark: SparkSession) -> None:
    with standalone() as server:
        filled(server.url, 600, partitions=8)
        log = spark.read.format("toril_log").option("url", server.url).load()
        everything_ = log.collect()
        times = sorted(row.recorded_at for row in everything_)
        since, until = times[100], times[500]
        cases: list[tuple[str, Callable[[Any], bool]]] = [
            ("tenant = 'tenant1'", lambda row: row.tenant == "tenant1"),
            (
                "tenant = 'tenant1' AND aggregate_id IN ('a:1', 'a:7')",
                lambda row: row.tenant == "tenant1" and row.aggregate_id in ("a:1", "a:7"),
            ),
            (
                "log_partition IN (1, 3) AND tenant > 'tenant1'",
                lambda row: row.log_partition in (1, 3) and row.tenant > "tenant1",
            ),
            ("tenant = 'tenant0' AND tenant = 'tenant1'", lambda _: False),
            (
                f"recorded_at > {since} AND recorded_at <= {until}",
                lambda row: since < row.recorded_at <= until,
            ),
            (
                f"recorded_at >= {since} AND recorded_at < {until - 1}",
                lambda row: since <= row.recorded_at < until - 1,
            ),
            (f"recorded_at = {since}", lambda row: row.recorded_at == since),
        ]
        for asked, true in cases:
            found = sorted(row.event_id for row in log.where(asked).collect())
            assert found == sorted(row.event_id for row in everything_ if true(row)), asked
        server.ask("CONFIG", "RESETSTAT")
        log.where("tenant = 'tenant1' AND aggregate_id = 'a:1'").collect()
        stats = server.ask("INFO", "commandstats").decode()
        assert int(stats.split("cmdstat_xrange:calls=")[1].split(",")[0]) < 20, (
            "one partition of eight was read"
        )


def test_a_stream_takes_bounded_batches_up_to_the_tail_it_saw(spark: SparkSession, tmp_path: Path) -> None:
    with standalone() as server:
        filled(server.url, 700)
        query = finish(spark, server.url, str(tmp_path))
        sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        assert sizes == [300, 300, 100]
        left = [behind(progress) for progress in query.recentProgress if progress.numInputRows]
        assert left == [400, 100, 0], "how far it is behind can be seen in its progress"
        filled(server.url, 50)
        query = finish(spark, server.url, str(tmp_path))
        assert [progress.numInputRows for progress in query.recentProgress][:1] == [50]
        assert rows(spark.read.format("delta").load(f"{tmp_path}/table")) == sorted(
            with_log(server.url, everything)
        )

        assert query.lastProgress is not None
        after = query.lastProgress.sources[0].endOffset
        assert json.loads(after) == {name: list(place) for name, place in tails(server.url, "log").items()}
        server.ask("XDEL", Partition(1, 1).keys("log").entries, tails(server.url, "log")["01"][1])
        with_log(server.url, lambda log: fill(log, [event(n) for n in range(40)]))
        with pytest.raises(PySparkException) as problem:
            finish(spark, server.url, str(tmp_path))
        assert "is not in it now" in str(told(problem.value)), "the entry where it stands has gone"


def test_a_stream_that_is_killed_goes_on_and_has_each_event_once(spark: SparkSession, tmp_path: Path) -> None:
    with standalone() as server:
        filled(server.url, 6000)
        command = [sys.executable, streaming_victim.__file__, server.url, str(tmp_path)]
        victim = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            commits = tmp_path / "checkpoint" / "commits"
            until = time.monotonic() + 200
            while not (
                commits.is_dir() and len([one for one in commits.iterdir() if one.name.isdigit()]) >= 2
            ):
                assert victim.poll() is None
                assert time.monotonic() < until
                time.sleep(0.02)
        finally:
            os.killpg(victim.pid, signal.SIGKILL)
            victim.wait()
        finish(spark, server.url, str(tmp_path))
        found = spark.read.format("delta").load(f"{tmp_path}/table")
        assert rows(found) == sorted(with_log(server.url, everything))


def test_what_goes_wrong_in_a_task_or_with_an_option_is_told(spark: SparkSession) -> None:
    with standalone() as server:
        filled(server.url, 100, partitions=1)
        end = tails(server.url, "log")
        (gone,) = [row for row in with_log(server.url, everything) if row.ordinal == 50]
        frame = read_log(spark, server.url, "log", {}, end)
        server.ask("XDEL", Partition(1, 0).keys("log").entries, gone.entry_id)
        with pytest.raises(PySparkException) as problem:
            frame.collect()
        found = told(problem.value)
        assert isinstance(found, GapFound)
        assert str(found) == "GAP partition 00: entry 50 is missing (the next one there is 51)"
        with pytest.raises(PySparkException) as problem:
            spark.read.format("toril_log").option("url", server.url).option("tasks", "0").load()
        assert "option tasks '0' is not valid: a whole number from 1" in str(told(problem.value))
    assert told(ValueError("x")) is None
    assert isinstance(told(InvalidValue("a", 1, "b")), InvalidValue)


def test_credentials_are_in_no_plan_no_progress_and_no_error(spark: SparkSession, tmp_path: Path) -> None:
    with standalone() as server:
        filled(server.url, 100, partitions=1)
        server.ask("CONFIG", "SET", "requirepass", "hush-hush")
        url = server.url.replace("redis://", "redis://:hush-hush@")
        shown = []
        plain = spark.read.format("toril_log").option("url", url).load()
        for frame in (
            plain,
            plain.where(col("tenant") == "tenant1"),
            read_log(spark, url, "log", {}, tails(url, "log")),
        ):
            assert frame.count() > 0
            shown += [
                frame._jdf.queryExecution().toString(),
                frame._jdf.queryExecution().executedPlan().toString(),
            ]
        query = finish(spark, url, str(tmp_path))
        assert query.lastProgress is not None
        shown += [query.lastProgress.json, str(query.status), query.id]
        shown += [str(path.read_bytes()) for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
        wrong = url.replace("hush", "hash")
        with pytest.raises(PySparkException) as problem:
            spark.read.format("toril_log").option("url", wrong).load().count()
        shown.append(str(problem.value))
        assert "toril_log" in shown[0]
        assert not [text for text in shown if "hush" in text or "hash-hash" in text]


def test_the_lag_is_what_lies_between() -> None:
    assert between({"00": (3, "1-3")}, {"00": (5, "1-5"), "01": (2, "1-1")}) == 4
    assert between(Marks(), Marks()) == 0
