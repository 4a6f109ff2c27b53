"""What is not a table of this Toril, at the place of one: an error that names it, and nothing is changed."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.conftest import Servers, emptied
from tests.lake.filling import filled, with_log
from toril.cli.main import cli
from toril.errors import TorilError
from toril.lake.archive import EventsStep
from toril.lake.erase import erase
from toril.lake.errors import ForeignTable, LakeError, NewerTable
from toril.lake.history import history
from toril.lake.lake import Lake
from toril.lake.maintain import maintain
from toril.lake.run import Run
from toril.lake.serving import load
from toril.lake.spans import SpansStep
from toril.lake.steps import Step
from toril.lake.tables import BATCH, EVENTS, NAMES, QUARANTINE, SPANS, Table
from toril.log import Log
from toril.stores.clickhouse import Database

Put = Callable[[Lake, str], None]

LATER = "has form 99, and this Toril .* knows forms up to"
GENERATION = "generations/span_ingestion/trace_summary/2"


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A table of nobody knows whom, and one of a later Toril."""
    lake = Lake(spark, tmp_path_factory.mktemp("made"))
    spark.range(3).write.format("delta").save(lake.place("foreign"))
    newer = Table(name="newer", comment="Of a later Toril.", columns=(BATCH,))
    lake.ensure(newer)
    spark.sql(f"ALTER TABLE {lake.sql_name(newer)} SET TBLPROPERTIES ('toril.form' = '99')")
    return lake


@pytest.fixture
def foreign(made: Lake) -> Put:
    return lambda lake, name: _copied(made, "foreign", lake, name)


@pytest.fixture
def newer(made: Lake) -> Put:
    return lambda lake, name: _copied(made, "newer", lake, name)


def _copied(made: Lake, which: str, lake: Lake, name: str) -> None:
    place = Path(lake.place(name))
    shutil.copytree(made.place(which), place, ignore=shutil.ignore_patterns("*.crc"))
    for commit in (place / "_delta_log").glob("*.json"):
        commit.write_text(commit.read_text().replace('"toril.table":"newer"', f'"toril.table":"{name}"'))


def a_letter(lake: Lake, name: str) -> None:
    place = Path(lake.place(name))
    place.mkdir(parents=True)
    (place / "letter.txt").write_text("dear")


@pytest.fixture
def url(servers: Servers) -> Iterator[str]:
    """A log that nobody reads, before and after."""
    url = emptied(servers.get("valkey-standalone")).url
    filled(url, 6, partitions=2)
    yield url
    assert with_log(url, readers) == [[], []]


async def readers(log: Log) -> list[list[str]]:
    return [list(one.readers) for one in await log.standings()]


def files(lake: Lake) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(lake.path).rglob("*") if path.is_file()}


def refused(lake: Lake, name: str, error: type[LakeError], rule: str, *command: str) -> None:
    """One error, which names the place and the rule; and all files are as they were."""
    before = files(lake)
    with pytest.raises(error, match=f"{re.escape(lake.place(name))} {rule}"):
        CliRunner().invoke(cli, ["lake", *command, "--lake", lake.path], catch_exceptions=False)
    assert files(lake) == before


@pytest.mark.parametrize("kind", ["foreign", "files", "newer"])
def test_a_run_begins_nothing_where_any_table_is_not_what_it_must_be(
    spark: SparkSession, url: str, tmp_path: Path, foreign: Put, newer: Put, kind: str
) -> None:
    put, error, rule = {
        "foreign": (foreign, ForeignTable, "is a table, and not Toril's"),
        "files": (a_letter, ForeignTable, "has files, and is not Toril's table"),
        "newer": (newer, NewerTable, LATER),
    }[kind]
    for name in NAMES:
        lake = Lake(spark, tmp_path / name)
        put(lake, name)
        refused(lake, name, error, rule, "run", "--once", "--url", url)


