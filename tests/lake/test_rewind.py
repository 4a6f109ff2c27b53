"""A failover has lost what the lake has: the partition is left alone, and goes on when it was rewound."""

from __future__ import annotations

import asyncio
import json
from typing import Never

import pytest
from click.testing import CliRunner
from pyspark.sql.functions import expr, lit

from tests.conftest import Servers, emptied
from tests.lake.filling import everything, with_log
from tests.lake.rows import add_events
from tests.lake.shop import Shop, during
from toril import connect
from toril.aggregate import Aggregate
from toril.cli.careful import Refused
from toril.cli.main import cli
from toril.errors import InvalidValue
from toril.lake import replay as replaying
from toril.lake import rewind as rewinding
from toril.lake.archive import EventsStep
from toril.lake.errors import LakeError, OtherWriter, SourceDiverged
from toril.lake.fence import take_number
from toril.lake.files import files_of
from toril.lake.lake import Lake
from toril.lake.replay import replay
from toril.lake.rewind import LOST, rewind
from toril.lake.runs import RUNS, Runs
from toril.lake.source import tails
from toril.lake.spans import SpansStep
from toril.lake.storage import Files
from toril.lake.tables import EVENTS, QUARANTINE, SPANS
from toril.lake.travel import state_at

BASKETS = [f"b{number}" for number in range(12)]


def buy(url: str, price: int, *baskets: str) -> None:
    shop = Shop(url)

    async def go() -> None:
        for basket in baskets:
            await shop.buy(basket, price, price)

    during(shop, go)


async def taken(url: str) -> dict[bytes, bytes]:
    """All that a server has: what a replica has got so far."""
    async with connect(url) as redis:
        keys = await redis.command("KEYS", "*")
        return {key: await redis.command("DUMP", key) for key in keys}


async def failed_over(url: str, replica: dict[bytes, bytes]) -> None:
    """Nothing is there but what the replica had."""
    async with connect(url) as redis:
        await redis.command("FLUSHALL")
        for key, value in replica.items():
            await redis.command("RESTORE", key, 0, value)


def archived(lake: Lake, url: str) -> dict[str, LakeError]:
    """Archive all there is; what was left alone, and why."""
    step = EventsStep(url, until=tails(url, "log"))
    step.prepare(lake)
    try:
        while step.once(lake) is not None:
            pass
    finally:
        step.close(lake)
    return step.stopped


def places(lake: Lake, table: str) -> list[tuple[int, int, str]]:
    rows = lake.read(table).select("log_partition", "ordinal", "entry_id").collect()
    return sorted((row[0], row[1], row[2]) for row in rows)


