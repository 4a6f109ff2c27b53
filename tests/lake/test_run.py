"""What a run holds to: every event of the log once, and the archive's floor never past what the table has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tests.conftest import Servers, emptied
from toril import connect
from toril.aggregate import Aggregate
from toril.cli.lake.target import ui
from toril.cli.main import cli
from toril.lake.archive import GROUP, EventsStep
from toril.lake.errors import LakeError, NoRoom, OtherWriter
from toril.lake.lake import Lake, Record
from toril.lake.problems import explained, no_room, passing
from toril.lake.run import Failed, LeftAlone, Line, News, Retries, Run, Wrote
from toril.lake.runs import Runs
from toril.lake.source import tails
from toril.lake.steps import Step
from toril.lake.tables import BATCH, EVENTS, Column, Table
from toril.log import Log, Retention
from toril.log.entry import Partition

T = TypeVar("T")

PLACES = Table(
    name="places",
    comment="Where events are in the log, for the tests.",
    columns=(
        Column("log_epoch", "int", "The epoch."),
        Column("log_partition", "int", "The partition."),
        Column("ordinal", "bigint", "The place."),
        BATCH,
    ),
)


class PlacesStep(Step):
    table = PLACES
    source = EVENTS

    def write(self, lake: Lake, rows: DataFrame, record: Record) -> None:
        lake.append(rows, self.table, record)


class Broken(Step):
    """Fails: the first times in a way that may pass."""

    table = Table(name="broken", comment="Never written.", columns=(BATCH,))
    source = EVENTS

    def __init__(self, passing: int) -> None:
        self.left = passing

    def write(self, lake: Lake, rows: DataFrame, record: Record) -> None:  # noqa: ARG002
        self.left -= 1
        if self.left >= 0:
            lake.spark.sql("SELECT raise_error('[DELTA_CONCURRENT_APPEND] another was first')").collect()
        raise LakeError("it does not work")


class Patient(Broken):
    """The same, and before that another was first so many times."""

    def prepare(self, lake: Lake) -> None:
        self.left -= 1
        if self.left >= 0:
            raise OtherWriter("another was first")
        super().prepare(lake)


@pytest.fixture
def url(servers: Servers) -> str:
    return emptied(servers.get("valkey-standalone")).url


def at_log(url: str, ask: Callable[[Log], Awaitable[T]], partitions: int | None = None) -> T:
    async def asked() -> T:
        async with connect(url) as redis:
            log = Log(redis, partitions=partitions)
            await log.layout()
            return await ask(log)

    return asyncio.run(asked())


def append(url: str, count: int, tenant: str = "acme", partitions: int | None = None) -> None:
    """Events, some of which cannot be read."""

    async def all_of_them(log: Log) -> None:
        for number in range(count):
            body = b'{"type":"made","id":"%d","occurred_at":1,"data":{}}' % number
            body = b"\xff not JSON" if number % 7 == 0 else body
            await log.append(Aggregate(tenant, "thing", f"t{number % 5}"), [body])

    at_log(url, all_of_them, partitions)


def floors(url: str) -> dict[str, int]:
    async def look(log: Log) -> dict[str, int]:
        return {
            str(one.partition): one.readers[GROUP].position.ordinal
            for one in await log.standings()
            if GROUP in one.readers
        }

    return at_log(url, look)


def places(lake: Lake, table: Table = EVENTS) -> list[tuple[int, int, int]]:
    rows = lake.read(table).select("log_epoch", "log_partition", "ordinal").collect()
    return sorted((row[0], row[1], row[2]) for row in rows)


def in_the_log(url: str) -> list[tuple[int, int, int]]:
    async def look(log: Log) -> list[tuple[int, int, int]]:
        found = []
        for one in (await log.layout()).partitions():
            entries = await log.store(one).page("0-0", 10_000)
            found += [(one.epoch, one.number, entry.ordinal) for entry in entries if not entry.erased]
        return sorted(found)

    return at_log(url, look)


def run_once(lake: Lake, url: str, *others: Step, most: int = 1000) -> tuple[Run, list[News]]:
    news: list[News] = []
    steps = [EventsStep(url, until=tails(url, "log"), most=most), *others]
    with Run(lake, steps, once=True, name="a run", told=news.append) as run:
        assert run.wait(240)
    return run, news


def test_all_of_the_log_is_in_the_tables_once_and_may_leave_it(lake: Lake, url: str) -> None:
    """In bounded batches; with an erased tenant; into the next epoch; after trimming."""
    append(url, 40, partitions=2)
    append(url, 3, "gone")
    at_log(url, lambda log: log.erase_tenant("gone"))
    run, news = run_once(lake, url, PlacesStep(), most=30)
    assert not run.problems
    assert places(lake) == places(lake, PLACES) == in_the_log(url)
    assert len(in_the_log(url)) == 40
    assert [one.events for one in news if isinstance(one, Wrote) and one.table == "events"] == [30, 13]
    assert sum(floors(url).values()) == 43
    assert lake.read(EVENTS).where("event_type IS NULL").count() == 6

    at_log(url, lambda log: log.choose_retention(Retention.archived_by(GROUP)))
    at_log(url, lambda log: log.resize(3))
    append(url, 10)
    before = places(lake)
    at_log(url, lambda log: log.trim())
    run, news = run_once(lake, url, PlacesStep())
    assert not run.problems
    assert {place[0] for place in places(lake)} == {1, 2}
    assert places(lake) == places(lake, PLACES) == sorted({*before, *in_the_log(url)})
    assert len(places(lake)) == 50
    assert lake.last(PLACES).positions == lake.last(EVENTS).positions


def test_a_partition_that_lost_what_is_archived_is_left_alone_and_shown(lake: Lake, url: str) -> None:
    append(url, 20, partitions=2)
    run_once(lake, url)
    had, stood = places(lake), floors(url)

    async def fail_over(log: Log) -> None:
        """What a replica is like that had not received the last two entries of partition 00."""
        store = log.store(Partition(1, 0))
        last = await store.page_back("+", 2)
        await log.redis.command("XDEL", store.keys.entries, *(entry.id for entry in last))
        await log.redis.command("HSET", store.keys.head, "ordinal", last[-1].ordinal - 1)

    at_log(url, fail_over)
    append(url, 20)
    run, news = run_once(lake, url)
    assert ["partition 00" in problem and "failover" in problem for problem in run.problems] == [True]
    assert [one.part for one in news if isinstance(one, LeftAlone)] == ["00"]
    assert [place for place in places(lake) if place[1] == 0] == [place for place in had if place[1] == 0]
    assert [p for p in places(lake) if p[1] == 1] == [p for p in in_the_log(url) if p[1] == 1]
    assert floors(url)["00"] == stood["00"]
    assert floors(url)["01"] > stood["01"]


def test_another_lake_under_the_same_name_is_refused_and_nothing_is_changed(
    lake: Lake, url: str, tmp_path: Path
) -> None:
    append(url, 10, partitions=2)
    run_once(lake, url)
    stood = floors(url)
    other = Lake(lake.spark, tmp_path / "other")
    run, _ = run_once(other, url, PlacesStep())
    assert len(run.problems) == 1
    assert "another lake" in run.problems[0]
    assert places(other) == []
    assert not other.exists(PLACES), "what it would be fed from was never ready"
    assert floors(url) == stood
    # Without --once as well: a service that does not do what it is for is to end.
    command = ["lake", "run", "--url", url, "--lake", other.path, "--json"]
    ended = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert ended.exit_code == 1
    said = json.loads(ended.stdout.splitlines()[-1])
    assert (said["what"], said["outcome"]) == ("ended", "failed")
    assert said["problems"] == run.problems
    assert floors(url) == stood


def test_what_was_trimmed_unarchived_is_said_in_numbers(lake: Lake, url: str) -> None:
    """Only where somebody has retired the archive's name."""
    append(url, 10, partitions=1)
    run_once(lake, url, most=3)
    append(url, 290)

    async def trim_all(log: Log) -> int:
        await log.retire(GROUP)
        async with log.reader("else") as reader:
            async for batch in reader.until_now():
                await batch.done()
        await log.choose_retention(Retention.archived_by("else"))
        return (await log.trim(at_once=100)).last[Partition(1, 0)]

    trimmed = at_log(url, trim_all)
    assert trimmed > 10
    run, _ = run_once(lake, url)
    assert [f"entries 11 to {trimmed:,} were trimmed" in problem for problem in run.problems] == [True]


