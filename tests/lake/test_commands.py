"""The commands of an operator: what they answer, to a program and to a person, and their exit codes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import msgspec
import pytest
from click.core import ParameterSource
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from tests.conftest import Servers, emptied
from tests.lake import program
from tests.lake.filling import fill, filled, with_log
from tests.lake.rows import add_events
from tests.lake.shop import archive
from tests.lake.span_events import a_span, body_of
from tests.waiting import until
from toril.aggregate import Aggregate
from toril.cli.careful import INTERRUPTED, Refused
from toril.cli.lake import generations, projections, replay, working
from toril.cli.lake import promote as promoting
from toril.cli.lake.audit import try_to_write
from toril.cli.lake.projections import standing_still
from toril.cli.lake.target import ui
from toril.cli.main import cli
from toril.cli.show import errors
from toril.connection.open import URL_VARIABLE
from toril.errors import InvalidValue
from toril.events import NewEvent
from toril.lake import progress
from toril.lake.errors import LakeError
from toril.lake.generations import Generation, Plan, table_of
from toril.lake.lake import Lake, Record
from toril.lake.progress import Tasks, watching_all
from toril.lake.runs import RUNS
from toril.lake.subjects import Code, code_of
from toril.lake.tables import EVENTS, QUARANTINE, ROLLUPS, SPANS, Table
from toril.log import Log
from toril.pipelines.spans.span import Span
from toril.pipelines.spans.summary import TraceSummary
from toril.runtime import EventSourcing
from toril.runtime.backend import GenerationError
from toril.runtime.generations import Loaded
from toril.server.setup import Settings, Setup
from toril.testing import Server

pytestmark = pytest.mark.timeout(300)

EVERYTHING = "--program=tests.lake.program:everything"
UPCASTED = "--program=tests.lake.program:spans"
TRACES = 4


@dataclass
class Operator:
    """Types commands."""

    lake: Lake
    monkeypatch: pytest.MonkeyPatch

    def types(self, *words: str, code: int = 0) -> Result:
        place = [*words, "--lake", self.lake.path]
        done = CliRunner().invoke(cli, ["lake", *place], catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done

    def lines(self, *words: str, code: int = 0) -> list[Any]:
        """What there is to read where there is no terminal."""
        return [json.loads(line) for line in self.types(*words, code=code).stdout.splitlines()]

    def asks(self, *words: str) -> Any:
        """For JSON, of what is for people everywhere."""
        return json.loads(self.types(*words, "--json").stdout)

    def sees(self, *words: str, code: int = 0) -> tuple[str, str]:
        """The answer on a terminal, and what was shown beside it."""
        with self.monkeypatch.context() as terminal:
            terminal.setenv("TTY_COMPATIBLE", "1")
            terminal.setenv("TERM", "xterm")
            terminal.setenv("COLUMNS", "160")
            terminal.setattr(errors, "is_interactive", True)  # it was made without a terminal
            done = self.types(*words, code=code)
        return click.unstyle(done.stdout), click.unstyle(done.stderr)


@pytest.fixture
def operator(lake: Lake, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.setenv(URL_VARIABLE, emptied(servers.get("valkey-standalone")).url)
    return Operator(lake, monkeypatch)


async def live_traffic() -> None:
    """Baskets and traces, and all that the program makes of them."""
    shop, ingestion = program.shop()
    async with shop.sourcing, shop.sourcing.worker(upkeep=False):
        for number in range(6):
            await shop.buy(f"b{number}", 1, 2, 3 + number)
        for tenant in ("acme", "globex"):
            done = await ingestion.record(tenant, [a_span(number) for number in range(2 * TRACES)])
            assert not done.refused

        async def settled() -> bool:
            here = [(shop.pipeline, "basket"), (ingestion.spans, "trace_summary")]
            return not any([(await one.service.standing(name)).behind for one, name in here])

        await until(settled)


@contextmanager
def workers() -> Iterator[None]:
    """Workers of the program, while something else is done."""
    over = threading.Event()

    async def work() -> None:
        shop, _ = program.shop()
        async with shop.sourcing, shop.sourcing.worker(upkeep=False):
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(asyncio.run, work())
        try:
            yield
        finally:
            over.set()
            working.result()


@pytest.mark.timeout(900)
def test_a_day_of_an_operator(operator: Operator, tmp_path: Path) -> None:
    asyncio.run(live_traffic())
    *_, ended = operator.lines("run", "--once", EVERYTHING)
    assert (ended["outcome"], ended["tables"]["spans"]["behind"]) == ("done", 0)

    with pytest.raises(InvalidValue, match=r"PROJECTION 'nothing' .* there is none; there are: shop/basket"):
        operator.types("replay", "nothing", EVERYTHING)
    for wrong in ("{}x", "²"):
        with pytest.raises(InvalidValue, match=f"--cut '{re.escape(wrong)}' is not valid: positions like"):
            operator.types("replay", "basket", EVERYTHING, "--cut", wrong)
    for wrong in ("²", "0", "x"):
        with pytest.raises(InvalidValue, match=f"ONE '{wrong}' is not valid: the number of a generation, or"):
            operator.types("diff", "basket", wrong, EVERYTHING)
    with pytest.raises(InvalidValue, match=r"cut 00 '999@1-0' is not valid: it is in the future"):
        operator.types("replay", "basket", EVERYTHING, "--cut", '{"00": [999, "1-0"]}')
    assert {one["number"] for one in operator.asks("generations", EVERYTHING) if one["lake"]} == set()

    first, *_, done = operator.lines("replay", "basket", EVERYTHING, "--version-of-code", "cents")
    assert (first["what"], first["engine"]) == ("began", "fold")
    assert first["spark_ui"] == ui(operator.lake.spark)
    assert (done["what"], done["number"], done["rows"], done["state"]) == ("done", 2, 6, "whole")
    assert done["failed"] == 0
    with operator.monkeypatch.context() as often:
        often.setattr(working, "SAY_EVERY", 0.0)
        often.setattr(progress, "LOOK_EVERY", 0.05)
        began, *far, found = operator.lines("diff", "basket", "live", EVERYTHING, code=1)
    assert (began["what"], began["doing"]) == ("began", "comparing")
    # There are none where Spark was done between two looks: the test of lines has some in any case.
    assert all(one["what"] == "progress" and one["seconds"] > 0 for one in far)
    assert (found["one"], found["other"]) == ("generation 2", "live")
    assert (found["compared"], found["equal"], found["differences"][0]["count"]) == (6, 0, 6)
    *_, done = operator.lines("replay", "trace_summary", EVERYTHING)
    assert (done["engine"], done["rows"]) == ("native", TRACES)

    promote(operator)
    since(operator)
    *_, then = operator.lines("state", "acme", "basket", "b1", "--version", "2", EVERYTHING)
    assert (then["shop/basket"]["version"], then["shop/basket"]["state"]) == (2, {"sum": 300, "events": 2})

    audit(operator, tmp_path / "audit.html")
    upkeep(operator, tmp_path / "clickhouse")
    names = {one["name"]: one for one in operator.asks("tables")["tables"]}
    assert names["generations/span_ingestion/trace_summary/2"]["rows"] == TRACES // 2
    assert names["erasures"]["behind"] is None
    assert "generations/shop/basket/2" not in names, "it is retired"
    runs = operator.asks("runs", "--limit", "100")["runs"]
    assert all(one["ended_at"] > one["started_at"] for one in runs)
    back = {"projection": "shop/basket", "back": True, "generation": 1, "before": 2}
    assert next(one["arguments"] for one in runs if one["what"] == "promote") == back
    outcomes = {(one["what"], one["outcome"]) for one in runs}
    assert outcomes >= {("run", "done"), ("replay", "failed"), ("replay", "done"), ("promote", "done")}
    assert outcomes >= {("audit", "done"), ("audit", "failed"), ("maintain", "done"), ("load", "done")}
    assert outcomes >= {("retire", "done"), ("diff", "done"), ("erase", "done")}


def since(operator: Operator) -> None:
    """Of what was recorded from a time on."""
    bought = operator.lake.read(EVENTS).where("aggregate_type = 'basket'")
    rows = sorted((row["recorded_at"], row["aggregate_id"]) for row in bought.collect())
    then = rows[len(rows) // 2][0]
    said = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=then // 1000)).isoformat()
    *_, done = operator.lines("replay", "basket", EVERYTHING, "--since", said, "--only-look")
    later = [ident for recorded, ident in rows if recorded >= then]
    assert (done["number"], done["rows"], done["filters"]["since"]) == (3, len(set(later)), then)


def promote(operator: Operator) -> None:
    """There, back, and gone."""
    with pytest.raises(Refused, match="promote asks first, and there is no terminal"):
        operator.types("promote", "basket", EVERYTHING)
    with workers():
        began, *_, done = operator.lines("promote", "basket", EVERYTHING, "--yes", "--patience", "60s")
        assert began == {"what": "began", "doing": "promoting", "spark_ui": ui(operator.lake.spark)}
        assert done == {"what": "promoted", "generation": 2, "before": 1, "failed": 0}
        with pytest.raises(GenerationError, match="readers see generation 2"):
            operator.types("retire", "basket", "2", EVERYTHING, "--yes")
        (back,) = operator.lines("promote", "basket", "--back", EVERYTHING, "--yes")
        assert back == {"what": "taken back", "generation": 1, "before": 2}
    with operator.monkeypatch.context() as often:
        often.setattr(working, "SAY_EVERY", 0.0)
        *far, gone = operator.lines("retire", "basket", "2", EVERYTHING, "--yes")
    assert [(one["rows"], one["of_rows"]) for one in far if "rows" in one][-1:] == [(6, 6)]
    assert gone == {"projection": "shop/basket", "retired": 2, "live_states": 6}
    there = {one["number"]: one for one in operator.asks("generations", "basket", EVERYTHING)}
    assert there[1]["live"]["state"] == "current"
    assert (there[2]["lake"]["state"], there[2]["live"]["state"]) == ("retired", "retired")


def audit(operator: Operator, page: Path) -> None:
    """What is whole, and then has lost a row."""
    *_, found = operator.lines("audit", "--report", str(page))
    assert (found["ok"], found["problems"]) == (True, 0)
    assert {one["name"]: one["looked"] for one in found["checks"]}["live"] == TRACES
    assert page.read_text().startswith("<!doctype html>")
    lake = operator.lake
    lake.spark.sql(f"DELETE FROM {lake.sql_name(SPANS)} WHERE tenant = 'globex' AND span_id LIKE '%1'")
    with operator.monkeypatch.context() as full:
        full.setattr(Path, "write_text", no_room)
        done = CliRunner().invoke(
            cli, ["lake", "audit", "--only=spans", f"--report={page}", "--lake", lake.path]
        )
    assert "--report" in str(done.exception)
    assert "is not valid: a file that can be written (no room)" in str(done.exception)
    assert page.read_text().startswith("<!doctype html>"), "that of before"
    found = json.loads(done.stdout.splitlines()[-1])
    (check,) = found["checks"]
    assert [(one["kind"], one["count"]) for one in check["findings"]] == [("event in neither", 1)]
    shown, beside = operator.sees("audit", "--only", "spans", code=1)
    assert "1 × event in neither" in shown
    assert "1 differences" in shown
    assert "0 of 2, " in beside, "how far it is,"
    assert " a second" in beside, "and Spark with it"


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "no room")


def test_a_report_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    """One that is there stays as it is, and nothing is left where none was."""
    there, link = tmp_path / "there.html", tmp_path / "link.html"
    there.write_text("old")
    link.symlink_to(tmp_path / "new.html")
    for good in (there, link, tmp_path / "other.html"):
        try_to_write(good)
    assert there.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [link, there]
    for wrong in (tmp_path / "folder" / "a.html", there / "a.html", tmp_path / ("a" * 300)):
        with pytest.raises(InvalidValue, match=r"^--report .* is not valid: a file that can be written \("):
            CliRunner().invoke(cli, ["lake", "audit", "--report", str(wrong)], catch_exceptions=False)


def upkeep(operator: Operator, clickhouse: Path) -> None:
    """Maintained, served, and one tenant less."""
    began, *kept = operator.lines("maintain", "--table", "events", "--table", "spans")
    assert began == {"what": "began", "doing": "looking at the tables", "spark_ui": ui(operator.lake.spark)}
    done = [(one["table"], one["problems"]) for one in kept if "what" not in one]  # the others are progress
    assert done == [("events", []), ("spans", [])]
    *_, loaded = operator.lines("load", "--directory", str(clickhouse))
    assert [(one["table"], one["rows"] > 0) for one in loaded["tables"]] == [
        ("lake_trace_summaries", True),
        ("lake_rollups", True),
    ]
    *_, would = operator.lines("erase", "globex", "--dry-run")
    shown, beside = operator.sees("erase", "globex", "--dry-run")
    *_, erased = operator.lines("erase", "globex", "--yes")
    rows = {one["table"]: one["rows"] for one in erased["tables"]}
    assert {one["table"]: one["rows"] for one in would["tables"]} == rows
    assert (would["dry_run"], would["rows"]) == (True, erased["rows"])
    assert "trace_summaries" in shown
    assert "nothing was changed" in beside
    assert {one["table"]: one["rows"] for one in erased["tables"]}["events"] == 2 * TRACES
    assert not erased["remains"]


def test_aggregates_that_stand_still_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(projection="shop/basket", number=2, cut={}, engine="fold", code=Code())
    stopped = "of its aggregates stand still, at an event that the projection could not take"
    for failed in (0, 1200):
        made = Generation(plan, 2, rows=5000, failed=failed)
        replay._answer(made, replay._Shown(None, None), 1.0, None, json_=False)
        told = [" ".join(capsys.readouterr().out.split()), promoting._question(made)]
        assert [f"1,200 {stopped}" in one for one in told] == [bool(failed)] * 2
        assert generations._failed(made, None) == failed
        assert generations._failed(replace(made, retired_at=1), None) == 0
    assert standing_still(1).startswith("1 of its aggregates stands still")


@pytest.mark.timeout(900)
def test_what_is_cold_is_proved_compared_promoted_and_retired(operator: Operator, tmp_path: Path) -> None:
    """Beside a ``toril up`` on an engine of its own, which is ended for it, as the guide says."""
    home = tmp_path / "home"
    settings = Settings(
        redis=program.spans.url,
        home=home,
        partitions=2,
        quiet=timedelta(milliseconds=100),
        debounce=timedelta(milliseconds=100),
    )
    spans = [a_span(number) for number in range(6)]
    traces = {span.trace_id for span in spans}

    async def up(done: Callable[[Setup], Awaitable[bool]], *some: Span) -> None:
        async with Setup.open(settings) as setup, setup.worker():
            if some:
                assert not (await setup.ingestion.record("acme", list(some))).refused
            await until(lambda: done(setup))

    async def all_cold(setup: Setup) -> bool:
        assert setup.sourcing.log is not None
        there = {one.id async for one in setup.cold.aggregates() if one.type == "span"}
        return there == traces and not sum(one.hot for one in await setup.sourcing.log.standings())

    async def caught_up(setup: Setup) -> bool:
        found = await setup.ingestion.spans.service.generations.standings("trace_summary")
        return [(one.state, one.behind) for one in found if one.number == 2] == [("ready", 0)]

    async def is_up(_: Setup) -> bool:
        return True

    here = ("--directory", str(home / "clickhouse"))
    asyncio.run(up(is_up))
    operator.lines("run", "--once")  # the log keeps for it what comes from now on
    asyncio.run(up(all_cold, *spans))
    operator.lines("run", "--once")
    *_, told = operator.lines("audit", "--only", "live", code=1)
    (finding,) = told["checks"][0]["findings"]
    assert finding["kind"] == "not readable"
    assert "are in a cold store: name it with --clickhouse" in finding["reason"]
    operator.lines("audit", "--only", "live", "--only", "versions", "--no-live")
    *_, told = operator.lines("audit", "--only", "live", *here)
    assert told["checks"][0]["looked"] == len(traces)

    *_, made = operator.lines("replay", "trace_summary")
    assert (made["number"], made["rows"], made["keeps_log"]) == (2, len(traces), True)
    *_, found = operator.lines("diff", "trace_summary", "2", *here)
    assert (found["compared"], found["equal"]) == (len(traces), len(traces))
    late = a_span(1000, trace_id=f"{1000:032x}")
    traces.add(late.trace_id)
    asyncio.run(up(all_cold, late))
    promote = ("promote", "trace_summary", "2", "--yes", "--within", "0", *here)
    with pytest.raises(LakeError, match=r"\d events behind after 1 s \(no worker runs it\)"):
        operator.types(*promote, "--patience", "1s")
    asyncio.run(up(caught_up))
    *_, done = operator.lines(*promote)
    assert (done["what"], done["generation"], done["before"]) == ("promoted", 2, 1)
    *_, gone = operator.lines("retire", "trace_summary", "1", "--yes", *here)
    assert gone["live_states"] == len(traces)
    operator.lines("run", "--once")
    *_, told = operator.lines("audit", "--only", "live", *here)
    assert told["checks"][0]["looked"] == len(traces)
    with pytest.raises(InvalidValue, match="clickhuose' is not valid: a directory that is there"):
        operator.types("audit", "--directory", str(home / "clickhuose"))
    with pytest.raises(InvalidValue, match="one of --clickhouse and --directory"):
        operator.types("audit", *here, "--clickhouse", "clickhouse://h/d")


def test_code_that_has_changed_since_a_replay_is_told_of_or_refused(operator: Operator) -> None:
    """Before anything is asked or changed; where nobody is asked, as a line or beside the answer."""
    url = program.spans.url
    assert url is not None
    with_log(url, lambda log: log.append(Aggregate("acme", "span", "1"), [b"{}"]), partitions=2)
    here, first = code_of(TraceSummary), "span_ingestion/trace_summary"
    fields = {**here.fields, "spans": {**here.fields["spans"], "where": "otherwise"}}
    made_by = {
        2: msgspec.structs.replace(here, digest="edited"),
        3: msgspec.structs.replace(here, digest="declared", fields=fields),
    }
    for number, code in made_by.items():
        plan = Plan(projection=first, number=number, cut={}, engine="native", code=code)
        operator.lake.ensure(table_of(plan))
        nothing = operator.lake.read(plan.name)
        operator.lake.append(nothing, table_of(plan), Record(batch=2, positions={}))
    with pytest.raises(LakeError, match=r"generation 3 of .* with other fields .* \(spans\)"):
        operator.types("promote", "trace_summary")
    edited = ("promote", "trace_summary", "2")
    questions: list[str] = []

    async def asked(_: str, question: str, yes: bool) -> None:
        questions.append(question)
        if not yes:
            raise Refused("no")

    operator.monkeypatch.setattr(promoting, "make_sure", asked)
    with pytest.raises(Refused):
        operator.types(*edited)
    changed = f"it was made by code edited, and goes on by {here.digest[:8]}"
    assert f"{changed}. Let all readers of {first} see generation 2" in questions[0]
    # Nothing was reserved for it in the log: so it ends after that.
    place = ["--lake", operator.lake.path]
    done = CliRunner().invoke(cli, ["lake", *edited, "--yes", *place])
    assert "reserve one first" in str(done.exception)
    began, line = map(json.loads, done.stdout.splitlines())
    assert (began["what"], line["what"]) == ("began", "other code")
    assert (line["made_by"], line["goes_on_by"]) == (str(made_by[2]), str(here))


@pytest.mark.parametrize("command", [("generations",), ("promote", "trace_summary", "--back", "--yes")])
def test_a_misspelt_log_is_not_made(
    command: tuple[str, ...], servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = emptied(servers.get("valkey-standalone"))
    assert isinstance(server, Server)
    monkeypatch.setenv(URL_VARIABLE, server.url)

    def types(*more: str) -> None:
        CliRunner().invoke(cli, ["lake", *command, *more], catch_exceptions=False)

    with pytest.raises(InvalidValue, match="log 'lgo' is not valid: there is no log of this name at"):
        types("--log", "lgo")
    with pytest.raises(
        InvalidValue, match="--log 'lgo' .* --program tests.lake.program:everything has log 'log'"
    ):
        types("--log", "lgo", EVERYTHING)
    with pytest.raises(InvalidValue, match="log 'log' is not valid: there is no log of this name at"):
        types("--log", "log", EVERYTHING)
    assert server.ask("DBSIZE") == 0


def test_old_events_become_spans_by_the_upcasters_of_the_program(operator: Operator) -> None:
    """On the way in; after the fact, where that was not said; and the audit knows of it."""
    lake, url = operator.lake, program.spans.url
    assert url is not None

    def append(number: int, **said: str) -> None:
        span = a_span(number)
        data = {name: value for name, value in msgspec.to_builtins(span).items() if name != "name"}
        body = body_of(span, data={**data, **said})

        async def work(log: Log) -> None:
            await log.append(Aggregate("acme", "span", span.trace_id), [body])

        with_log(url, work, partitions=2)

    append(1, title="Search")
    operator.lines("run", "--once")
    (refused,) = lake.read(QUARANTINE).collect()
    assert refused["reason"] == "data.name: it is missing"
    *_, tried = operator.lines("requeue")
    assert (tried["tried"], tried["read"]) == (1, 0)
    *_, tried = operator.lines("requeue", UPCASTED)
    assert (tried["tried"], tried["read"], tried["refused"]) == (1, 1, 0)

    append(2, title="Plan")
    append(3, name="CHAT")
    *_, ended = operator.lines("run", "--once", UPCASTED)
    assert ended["outcome"] == "done"
    names = [row["name"] for row in lake.read(SPANS).orderBy("span_id").collect()]
    assert names == ["search", "plan", "chat"]
    assert lake.read(QUARANTINE).count() == 1
    operator.lines("audit", "--only", "spans", "--no-live", UPCASTED)
    operator.lines("audit", "--only", "spans", "--no-live", code=1)

    with pytest.raises(InvalidValue, match="give --program or --upcasters, and not both"):
        operator.types("requeue", UPCASTED, "--upcasters", "tests.lake.program:UPCASTERS")
    with pytest.raises(Refused, match="no pipeline with aggregates of type 'span'"):
        operator.types("run", "--once", "--program", "tests.lake.program:baskets")


def test_a_command_that_cannot_be_told_a_log_takes_that_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As requeue does, which reads no log."""
    made = ModuleType("spans_of_a_test")
    made.sourcing = EventSourcing("redis://127.0.0.1:1", log="spans")  # type: ignore[attr-defined]
    made.sourcing.register_pipeline().with_name("spans").with_aggregate_type("span").build()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    said = f"{made.__name__}:sourcing"
    with click.Context(click.Command("requeue")):
        found = projections.program(said, None, "log")
    assert (found.log, found.upcasters) == ("spans", None)
    with click.Context(click.Command("replay")) as context:
        context.set_parameter_source("log_name", ParameterSource.COMMANDLINE)
        with pytest.raises(InvalidValue, match="--log 'log' is not valid: .* has log 'spans'"):
            projections.program(said, None, "log")


