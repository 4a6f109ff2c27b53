"""Files of tables: found where Spark has them, and removed so that what is left can be removed as well."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.lake.rows import add_events
from toril.lake.errors import LakeError
from toril.lake.files import files_of, tables_in
from toril.lake.lake import Lake
from toril.lake.storage import Files, HadoopFiles, LocalFiles, local_folder
from toril.lake.tables import EVENTS


class _Cut(Exception):
    """The process has ended here."""


def cut_off_after(files: LocalFiles | HadoopFiles, most: int) -> Files:
    """Files of which so many are removed."""
    there, remove_file = iter(range(most)), files._remove_file

    def remove(path: str) -> None:
        if next(there, None) is None:
            raise _Cut
        remove_file(path)

    files._remove_file = remove  # type: ignore[method-assign]
    return files


@pytest.mark.parametrize("began_anew", [False, True])
@pytest.mark.parametrize("made", [LocalFiles, HadoopFiles])
def test_a_table_whose_removal_was_cut_off_is_a_table_or_nothing_and_can_be_removed(
    lake: Lake, tmp_path: Path, made: type, *, began_anew: bool
) -> None:
    """Whichever file was the last one; where the log begins with a checkpoint, up to the last two files."""
    add_events(lake, 1, 2, ["acme"])
    name = lake.sql_name(EVENTS)
    lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    for batch in (2, 3):
        add_events(lake, batch, 2, ["acme"])
    log = Path(lake.place(EVENTS), "_delta_log")
    assert (log / f"{4:020d}.json").exists() or (log / f"{3:020d}.json").exists()
    assert list(log.glob("*.checkpoint.parquet"))
    if began_anew:
        for version in (0, 1):
            for file in (*log.glob(f"{version:020d}.*"), *log.glob(f".{version:020d}.*")):
                file.unlink()
    states = set()
    for most in count():
        copy = Lake(lake.spark, tmp_path / f"{made.__name__}-{most}")  # Delta remembers what is at a path
        shutil.copytree(lake.path, copy.path)
        files = LocalFiles(Path(copy.path)) if made is LocalFiles else HadoopFiles(lake.spark, copy.path)
        try:
            cut_off_after(files, most).remove(EVENTS.name)
        except _Cut:
            left = [one for one in Path(copy.path).rglob("[!.]*") if one.is_file()]
            if began_anew and len(left) == 1:
                break  # the one gap: a checkpoint and its commit cannot go at once
            copy.check_all([EVENTS])
            states.add(copy.exists(EVENTS))
            files_of(copy).remove(EVENTS.name)
        else:
            break
        assert not Path(copy.place(EVENTS)).exists()
    assert True in states


def test_a_file_url_names_the_folder_that_it_names_to_spark(lake: Lake, tmp_path: Path) -> None:
    """Which takes it as it is written: a ``%20`` is no blank, and a ``#`` begins nothing."""
    for number, name in enumerate(("my%20lake", "a blank", "q?x#y", "c:d")):
        for begin in ("file:", "file://", ""):
            place = f"{begin}{tmp_path}/{number}{len(begin)}/{name}"
            lake.spark.range(1).write.format("delta").save(f"{place}/table")
            folder = tmp_path / f"{number}{len(begin)}" / name
            assert local_folder(place) == folder
            assert tables_in(Lake(lake.spark, place)) == ["table"]
            assert (folder / "table" / "_delta_log").is_dir()
    assert local_folder("file://host/a%20b") == Path("/a%20b")
    assert local_folder("s3a://bucket/a") is None
    assert local_folder("here/a:b") == Path("here/a:b").absolute()


def refused(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("look", [LocalFiles.folders, LocalFiles.walk])
def test_a_folder_that_may_not_be_looked_into_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[LocalFiles, str], object]
) -> None:
    (tmp_path / "file").touch()
    files = LocalFiles(tmp_path)
    assert (look(files, "nothing"), look(files, "file")) == ([], [])
    monkeypatch.setattr("os.scandir", refused)  # root, who may run this, may look everywhere
    with pytest.raises(LakeError, match=f"{tmp_path}/closed cannot be looked into: Permission denied"):
        look(files, "closed")