def test_neither_does_a_run_of_a_program(lake: Lake, url: str, foreign: Put) -> None:
    foreign(lake, "quarantine")
    before = files(lake)
    with pytest.raises(ForeignTable, match="quarantine"), Run(lake, [EventsStep(url), SpansStep()]):
        pass
    with pytest.raises(ForeignTable, match="quarantine"):
        SpansStep().prepare(lake)
    assert files(lake) == before


@pytest.mark.parametrize("kind", ["foreign", "newer"])
def test_a_step_makes_nothing_of_a_source_that_is_not_one(
    lake: Lake, url: str, foreign: Put, newer: Put, kind: str
) -> None:
    (newer if kind == "newer" else foreign)(lake, "events")
    before = files(lake)
    steps: list[Step] = [EventsStep(url), SpansStep()]
    for step in steps:
        with pytest.raises(NewerTable if kind == "newer" else ForeignTable, match="events"):
            step.prepare(lake)
        step.close(lake)
    assert files(lake) == before


def test_no_command_touches_a_lake_with_a_table_of_a_later_version(
    lake: Lake, url: str, tmp_path: Path, newer: Put
) -> None:
    lake.ensure(EVENTS)
    newer(lake, "rollups")
    for command in (
        ["maintain"],
        ["maintain", "--dry-run", "--table", "events"],
        ["erase", "acme", "--yes"],
        ["load", "rollups", "--directory", str(tmp_path / "clickhouse")],
        ["audit", "--no-log"],
        ["tables", "--url", url],
    ):
        refused(lake, "rollups", NewerTable, LATER, *command)
    before = files(lake)
    with pytest.raises(NewerTable):
        maintain(lake)
    with pytest.raises(NewerTable):
        erase(lake, "acme")
    with pytest.raises(NewerTable):
        asyncio.run(load(lake, cast("Database", None), "rollups"))  # which is not asked anything yet
    assert files(lake) == before


def test_nor_one_with_a_generation_of_a_later_version(lake: Lake, url: str, newer: Put) -> None:
    lake.ensure(EVENTS)
    newer(lake, GENERATION)
    of_it = ("trace_summary", "2", "--url", url)
    for command in (
        ["maintain"],
        ["erase", "acme", "--yes"],
        ["generations", "--url", url],
        ["diff", *of_it],
        ["promote", *of_it, "--yes"],
        ["retire", *of_it, "--yes"],
    ):
        refused(lake, GENERATION, NewerTable, LATER, *command)


def test_a_place_without_a_lake_is_one_error_and_none_is_made_there(
    lake: Lake, url: str, tmp_path: Path
) -> None:
    """However it was mistyped: only ``run`` makes a lake."""
    of_it = ("trace_summary", "1", "--url", url)
    for command in (
        ["replay", "trace_summary", "--url", url],
        ["load", "--directory", str(tmp_path / "clickhouse")],
        ["maintain"],
        ["maintain", "--dry-run"],
        ["erase", "acme", "--yes"],
        ["requeue"],
        ["audit", "--no-log"],
        ["diff", *of_it],
        ["promote", *of_it, "--yes"],
        ["retire", *of_it, "--yes"],
        ["rewind", "00", "--yes", "--url", url],
        ["state", "acme", "span", "1", "--url", url],
    ):
        with pytest.raises(TorilError, match=r"there is no (lake at|table \w+ in)|there is none|has: none"):
            CliRunner().invoke(cli, ["lake", *command, "--lake", lake.path], catch_exceptions=False)
        assert not Path(lake.path).exists(), command
    Path(lake.path).mkdir()
    with pytest.raises(LakeError, match="there is no lake at"):
        erase(lake, "acme")
    assert files(lake) == {}


@pytest.mark.parametrize("table", [SPANS, QUARANTINE], ids=lambda table: table.name)
def test_history_is_not_read_from_a_table_of_a_later_version(
    lake: Lake, url: str, newer: Put, table: Table
) -> None:
    for one in (EVENTS, SPANS, QUARANTINE):
        if one is not table:
            lake.ensure(one)
    newer(lake, table.name)
    with pytest.raises(NewerTable, match=table.name), history(lake, url, "log", spans=True):
        pass
    with history(lake, url, "log") as all_of_it:
        assert all_of_it.count == 6