@contextmanager
def stopped_by(which: signal.Signals, when: Callable[[], bool]) -> Iterator[None]:
    """Sent as soon as something is so: while a command runs that would not have ended by itself."""
    over = threading.Event()

    def watch() -> None:
        while not when():
            if over.wait(0.02):
                return
        os.kill(os.getpid(), which)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield
        finally:
            over.set()
            watching.result()


def ctrl_c(when: Callable[[], bool]) -> AbstractContextManager[None]:
    return stopped_by(signal.SIGINT, when)


def has_commit(lake: Lake, table: Table, version: int) -> bool:
    return (Path(lake.place(table)) / "_delta_log" / f"{version:020d}.json").exists()


def test_a_run_stops_at_ctrl_c_and_another_goes_on_where_it_was(operator: Operator) -> None:
    """With --once it is not done then, and says so; without, nothing else was to be expected."""
    lake, url = operator.lake, program.spans.url
    assert url is not None
    filled(url, 30, partitions=2)
    with ctrl_c(lambda: has_commit(lake, EVENTS, 1)):
        stopped = operator.types("run", "--once", "--most", "10", code=INTERRUPTED)
    assert "SIGINT: finishing the batches under way; once more to end at once" in stopped.stderr
    ended = json.loads(stopped.stdout.splitlines()[-1])
    assert (ended["what"], ended["outcome"], ended["problems"]) == ("ended", "stopped", [])
    assert 0 < lake.read(EVENTS).count() < 30

    def rolled_up() -> bool:
        if not has_commit(lake, ROLLUPS, 1):
            return False
        return sum(ordinal for ordinal, _ in lake.last(ROLLUPS).positions.values()) == 30

    with ctrl_c(rolled_up):
        *_, ended = operator.lines("run", "--every", "0")
    assert ended["outcome"] == "stopped"
    there = lake.read(EVENTS).select("log_partition", "ordinal")
    assert there.count() == there.distinct().count() == 30
    assert [one["outcome"] for one in operator.asks("runs")["runs"]] == ["stopped", "stopped"]


