"""What tables of a lake hold to: made once, refused where foreign, and every batch written once."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from toril.lake.commits import _in_history as in_history
from toril.lake.errors import ForeignTable, LakeError, NewerTable, NoRoom, OtherWriter
from toril.lake.lake import NEVER, Lake, Record
from toril.lake.problems import passing
from toril.lake.steps import Step
from toril.lake.tables import BATCH, Column, Table

COUNTS = Table(
    name="counts",
    comment="Numbers, for the tests: it's theirs.",
    columns=(
        Column("number", "bigint", "A number; it's from 1.", True),
        BATCH,
        Column("even", "boolean", "Whether it is even.", False, "number % 2 = 0"),
    ),
    constraints={"from_1": "number >= 1"},
)

COPIES = Table(name="copies", comment="The same numbers.", columns=(COUNTS.columns[0], BATCH))


class Copying(Step):
    table = COPIES
    source = COUNTS

    def write(self, lake: Lake, rows: DataFrame, record: Record) -> None:
        lake.append(rows, self.table, record)


def numbers(spark: SparkSession, first: int, count: int) -> DataFrame:
    return spark.range(first, first + count).withColumnRenamed("id", "number")


def held(lake: Lake, table: Table = COUNTS) -> list[int]:
    return sorted(row["number"] for row in lake.read(table).select("number").collect())


def test_a_table_is_made_once_with_its_comments_and_rules(lake: Lake) -> None:
    lake.ensure(COUNTS)
    lake.ensure(COUNTS)
    assert lake.version(COUNTS) == 0
    assert lake.last(COUNTS) == NEVER
    (said,) = (
        row["comment"]
        for row in lake.spark.sql(f"DESCRIBE {lake.sql_name(COUNTS)}").collect()
        if row["col_name"] == "number"
    )
    assert said == "A number; it's from 1."


def test_a_table_whose_making_was_cut_off_is_made_by_the_next(lake: Lake) -> None:
    """Killed after the folder of its log was there, and before the first commit was."""
    log = Path(lake.place(COUNTS), "_delta_log")
    for left in ("_staged_commits", ".00000000000000000000.json.6d2f.tmp"):
        (log / "_staged_commits").mkdir(parents=True)
        if left.startswith("."):
            (log / left).write_text("{")
        lake.ensure(COUNTS)
        lake.append(numbers(lake.spark, 1, 3), COUNTS, Record(batch=1))
        assert held(lake) == [1, 2, 3]
        shutil.rmtree(log.parent)
    log.mkdir(parents=True)
    commit = log / "00000000000000000007.json"
    commit.write_text("{}")
    with pytest.raises(Exception, match="(?i)delta"):
        lake.ensure(COUNTS)
    assert commit.exists(), "where there are commits, it is no such table"


def test_a_batch_is_written_once_and_says_how_far_its_source_was_read(lake: Lake) -> None:
    lake.ensure(COUNTS)
    record = Record(batch=1, positions={"07": (10, "5-0"), "2:07": (1, "9-9")}, run="first")
    lake.append(numbers(lake.spark, 1, 10), COUNTS, record)
    lake.append(numbers(lake.spark, 1, 10), COUNTS, Record(batch=1, run="second"))
    assert held(lake) == list(range(1, 11))
    assert lake.last(COUNTS) == record
    assert lake.read(COUNTS).where("even").count() == 5


def when_both_are_at_it(rows: DataFrame, folder: Path, name: str) -> DataFrame:
    """Rows that come when another writer of them has begun as well."""

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        (folder / name).touch()
        until = time.monotonic() + 120
        while len(list(folder.glob("run-*"))) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        yield from batches

    return rows.coalesce(1).mapInArrow(wait, rows.schema)


def test_of_two_that_write_the_same_batch_one_does(lake: Lake, tmp_path: Path) -> None:
    """Both have begun before either has ended: the later one is told, and finds the batch there."""
    lake.ensure(COUNTS)
    problems: dict[int, Exception] = {}

    def write(first: int) -> None:
        own = Lake(lake.spark.newSession(), lake.path)
        rows = when_both_are_at_it(numbers(own.spark, first, 5), tmp_path, f"run-{first}")
        try:
            own.append(rows, COUNTS, Record(batch=1, run=f"run-{first}"))
        except Exception as problem:  # noqa: BLE001 - looked at below
            problems[first] = problem

    threads = [threading.Thread(target=write, args=(first,)) for first in (10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(tmp_path.glob("run-*"))) == 2
    ((late, problem),) = problems.items()
    assert isinstance(problem, OtherWriter)
    assert passing(problem)
    first = 30 - late
    assert lake.last(COUNTS).run == f"run-{first}"
    assert held(lake) == list(range(first, first + 5))
    # The next batch is another one; and what is there stays there, whoever is late with it.
    lake.append(numbers(lake.spark, 30, 2), COUNTS, Record(batch=2, run="next"))
    for batch in (1, 2):
        lake.append(numbers(lake.spark, 40, 2), COUNTS, Record(batch=batch, run="late"))
    assert lake.last(COUNTS).run == "next"
    assert held(lake) == [*range(first, first + 5), 30, 31]


def test_settings_of_a_batch_are_seen_by_its_own_session_alone(lake: Lake) -> None:
    lake.ensure(COUNTS)
    other = Lake(lake.spark.newSession(), lake.path)
    with lake.recording(COUNTS, Record(batch=5)):
        other.spark.sql(f"INSERT INTO {other.sql_name(COUNTS)} (number, batch) VALUES (1, 0)")
        assert other.last(COUNTS) == NEVER
        lake.spark.sql(f"INSERT INTO {lake.sql_name(COUNTS)} (number, batch) VALUES (2, 5)")
    assert lake.last(COUNTS).batch == 5
    assert held(lake) == [1, 2]


def test_the_record_survives_upkeep_and_a_batch_that_comes_in_between(lake: Lake) -> None:
    lake.ensure(COUNTS)
    lake.append(numbers(lake.spark, 1, 5), COUNTS, Record(batch=1, run="one"))
    lake.append(numbers(lake.spark, 6, 5), COUNTS, Record(batch=2, run="two"))
    other = Lake(lake.spark.newSession(), lake.path)
    with lake.keeping_record(COUNTS):
        other.append(numbers(other.spark, 11, 5), COUNTS, Record(batch=3, run="three"))
        lake.spark.sql(f"OPTIMIZE {lake.sql_name(COUNTS)}")
    assert lake.last(COUNTS).run == "three"
    assert lake.last(COUNTS, upto=2).run == "two"
    assert lake.batches(COUNTS, 1, 2).count() == 5
    assert held(lake) == list(range(1, 16))


def test_a_batch_that_changes_nothing_is_recorded_all_the_same(lake: Lake) -> None:
    lake.ensure(COUNTS)
    with lake.recording(COUNTS, Record(batch=1, source=4)):
        lake.spark.sql(
            f"MERGE INTO {lake.sql_name(COUNTS)} t USING (SELECT 1L AS n WHERE false) s ON t.number = s.n "
            "WHEN NOT MATCHED THEN INSERT (number, batch) VALUES (s.n, 1)"
        )
    assert lake.last(COUNTS).source == 4
    assert held(lake) == []


def test_a_step_takes_all_that_its_source_has_and_nothing_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Copying()
    lake.ensure(COUNTS)
    step.prepare(lake)
    assert step.once(lake) is None
    for batch in range(1, 4):
        positions = {"00": (batch * 5, f"{batch}-0")}
        rows = numbers(lake.spark, batch * 5 - 4, 5)
        lake.append(rows, COUNTS, Record(batch=batch, positions=positions))
    monkeypatch.setattr("toril.lake.steps.BATCHES_AT_ONCE", 2)
    first, second = step.once(lake, "a run"), step.once(lake)
    assert first is not None
    assert first.source == 2
    assert first.positions == {"00": (10, "2-0")}
    assert second is not None
    assert second.positions == {"00": (15, "3-0")}
    assert step.once(lake) is None
    assert held(lake, COPIES) == list(range(1, 16))


def test_rows_against_a_rule_are_refused_in_words_and_nothing_is_written(lake: Lake) -> None:
    lake.ensure(COUNTS)
    with pytest.raises(LakeError, match=r"counts takes no row with number = 0: from_1 is \(number >= 1\)"):
        lake.append(numbers(lake.spark, 0, 2), COUNTS, Record(batch=1))
    with pytest.raises(LakeError, match="counts takes no row with(out number| number = null)"):
        lake.append(
            numbers(lake.spark, 1, 2).selectExpr("nullif(number, 2) AS number"), COUNTS, Record(batch=1)
        )
    assert lake.last(COUNTS) == NEVER
    assert held(lake) == []


def test_what_is_not_ours_is_refused_and_left_as_it_is(lake: Lake) -> None:
    place = Path(lake.place(COUNTS))
    numbers(lake.spark, 1, 3).write.format("delta").save(str(place))
    with pytest.raises(ForeignTable, match="counts is a table, and not Toril's counts"):
        lake.ensure(COUNTS)
    assert lake.version(COUNTS) == 0
    other = Lake(lake.spark, f"{lake.path}-of-files")
    place = Path(other.place(COUNTS))
    place.mkdir(parents=True)
    (place / "letter.txt").write_text("dear")
    with pytest.raises(ForeignTable, match="counts has files, and is not Toril's table"):
        other.ensure(COUNTS)
    assert [file.name for file in place.iterdir()] == ["letter.txt"]


def test_a_table_of_a_later_version_is_refused(lake: Lake) -> None:
    lake.ensure(COUNTS)
    lake.spark.sql(f"ALTER TABLE {lake.sql_name(COUNTS)} SET TBLPROPERTIES ('toril.form' = '99')")
    with pytest.raises(NewerTable, match="has form 99, and this Toril .* knows forms up to"):
        lake.ensure(COUNTS)


def test_a_path_that_cannot_be_written_to_is_said_in_words(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LakeError, match="counts cannot be written to by this user; nothing was changed"):
        Lake(spark, tmp_path / "file" / "lake").ensure(COUNTS)


def test_a_full_disk_is_said_in_words_and_the_table_is_as_it_was(
    spark: SparkSession, small_disk: Path
) -> None:
    lake = Lake(spark, small_disk)
    lake.ensure(COUNTS)
    lake.append(numbers(spark, 1, 3), COUNTS, Record(batch=1))
    with pytest.raises(LakeError, match="there is no room left for .*counts; nothing was changed"):
        lake.append(numbers(spark, 1, 1_000_000), COUNTS, Record(batch=2))
    assert lake.last(COUNTS).batch == 1
    assert held(lake) == [1, 2, 3]


def test_a_disk_that_takes_no_more_files_is_a_full_one(spark: SparkSession, small_disk: Path) -> None:
    def fill() -> None:
        for number in count():
            (small_disk / f"{number}").touch()

    with pytest.raises(OSError, match="No space left on device"):
        fill()
    lake = Lake(spark, small_disk)
    with pytest.raises(NoRoom, match="there is no room left for .*counts; nothing was changed"):
        lake.ensure(COUNTS)
    for file in small_disk.iterdir():
        file.unlink()
    lake.ensure(COUNTS)
    assert held(lake) == []


def test_a_table_that_is_not_there_is_said_in_words(lake: Lake) -> None:
    with pytest.raises(LakeError, match="there is no table counts in .*: `toril lake run` makes it"):
        lake.check(COUNTS)


def restore(lake: Lake, where: str) -> None:
    lake.spark.sql(f"RESTORE TABLE {lake.sql_name(COUNTS)} TO {where}").collect()


def test_a_table_that_was_restored_to_before_its_last_batch_is_refused_until_that_is_taken_back(
    lake: Lake,
) -> None:
    """Delta would drop the next batches of it in silence, and tables after it have read what is gone."""
    step = Copying()
    lake.ensure(COUNTS)
    step.prepare(lake)
    for batch in (1, 2):
        lake.append(numbers(lake.spark, batch * 5, 5), COUNTS, Record(batch=batch))
    assert step.once(lake) is not None
    restore(lake, "VERSION AS OF 1")
    said = (
        r"counts was restored to version 1, where it had batch 1, and had batch 2 before: .*"
        r"`RESTORE TABLE delta\.`.*/counts` TO VERSION AS OF 2` takes that back"
    )
    looks: list[Callable[[], object]] = [
        lambda: lake.last(COUNTS),
        lambda: lake.last(COUNTS, upto=1),
        lambda: step.once(lake),
        lambda: lake.keeping_record(COUNTS).__enter__(),
    ]
    for look in looks:
        with pytest.raises(LakeError, match=said):
            look()
    history = lake.spark.sql(f"DESCRIBE HISTORY {lake.sql_name(COUNTS)}")
    (at,) = history.where("version = 2").selectExpr("CAST(timestamp AS string)").first() or ("",)
    restore(lake, f"TIMESTAMP AS OF '{at}'")
    with pytest.raises(LakeError, match="counts was restored to .*, and no version is said.* AS OF 3` takes"):
        lake.last(COUNTS)
    restore(lake, "VERSION AS OF 2")
    assert lake.last(COUNTS).batch == 2
    assert list(lake.commits(COUNTS)) == list(in_history(lake.spark, lake.place(COUNTS)))
    # What was not ours can be undone so: no batch is lost by it.
    lake.spark.sql(f"DELETE FROM {lake.sql_name(COUNTS)}")
    restore(lake, "VERSION AS OF 2")
    lake.append(numbers(lake.spark, 15, 5), COUNTS, Record(batch=3))
    assert (lake.last(COUNTS).batch, lake.last(COUNTS, upto=2).batch) == (3, 2)
    assert step.once(lake) is not None
    assert held(lake, COPIES) == held(lake) == list(range(5, 20))


def test_a_table_whose_source_was_made_anew_is_not_left_behind_in_silence(lake: Lake) -> None:
    step = Copying()
    lake.ensure(COUNTS)
    step.prepare(lake)
    for batch in (1, 2):
        lake.append(numbers(lake.spark, batch * 5, 5), COUNTS, Record(batch=batch))
    assert step.once(lake) is not None
    shutil.rmtree(lake.place(COUNTS))
    lake.ensure(COUNTS)
    with pytest.raises(
        LakeError, match="copies has read counts up to batch 2, and that has batches up to 0: .*/copies as"
    ):
        step.once(lake)
