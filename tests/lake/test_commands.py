"""The commands of an operator: what they answer, to a program and to a person, and their exit codes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from tests.conftest import Servers, emptied
from tests.lake import program
from tests.lake.filling import with_log
from tests.lake.span_events import a_span, body_of
from tests.waiting import until
from toril.aggregate import Aggregate
from toril.cli.careful import Refused
from toril.cli.main import cli
from toril.cli.show import errors
from toril.connection.open import URL_VARIABLE
from toril.errors import InvalidValue
from toril.lake import progress
from toril.lake.lake import Lake
from toril.lake.progress import Tasks, watching_all
from toril.lake.tables import QUARANTINE, SPANS
from toril.log import Log
from toril.runtime.backend import GenerationError

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
    with pytest.raises(InvalidValue, match=r"--cut '\{\}x' is not valid: positions like"):
        operator.types("replay", "basket", EVERYTHING, "--cut", "{}x")
    with pytest.raises(InvalidValue, match=r"cut 00 '999@1-0' is not valid: it is in the future"):
        operator.types("replay", "basket", EVERYTHING, "--cut", '{"00": [999, "1-0"]}')
    assert {one["number"] for one in operator.asks("generations", EVERYTHING) if one["lake"]} == set()

    first, *_, done = operator.lines("replay", "basket", EVERYTHING, "--version-of-code", "cents")
    assert (first["what"], first["engine"]) == ("began", "fold")
    assert (done["what"], done["number"], done["rows"], done["state"]) == ("done", 2, 6, "whole")
    (found,) = operator.lines("diff", "basket", "2", "live", EVERYTHING, code=1)
    assert (found["compared"], found["equal"], found["differences"][0]["count"]) == (6, 0, 6)
    *_, done = operator.lines("replay", "trace_summary", EVERYTHING)
    assert (done["engine"], done["rows"]) == ("native", TRACES)

    promote(operator)
    then = operator.lines("state", "acme", "basket", "b1", "--version", "2", EVERYTHING)[0]["shop/basket"]
    assert (then["version"], then["state"]) == (2, {"sum": 300, "events": 2})

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


def promote(operator: Operator) -> None:
    """There, back, and gone."""
    with pytest.raises(Refused, match="promote asks first, and there is no terminal"):
        operator.types("promote", "basket", EVERYTHING)
    with workers():
        *_, done = operator.lines("promote", "basket", EVERYTHING, "--yes", "--patience", "60s")
        assert done == {"what": "promoted", "generation": 2, "before": 1}
        with pytest.raises(GenerationError, match="readers see generation 2"):
            operator.types("retire", "basket", "2", EVERYTHING, "--yes")
        (back,) = operator.lines("promote", "basket", "--back", EVERYTHING, "--yes")
        assert back == {"what": "taken back", "generation": 1, "before": 2}
    (gone,) = operator.lines("retire", "basket", "2", EVERYTHING, "--yes")
    assert gone == {"projection": "shop/basket", "retired": 2, "live_states": 6}
    there = {one["number"]: one for one in operator.asks("generations", "basket", EVERYTHING)}
    assert there[1]["live"]["state"] == "current"
    assert (there[2]["lake"]["state"], there[2]["live"]["state"]) == ("retired", "retired")


def audit(operator: Operator, page: Path) -> None:
    """What is whole, and then has lost a row."""
    (found,) = operator.lines("audit", "--report", str(page))
    assert (found["ok"], found["problems"]) == (True, 0)
    assert {one["name"]: one["looked"] for one in found["checks"]}["live"] == TRACES
    assert page.read_text().startswith("<!doctype html>")
    lake = operator.lake
    lake.spark.sql(f"DELETE FROM {lake.sql_name(SPANS)} WHERE tenant = 'globex' AND span_id LIKE '%1'")
    (found,) = operator.lines("audit", "--only", "spans", code=1)
    (check,) = found["checks"]
    assert [(one["kind"], one["count"]) for one in check["findings"]] == [("event in neither", 1)]
    shown, beside = operator.sees("audit", "--only", "spans", code=1)
    assert "1 × event in neither" in shown
    assert "1 differences" in shown
    assert "0 of 2, " in beside, "how far it is,"
    assert " a second" in beside, "and Spark with it"


def upkeep(operator: Operator, clickhouse: Path) -> None:
    """Maintained, served, and one tenant less."""
    kept = operator.lines("maintain", "--table", "events", "--table", "spans")
    assert [(one["table"], one["problems"]) for one in kept] == [("events", []), ("spans", [])]
    (loaded,) = operator.lines("load", "--directory", str(clickhouse))
    assert [(one["table"], one["rows"] > 0) for one in loaded["tables"]] == [
        ("lake_trace_summaries", True),
        ("lake_rollups", True),
    ]
    (erased,) = operator.lines("erase", "globex", "--yes")
    assert {one["table"]: one["rows"] for one in erased["tables"]}["events"] == 2 * TRACES
    assert not erased["remains"]


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
    (tried,) = operator.lines("requeue")
    assert (tried["tried"], tried["read"]) == (1, 0)
    (tried,) = operator.lines("requeue", UPCASTED)
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
