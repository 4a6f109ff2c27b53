"""What the files of Delta's log say of commits is what Delta says of them."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException

from tests.lake.rows import add_events
from toril.lake import commits as module
from toril.lake.commits import Commit, commits
from toril.lake.files import files_of, tables_in
from toril.lake.lake import Lake
from toril.lake.storage import HadoopFiles, LocalFiles
from toril.lake.tables import EVENTS


def by_delta(lake: Lake) -> list[Commit]:
    """As ``DESCRIBE HISTORY`` has it."""
    return list(module._in_history(lake.spark, lake.place(EVENTS)))


def test_commits_are_those_of_the_history_by_files_here_and_elsewhere(lake: Lake) -> None:
    """Before a checkpoint and after it, where its hint is old, wrong, or not there, and old ones are gone."""
    log = Path(lake.place(EVENTS)) / "_delta_log"
    elsewhere = HadoopFiles(lake.spark, f"file://{lake.path}")

    def check() -> list[Commit]:
        found = list(lake.commits(EVENTS))
        assert found == list(module._in_files(elsewhere, "events/_delta_log"))
        assert lake.version(EVENTS) == found[0].version
        return found

    for batch in (1, 2):
        add_events(lake, batch, 4, ["acme"])
    assert check() == by_delta(lake)
    assert [one.rows for one in lake.commits(EVENTS)] == [4, 4, None]
    with lake.keeping_record(EVENTS):
        for number in count():
            lake.spark.sql(f"ALTER TABLE {lake.sql_name(EVENTS)} SET TBLPROPERTIES ('x' = '{number}')")
            if (log / "_last_checkpoint").exists() and number % 10 == 5:
                break
    history = by_delta(lake)
    assert check() == history
    assert lake.last(EVENTS).batch == 2

    hint = log / "_last_checkpoint"
    said = hint.read_text()
    (log / "._last_checkpoint.crc").unlink()  # of Hadoop, which would find that it was changed
    for other in (*(said.replace('"version":10', f'"version":{wrong}') for wrong in (99, 3)), "{"):
        assert other != said
        hint.write_text(other)
        assert check() == history
    for version in range(8):
        (log / f"{version:020d}.json").unlink()
    assert check() == history[:-8]
    hint.unlink()
    assert check() == history[:-8]


def test_commits_of_what_is_no_table_are_an_error_of_spark(lake: Lake) -> None:
    with pytest.raises(AnalysisException, match="DELTA_"):
        next(commits(lake.spark, lake.path, "nothing"))


def test_a_path_without_a_scheme_is_one_of_sparks_default_file_system(lake: Lake, tmp_path: Path) -> None:
    """Which on a cluster is not this machine's: what is there must be found, and removed, there."""
    other = lake.spark.newSession()
    other.conf.set("fs.defaultFS", "viewfs://cluster/")
    other.conf.set("fs.viewfs.mounttable.cluster.link./data", tmp_path.as_uri())
    far = Lake(other, "/data/far")
    add_events(far, 1, 4, ["acme"])
    assert (tmp_path / "far" / "events").is_dir()
    assert not Path(far.place(EVENTS)).exists()
    assert tables_in(far) == ["events"]
    assert [one.rows for one in far.commits(EVENTS)] == [4, None]
    assert isinstance(files_of(far), HadoopFiles)
    assert isinstance(files_of(Lake(other, tmp_path.as_uri())), LocalFiles)
    files_of(far).remove("events")
    assert not far.exists(EVENTS)


def test_a_commit_of_another_writer_leaves_a_table_as_it_is(lake: Lake) -> None:
    """``deltalake`` says its numbers as numbers, and others may say what they like."""
    for batch in (1, 2):
        add_events(lake, batch, 4, ["acme"])
    had = lake.last(EVENTS)
    assert DeltaTable(lake.place(EVENTS)).optimize.compact()["numFilesAdded"] == 2
    DeltaTable(lake.place(EVENTS)).delete("ordinal = 1")
    assert [one.rows for one in lake.commits(EVENTS)] == [None, None, 4, 4, None]
    assert list(lake.commits(EVENTS)) == by_delta(lake)
    assert lake.last(EVENTS) == had
    DeltaTable(lake.place(EVENTS)).restore(2)
    assert next(lake.commits(EVENTS)) == Commit(5, restored=2)
    assert lake.last(EVENTS) == had


@pytest.mark.parametrize(
    ("said", "commit"),
    [
        ('{"operationMetrics": {"numOutputRows": 7}}', Commit(3, rows=7)),
        ('{"operationMetrics": {"numOutputRows": "7"}}', Commit(3, rows=7)),
        ('{"operationMetrics": {"numOutputRows": "many"}}', Commit(3)),
        ('{"operationMetrics": [1], "operationParameters": 2, "operation": 3}', Commit(3)),
        ('{"userMetadata": {"of": "theirs"}}', Commit(3)),
        ('{"operation": "RESTORE", "operationParameters": {"version": 2}}', Commit(3, restored=2)),
        ('{"operation": "RESTORE", "operationParameters": {"version": "new"}}', Commit(3, restored=-1)),
        ('{"operation": "RESTORE"}', Commit(3, restored=-1)),
        ('{"operationParameters": {"predicate": "\u2028\u0085\u2029"}, "userMetadata": "x"}', Commit(3, "x")),
        ("null", Commit(3)),
        ("7", Commit(3)),
    ],
)
def test_what_is_not_ours_in_a_commit_may_be_anything(said: str, commit: Commit) -> None:
    assert module._commit(3, f'{{"add": {{"path": "\u2028"}}}}\n{{"commitInfo":{said}}}\n') == commit
    assert module._commit(3, f'{{ "commitInfo" : {said} }}') == commit