def test_one_step_that_fails_does_not_hold_up_the_others(
    lake: Lake, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toril.lake.run.FIRST_REST", 0.01)
    append(url, 10, partitions=2)
    run, news = run_once(lake, url, Broken(passing=2), PlacesStep())
    assert run.problems == ["broken: it does not work"]
    assert [one.problem for one in news if isinstance(one, Failed)] == ["it does not work"]
    assert ["another was first" in one.problem for one in news if isinstance(one, Retries)] == [True, True]
    assert places(lake) == places(lake, PLACES) == in_the_log(url)


def test_a_run_that_goes_on_ends_with_a_step_that_has_ended_for_good(lake: Lake, url: str) -> None:
    """And not before: what may pass is tried again, more often than a float has powers of two."""
    append(url, 10, partitions=2)
    news: list[News] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toril.lake.run.FIRST_REST", 0.0)
        with Run(lake, [EventsStep(url), Patient(1100)], told=news.append) as run:
            assert run.wait(120)
    assert run.problems == ["broken: it does not work"]
    assert len([one for one in news if isinstance(one, Retries)]) == 1100
    assert [one.table for one in news if isinstance(one, Failed)] == ["broken"]
    assert places(lake) == in_the_log(url)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # which shows the error
def test_a_listener_that_fails_ends_the_run_and_does_not_leave_it_there(lake: Lake, url: str) -> None:
    append(url, 10, partitions=2)

    def deaf(news: News) -> None:
        raise ValueError(f"no ears for news of {news.table}")

    with Run(lake, [EventsStep(url), PlacesStep()], told=deaf) as run:
        assert run.wait(120)
    assert "events: no ears for news of events" in run.problems


def test_a_disk_that_is_full_is_told_and_when_there_is_room_it_goes_on(
    lake: Lake, url: str, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(url, 10, partitions=2)
    monkeypatch.setattr("toril.lake.run.LONGEST_REST", 0.3)
    small = Lake(lake.spark, small_disk / "lake")
    ballast = small_disk / "ballast"
    news: list[News] = []
    with Run(small, [EventsStep(url)], told=news.append) as run:
        wait_for(run, lambda: run.lines[0].events == 10)
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1024)):
                pass
        append(url, 10)
        wait_for(run, lambda: any(isinstance(one, Retries) for one in news))
        ballast.unlink()
        wait_for(run, lambda: run.lines[0].events == 20)
        run.stop()
        assert run.wait(120)
    assert run.problems == []
    told = [one for one in news if isinstance(one, Retries)]
    assert {(one.problem, one.again_in) for one in told} == {
        (f"there is no room left for {small.place(EVENTS)}; nothing was changed", 0.3)
    }
    assert places(small) == in_the_log(url)