def test_a_partition_that_a_failover_has_set_back_goes_on_after_a_rewind(
    servers: Servers, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = emptied(servers.get("valkey-standalone")).url
    buy(url, 5, *BASKETS)
    replica = asyncio.run(taken(url))
    buy(url, 7, "b3")
    assert archived(lake, url) == {}
    SpansStep().prepare(lake)
    lost = places(lake, EVENTS.name)
    subject = Shop(url).subjects["shop/basket"]
    with monkeypatch.context() as patch:
        patch.setattr(replaying, "states_of", _cut)
        with pytest.raises(_Cut):
            replay(lake, subject, url=url)
    asyncio.run(failed_over(url, replica))
    # The log is behind the lake, and then past it with other events: of neither a state is made.
    for bought in ((), BASKETS):
        buy(url, 9, *bought)
        for look in (
            lambda: replay(lake, Shop(url, worth=True).subjects["shop/worth"], url=url),
            lambda: state_at(lake, subject, Aggregate("acme", "basket", "b3"), url=url),
        ):
            with pytest.raises(SourceDiverged, match="has it up to .* `toril lake rewind"):
                look()
    ((name, problem),) = archived(lake, url).items()
    assert isinstance(problem, SourceDiverged)
    assert f"left alone until `toril lake rewind {name}` takes the lake back" in str(problem)
    others, archived_then = lake.last(EVENTS), places(lake, EVENTS.name)
    with pytest.raises(InvalidValue, match="one that the lake has events of: 00, 01, 02, 03"):
        rewind(lake, "77", url=url)
    sound = next(one for one in others.positions if one != name)
    with pytest.raises(LakeError, match=f"partition {sound} has lost nothing that the lake has"):
        rewind(lake, sound, url=url)
    with pytest.raises(InvalidValue, match="group 'staging' .*one of its readers: lake/archive"):
        rewind(lake, name, url=url, group="staging")
    runs = Runs(lake)
    run = runs.begin("run", {})
    with pytest.raises(LakeError, match=f"run {run.run} is under way"):
        rewind(lake, name, url=url)
    runs.end(run)
    assert lake.last(EVENTS) == others, "nothing was changed"
    with monkeypatch.context() as patch:  # it is cut off twice: before the second table is removed,
        patch.setattr(rewinding, "files_of", lambda lake: _CutOff(files_of(lake)))
        with pytest.raises(_Cut):
            rewind(lake, name, url=url)
    with monkeypatch.context() as patch:  # and before the rows are deleted
        patch.setattr(Lake, "recording", _cut)
        with pytest.raises(_Cut):
            rewind(lake, name, url=url)
    assert not lake.exists(QUARANTINE)
    assert lake.last(EVENTS) == others
    copy = rewinding._copy

    def erased_meanwhile(its: Lake, after: str) -> int:
        take_number(its, EVENTS.name, "erasure", apart=False)
        return copy(its, after)

    with monkeypatch.context() as patch:
        patch.setattr(rewinding, "_copy", erased_meanwhile)
        with pytest.raises(OtherWriter, match="has written batch"):
            rewind(lake, name, url=url)
    assert places(lake, EVENTS.name) == archived_then
    others = lake.last(EVENTS)
    command = ["lake", "rewind", name, "--url", url, "--lake", lake.path, "--json"]
    asked = CliRunner().invoke(cli, command)
    assert isinstance(asked.exception, Refused), "nobody can be asked, and nobody said --yes"
    assert lake.last(EVENTS) == others
    said = CliRunner().invoke(cli, [*command, "--yes"], catch_exceptions=False).stdout
    done = json.loads(said.splitlines()[-1])
    assert (done["partition"], done["lost"], done["removed"]) == (name, 2, [])
    assert not lake.exists(SPANS)
    last = int(done["to"].partition("@")[0])
    assert places(lake, LOST.name) == [place for place in lost if place[:2] in _after(name, last)]
    assert runs.last(1)[0].what == "rewind"
    assert archived(lake, url) == {}
    there = with_log(url, everything)
    assert places(lake, EVENTS.name) == sorted(
        (int(one.partition), one.ordinal, one.entry_id) for one in there
    )
    with pytest.raises(LakeError, match="has lost nothing"):
        rewind(lake, name, url=url)
    with pytest.raises(LakeError, match="generation 2 of shop/basket was begun on a history that is no more"):
        replay(lake, subject, url=url)


def test_a_rewind_is_refused_beside_a_run_however_long_ago_that_began(lake: Lake) -> None:
    """Upkeep was noted many times since; and of one that was killed elsewhere, only a person knows that."""
    add_events(lake, 1, 4, ["acme"])
    runs = Runs(lake)
    begun = runs.begin("run", {})
    others = lake.read(RUNS).withColumns({"what": lit("maintain"), "outcome": lit("done")})
    many = others.crossJoin(lake.spark.range(30)).withColumn("run", expr("concat('3', run, id)")).drop("id")
    many.withColumn("started_at", expr("started_at + 1")).write.format("delta").mode("append").save(
        lake.place(RUNS)
    )
    lake.spark.sql(f"UPDATE {lake.sql_name(RUNS)} SET host = 'elsewhere', pid = 1").collect()
    assert begun.run not in [one.run for one in runs.last()]
    with pytest.raises(LakeError, match=f"run {begun.run} is under way .process 1 on elsewhere.*--force"):
        rewind(lake, "77", url=None)
    command = ["lake", "rewind", "77", "--yes", "--lake", lake.path, "--json"]
    refused = CliRunner().invoke(cli, command)
    assert isinstance(refused.exception, LakeError)
    forced = CliRunner().invoke(cli, [*command, "--force"])
    assert isinstance(forced.exception, InvalidValue), "it went on, up to the next thing that is wrong"
    second, first = runs.last(2)
    assert (first.what, first.outcome, first.arguments["force"]) == ("rewind", "failed", False)
    assert (second.what, second.outcome, second.arguments["force"]) == ("rewind", "failed", True)
    assert "one that the lake has events of" in (second.problem or "")
    assert [one.run for one in runs.running()] == [begun.run]
    runs.end(begun)
    runs.begin("audit", {})
    with pytest.raises(InvalidValue, match="one that the lake has events of"):
        rewind(lake, "77", url=None)
    beside = runs.begin("requeue", {})
    with pytest.raises(LakeError, match=f"requeue {beside.run} is under way"):
        rewind(lake, "77", url=None)


def test_an_archive_whose_table_was_restored_goes_on_when_that_was_taken_back(
    servers: Servers, lake: Lake
) -> None:
    """What is gone from the table may have left the log already: it must not be looked past."""
    url = emptied(servers.get("valkey-standalone")).url
    for price in (5, 7):
        buy(url, price, "b1")
        assert archived(lake, url) == {}
    before = places(lake, EVENTS.name)
    lake.spark.sql(f"RESTORE TABLE {lake.sql_name(EVENTS)} TO VERSION AS OF 1").collect()
    buy(url, 9, "b1")
    with pytest.raises(LakeError, match="events was restored to version 1, where it had batch 1, and had ba"):
        archived(lake, url)
    assert len(places(lake, EVENTS.name)) < len(before), "and nothing was written to it"
    lake.spark.sql(f"RESTORE TABLE {lake.sql_name(EVENTS)} TO VERSION AS OF 2").collect()
    assert archived(lake, url) == {}
    assert len(places(lake, EVENTS.name)) == len(with_log(url, everything))


class _Cut(Exception):
    """The process has ended here."""


def _cut(*_: object, **__: object) -> Never:
    raise _Cut


class _CutOff:
    """Files of which one more is removed."""

    def __init__(self, files: Files) -> None:
        self._files: Files | None = files

    def remove(self, name: str) -> None:
        if self._files is None:
            raise _Cut
        self._files.remove(name)
        self._files = None


def _after(name: str, ordinal: int) -> set[tuple[int, int]]:
    return {(int(name), ordinal + 1), (int(name), ordinal + 2)}