def test_a_replay_stops_when_it_is_told_and_the_same_command_takes_it_up(
    operator: Operator, tmp_path: Path
) -> None:
    """By SIGTERM, as schedulers do, which is taken for Ctrl-C."""
    url, gate = program.spans.url, tmp_path / "gate"
    assert url is not None
    body = NewEvent(type="came", id="1", data={"gate": str(gate)}, occurred_at=1).to_bytes()
    with_log(url, lambda log: fill(log, [body] * 8, aggregates=4), partitions=2)
    archive(operator.lake, url)
    command = ("replay", "waits", "--program", "tests.lake.program:Waits", "--only-look")
    gate.touch()
    with stopped_by(signal.SIGTERM, gate.with_suffix(".reached").exists):
        stopped = operator.types(*command, code=INTERRUPTED)
    gate.unlink()
    assert "stopped; the same command takes it up again" in stopped.stderr
    began = json.loads(stopped.stdout.splitlines()[0])
    *_, done = operator.lines(*command)
    assert (done["what"], done["number"], done["state"]) == ("done", began["generation"], "whole")
    assert done["rows"] == 8
    assert [one["outcome"] for one in operator.asks("runs")["runs"]] == ["done", "stopped"]


def test_upkeep_is_done_again_and_again_until_ctrl_c(operator: Operator) -> None:
    lake = operator.lake
    add_events(lake, 1, 4, ["acme"])
    # The table runs is made, and then has a row when a round begins and one when it ends.
    with ctrl_c(lambda: has_commit(lake, RUNS, 4)):
        said = operator.lines("maintain", "--every", "100ms", "--table", "events")
    rounds = [one for one in said if "table" in one]
    assert len(rounds) >= 2
    assert {(one["table"], *one["problems"]) for one in rounds} == {("events",)}