def wait_for(run: Run, true: Callable[[], bool]) -> None:
    """Until something is so, while a run goes on."""
    while not true():
        assert not run.wait(0.02), run.problems


def test_a_full_disk_ends_what_is_to_end_and_other_problems_are_none() -> None:
    full = NoRoom("there is no room left for events; nothing was changed")
    assert no_room(full)
    assert not passing(full), "tried again at once, it would be no better"
    assert no_room(PySparkException("Caused by: java.io.IOException: No space left on device"))
    assert not no_room(PySparkException("Caused by: java.io.IOException: Permission denied"))
    assert not no_room(LakeError("it does not work"))


def test_problems_of_each_kind_are_counted_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a failover took: what nobody knows of is tried again as often as ever."""
    monkeypatch.setattr("toril.lake.run.FIRST_REST", 0.0)
    problems: list[Exception] = []

    def work() -> str:
        if problems:
            raise problems.pop(0)
        return "done"

    run = Run(cast("Lake", None), [])
    a_task = PySparkException("a task has died")
    problems += [OtherWriter("another was first")] * 3 + [a_task] * 2
    assert run._patiently(Line(Broken(0)), work) == "done"
    problems += [a_task, OtherWriter("another was first"), a_task, a_task]
    with pytest.raises(PySparkException):
        run._patiently(Line(Broken(0)), work)
    assert problems == []


FULL = "No space left on device"
ASIDE = r"for what Spark keeps while it works \(spark.local.dir, SPARK_LOCAL_DIRS\)"


@pytest.mark.parametrize(
    ("said", "where"),
    [
        (f"java.io.FileNotFoundException: /data/lake/events/part-0 ({FULL})", "for /data/lake/events;"),
        (
            f"java.io.IOException: {FULL}\n\tat org.apache.hadoop.fs.RawLocalFileSystem",
            "for /data/lake/events;",
        ),
        (
            f"FileNotFoundException: /tmp/blockmgr-1/0c/temp_local_2 ({FULL})",
            f"{ASIDE}, at /tmp/blockmgr-1/0c/",
        ),
        (f"error while calling spill() on Sorter@1 : {FULL}", f"{ASIDE};"),
        (
            f"java.nio.file.FileSystemException: /var/log/x: {FULL}",
            "at /var/log/x, while /data/lake/events was",
        ),
        (f"java.io.IOException: {FULL}", f"for /data/lake/events, or {ASIDE};"),
    ],
)
def test_which_disk_is_full_is_told_where_it_is_known(said: str, where: str) -> None:
    with pytest.raises(NoRoom, match=f"there is no room left {where}"), explained("/data/lake/events"):
        raise PySparkException(said)


def test_a_run_that_goes_on_takes_what_comes_until_it_is_told_to_stop(lake: Lake, url: str) -> None:
    append(url, 10, partitions=2)
    seen: list[News] = []
    with Run(lake, [EventsStep(url), PlacesStep()], told=seen.append) as run:
        for count in (10, 20):
            wait_for(run, lambda count=count: run.lines[1].events == count)  # type: ignore[misc]
            if count == 10:
                append(url, 10)
        run.stop()
        assert run.wait(120)
    assert not run.problems
    assert places(lake) == places(lake, PLACES) == in_the_log(url)
    assert sum(floors(url).values()) == 20


def test_the_commands_run_and_show_what_there_is(lake: Lake, url: str) -> None:
    append(url, 10, partitions=2)
    at = ["--url", url, "--lake", lake.path, "--json"]

    def ask(*command: str) -> list[dict[str, Any]]:
        answer = CliRunner().invoke(cli, ["lake", *command], catch_exceptions=False)
        assert answer.exit_code == 0, answer.output
        if command[0] == "run":
            return [json.loads(line) for line in answer.stdout.splitlines()]
        return [json.loads(answer.stdout)]

    began, *news, ended = ask("run", "--once", "--report-every", "1", *at)
    assert (began["what"], began["lake"]) == ("began", lake.path)
    assert began["spark_ui"] == ui(lake.spark)
    far = [one["tables"] for one in news if one["what"] == "progress"]
    assert far
    assert {name: sorted(it) for name, it in far[-1].items()} == {
        name: ["batch", "batches", "behind", "events", "events_per_second", "seconds", "seconds_left"]
        for name in ("events", "spans", "trace_summaries", "rollups")
    }
    assert {it["behind"] for tables in far for it in tables.values()} <= {None, 0, 10}
    assert {one["table"] for one in news if one["what"] == "wrote"} >= {"events", "spans", "rollups"}
    assert (ended["outcome"], ended["problems"]) == ("done", [])
    assert {name: it["behind"] for name, it in ended["tables"].items()} == dict.fromkeys(ended["tables"], 0)
    (seen,) = ask("tables", *at)
    by_name = {one["name"]: one for one in seen["tables"]}
    assert (by_name["events"]["rows"], by_name["events"]["batch"], by_name["events"]["behind"]) == (10, 1, 0)
    assert by_name["quarantine"]["rows"] == 2
    (seen,) = ask("runs", "--lake", lake.path, "--json")
    assert [(one["what"], one["outcome"], one["rows"]["events"]) for one in seen["runs"]] == [
        ("run", "done", 10)
    ]


@pytest.mark.usefixtures("spark")
def test_a_lake_that_cannot_be_written_to_is_one_clear_error(url: str, tmp_path: Path) -> None:
    append(url, 1, partitions=1)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LakeError, match="cannot be written to by this user; nothing was changed"):
        CliRunner().invoke(
            cli,
            ["lake", "run", "--once", "--url", url, "--lake", str(tmp_path / "file" / "lake")],
            catch_exceptions=False,
        )
    assert floors(url) == {}


def test_runs_are_recorded_with_what_became_of_them(lake: Lake) -> None:
    runs = Runs(lake)
    with runs.recorded("run", {"once": True}) as one:
        one.rows["events"] = 7
        one.seconds["events"] = 0.5
    with pytest.raises(LakeError), runs.recorded("replay", {"projection": "trace"}):
        raise LakeError("no such projection")
    begun = runs.begin("audit", {})
    last, replay, first = runs.last(10)
    assert (last.run, last.outcome, last.ended_at) == (begun.run, "running", None)
    assert (replay.what, replay.outcome, replay.problem) == ("replay", "failed", "no such projection")
    assert (first.outcome, first.rows, first.seconds) == ("done", {"events": 7}, {"events": 0.5})
    assert first.arguments == {"once": True}
    assert first.ended_at is not None
    assert first.ended_at >= first.started_at
