"""Upkeep of a lake: fewer files, the same rows, and nobody is held up."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake.rows import add_events
from toril.errors import InvalidValue
from toril.lake.files import files_of, tables_in
from toril.lake.lake import Lake
from toril.lake.maintain import condition_of, maintain, small_files
from toril.lake.storage import HadoopFiles, LocalFiles
from toril.lake.tables import EVENTS


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
