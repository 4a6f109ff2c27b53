"""Upkeep of a lake: fewer files, the same rows, and nobody is held up."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake.rows import add_events, as_texts
from tests.lake.span_events import a_span, archive
from toril.errors import InvalidValue
from toril.lake.errors import OtherWriter
from toril.lake.files import files_of, tables_in
from toril.lake.lake import Lake, Record
from toril.lake.maintain import RETAIN, TARGET, TARGETS, _Table, condition_of, maintain, small_files
from toril.lake.spans import spans_of
from toril.lake.storage import HadoopFiles, LocalFiles
from toril.lake.tables import EVENTS, SPANS


def test_small_files_become_few_and_rows_stay_while_a_job_appends(lake: Lake) -> None:
    """No batch is lost or doubled, the record is the writer's last one, and a second call finds no more."""
    add_events(lake, 1, 20, ["acme", "globex"], files=6)
    stop, begun, written = threading.Event(), threading.Event(), [1]

    def write() -> None:
        job = Lake(lake.spark.newSession(), lake.path)
        while not stop.is_set():
            add_events(job, written[0] + 1, 20, ["acme"], day=written[0])
            written[0] += 1
            begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert begun.wait(60)
        (done,) = maintain(lake, ["events"])
    finally:
        stop.set()
        writer.join()
    assert (done.table, done.compacted, done.problems) == ("events", 2, [])
    assert done.files_before > 10
    rows = lake.read(EVENTS)
    assert rows.count() == written[0] * 20 == rows.select("event_id").distinct().count()
    assert lake.last(EVENTS).batch == written[0]
    assert len(rows.where("recorded_day = current_date()").inputFiles()) == 2
    assert DeltaTable(lake.place(EVENTS)).to_pyarrow_table().num_rows == rows.count()
    version = lake.version(EVENTS)
    (again,) = maintain(lake, dry_run=True)
    assert (again.compacted, again.removed, lake.version(EVENTS)) == (0, 0, version)


def test_files_go_that_no_version_of_the_last_days_has(lake: Lake, tmp_path: Path) -> None:
    """Those that were brought together, and one that a killed job has left; a dry run says how many."""
    add_events(lake, 1, 20, ["acme"], files=6)
    before = as_texts(lake.read(EVENTS))
    (first,) = maintain(lake, ["events"])
    assert (first.compacted, first.removed) == (2, 0), "readers may be at the version before"

    shutil.copytree(lake.path, tmp_path / "later", ignore=shutil.ignore_patterns("*.crc"))
    later = Lake(lake.spark, tmp_path / "later")
    left = Path(later.place(EVENTS)) / "part-of-a-killed-job.parquet"
    left.write_bytes(b"half a file")
    long_ago = time.time() - RETAIN.total_seconds() - 3600
    for file in Path(later.place(EVENTS)).rglob("*"):
        if file.suffix == ".json":  # which says when files were taken out of the table
            when = f'"deletionTimestamp":{int(long_ago * 1000)}'
            file.write_text(re.sub(r'"deletionTimestamp":\d+', when, file.read_text()))
        os.utime(file, (long_ago, long_ago))
    (looked,) = maintain(later, ["events"], dry_run=True)
    assert left.exists()
    (done,) = maintain(later, ["events"])
    assert looked.removed == done.removed == first.files_before + 1
    assert done.removed_bytes > len("half a file")
    assert not left.exists()
    assert as_texts(later.read(EVENTS)) == before
    assert len(list(Path(later.place(EVENTS)).rglob("*.parquet"))) == 2