def test_without_a_terminal_progress_is_lines(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(working, "SAY_EVERY", 0.0)
    with working.working(spark, "comparing", quiet=True) as shown:
        shown.tasks(Tasks(1, 2))
    told = replay._Shown(None, None)
    plan = Plan(projection="a/b", number=2, cut={}, engine="fold", code=Code(), portions=4)
    told.began(plan, events=1000, done=1)
    told.tasks(1, Tasks(1, 2))
    promoting._Shown(None).loading(Loaded(placed=3), 12)
    began, *lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert began == {"what": "began", "doing": "comparing", "spark_ui": ui(spark)}
    said = [one for one in lines if one["what"] == "progress"]
    assert [one["doing"] for one in said] == ["comparing", "replaying", "loading"]
    assert (said[0]["tasks"], said[1]["portion"], said[2]["done"]) == (1, 2, 3)
    for one in said:
        assert one["per_second"] > 0
        assert one["seconds_left"] >= 0


def test_what_spark_does_in_any_thread_is_counted(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOOK_EVERY", 0.005)
    told: list[Tasks] = []
    with ThreadPoolExecutor(1) as pool, watching_all(spark, told.append):
        while not told or told[-1].done < 20:
            pool.submit(spark.range(1000).repartition(20).count).result()
    assert all(done <= of for done, of in told)
    assert [one.done for one in told] == sorted(one.done for one in told)