def test_spans_of_days_that_are_over_are_laid_by_trace(lake: Lake) -> None:
    archive(lake, [a_span(number) for number in range(24)])
    lake.ensure(SPANS)
    spans = spans_of(lake.read(EVENTS))
    lake.append(spans.repartition(6), SPANS, Record(batch=1, source=1))
    before = as_texts(lake.read(SPANS))
    (done,) = maintain(lake, ["spans"])
    assert (done.compacted, done.left, done.problems) == (1, 0, [])
    history = lake.spark.sql(f"DESCRIBE HISTORY {lake.sql_name(SPANS)} LIMIT 1").collect()[0]
    assert history["operation"] == "OPTIMIZE"
    assert history["operationParameters"]["zOrderBy"] == '["tenant","trace_id"]'
    assert as_texts(lake.read(SPANS)) == before
    assert lake.last(SPANS) == Record(batch=1, source=1)
    (again,) = maintain(lake, ["spans"], dry_run=True)
    assert again.compacted == 0


def test_what_a_job_was_at_each_time_is_left_and_not_said_to_be_done(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_events(lake, 1, 20, ["acme"], files=6)

    def crossed(*_: object) -> None:
        raise OtherWriter("a batch was first")

    monkeypatch.setattr(_Table, "_compact", crossed)
    (done,) = maintain(lake, ["events"])
    assert (done.compacted, done.left) == (0, 2)
    assert done.problems == ["a job was at it each time: left for the next time"]


def test_a_table_may_have_a_size_of_its_own(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late spans of old traces have whole files of summaries written anew: these are kept small."""
    assert TARGETS["trace_summaries"] < TARGET
    add_events(lake, 1, 20, ["acme"], files=6)
    monkeypatch.setitem(TARGETS, "events", 2)
    for target, compacted in ((None, 0), (TARGET, 2)):
        (done,) = maintain(lake, ["events"], target=target, dry_run=True)
        assert done.compacted == compacted


def test_what_readers_may_need_stays_and_bad_input_is_refused(lake: Lake) -> None:
    """A retention below Delta's is refused with the rule; tables that are not there by name."""
    add_events(lake, 1, 4, ["acme"])
    wrong: list[tuple[dict[str, object], str]] = [
        ({"retain": timedelta(days=6)}, "at least 7 days"),
        ({"target": 0}, "from 1"),
        ({"tables": ["nothing"]}, "has: events"),
    ]
    for given, rule in wrong:
        with pytest.raises(InvalidValue, match=rule):
            list(maintain(lake, **given))  # type: ignore[arg-type]


def test_partitions_are_named_from_their_folders() -> None:
    """With what a path may not have, and without a value; the tables' own name is no condition."""
    assert condition_of("") == ""
    assert condition_of("grain=hour/period=2024-01-01") == "`grain` = 'hour' AND `period` = '2024-01-01'"
    assert condition_of("a=it%27s/b=__HIVE_DEFAULT_PARTITION__") == "`a` = 'it\\'s' AND `b` IS NULL"
    sizes = {f"day={day}/{n}.parquet": n for day in (1, 2) for n in range(day * 5 + 1)}
    assert small_files(sizes, 6) == {"day=1": 6, "day=2": 6}
    assert small_files(sizes, 5) == {"day=1": 5, "day=2": 5}
    assert small_files(sizes, 4) == {}


def test_files_are_found_and_removed_here_and_where_only_spark_can(lake: Lake) -> None:
    """Both ways list the same."""
    add_events(lake, 1, 4, ["acme"])
    here, there = files_of(lake), HadoopFiles(lake.spark, f"file://{lake.path}")
    assert isinstance(here, LocalFiles)
    for files in (here, there):
        assert tables_in(files) == ["events"]
        assert files.walk("nothing") == []
        assert files.folders("nothing") == []
    visible = [file for file in here.walk("events") if not file.path.rpartition("/")[2].startswith(".")]
    assert there.walk("events") == visible
    assert visible
    for files, name in ((here, "one"), (there, "two")):
        (folder := files_of(lake)).remove("nothing")
        assert folder.folders("") == ["events"]
        (Path(lake.path) / name / "deep").mkdir(parents=True)
        (Path(lake.path) / name / "deep" / "file").write_text("x")
        files.remove(f"{name}/deep/file")
        files.remove(f"{name}/deep/file")
        files.remove(name)
        assert folder.folders("") == ["events"]
