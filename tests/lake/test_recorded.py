"""Commands on a lake are runs: noted when they begin and when they end, however they end."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.conftest import Servers, emptied
from tests.lake.shop import Shop, archive, during
from toril.cli.careful import Refused
from toril.cli.main import cli
from toril.errors import InvalidValue
from toril.lake.audit import Audit
from toril.lake.audit import audit as look_through
from toril.lake.errors import LakeError
from toril.lake.lake import Lake
from toril.lake.replay import replay
from toril.lake.runs import RUNS, Runs


def test_all_that_changes_something_and_all_that_proves_something_is_recorded(
    servers: Servers, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = emptied(servers.get("valkey-standalone")).url
    program = ModuleType("shop_of_a_test")
    monkeypatch.setitem(sys.modules, program.__name__, program)
    runs = Runs(lake)

    def ask(*command: str) -> Result:
        program.sourcing = Shop(url, both=True).sourcing  # type: ignore[attr-defined]
        return CliRunner().invoke(cli, ["lake", *command, "--lake", lake.path, "--json"])

    def of_basket(command: str, *more: str) -> Result:
        return ask(command, "basket", *more, "--program", f"{program.__name__}:sourcing")

    shop = Shop(url, both=True)
    during(shop, lambda: shop.buy("b1", 1, 2))
    archive(lake, url)
    replay(lake, shop.subjects["shop/basket"], url=url)

    same = of_basket("diff", "2", "2")
    assert same.exit_code == 0, same.output
    assert isinstance(of_basket("promote", "2").exception, Refused), "it asks, and nobody can answer"
    assert isinstance(of_basket("retire", "7", "--yes").exception, InvalidValue)

    def looking(its: Lake, **how: Any) -> Audit:
        assert [one.what for one in Runs(its).running()] == ["audit"]
        return look_through(its, **how)

    def failing(*_: object, run: str) -> None:
        assert [one.run for one in Runs(lake).running()] == [run]
        raise LakeError("acme cannot be erased just now")

    monkeypatch.setattr("toril.cli.lake.audit.look_through", looking)
    looked = ask("audit", "--no-log", "--only", "versions")
    assert looked.exit_code == 0, looked.output
    monkeypatch.setattr("toril.cli.lake.erase.erase_from", failing)
    assert isinstance(ask("erase", "acme", "--yes").exception, LakeError)

    erased, audited, compared = runs.last()
    assert [(one.what, one.outcome) for one in (compared, audited)] == [("diff", "done"), ("audit", "done")]
    assert (erased.what, erased.outcome) == ("erase", "failed")
    assert (erased.arguments, erased.problem) == ({}, "… cannot be erased just now")
    assert (compared.arguments["one"], compared.rows) == (2, {"compared": 1, "equal": 1})
    assert audited.rows == {"versions": 1}
    assert all(one.ended_at is not None and one.ended_at > one.started_at for one in runs.last())


def test_the_end_of_a_run_that_was_killed_elsewhere_can_be_noted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(lake)
    with pytest.raises(InvalidValue, match="the name of a run of this lake"):
        runs.note_ended("20261116-080000-abcdef")
    here = runs.begin("replay", {})
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    killed = runs.begin("replay", {})
    monkeypatch.undo()
    assert {one.run for one in runs.running()} == {here.run, killed.run}
    done = CliRunner().invoke(cli, ["lake", "runs", "--ended", killed.run, "--lake", lake.path, "--json"])
    assert done.exit_code == 0, done.output
    assert [one.run for one in runs.running()] == [here.run]
    assert [(one.run, one.outcome) for one in runs.last()] == [(killed.run, "stopped"), (here.run, "running")]
    for run, why in ((killed.run, "one that has not ended; this one is stopped"), (here.run, "still there")):
        with pytest.raises(InvalidValue, match=why):
            runs.note_ended(run)


def test_a_run_ends_as_what_it_was(lake: Lake) -> None:
    """Stopped, failed, or as it says itself; and there is no trace of one that was erased meanwhile."""
    runs = Runs(lake)
    with runs.recorded("erase", {}, if_there=True) as one:
        one.rows["events"] = 3
    assert not lake.exists(RUNS), "a lake that is none does not become one"
    for problem in (KeyboardInterrupt(), asyncio.CancelledError()):
        with pytest.raises(type(problem)), runs.recorded("load", {}):
            raise problem
    with runs.recorded("audit", {}) as one:
        one.outcome, one.problem = "failed", "2 differences"
    with runs.recorded("replay", {"tenant": "acme"}):
        lake.spark.sql(f"DELETE FROM {lake.sql_name(RUNS)} WHERE what = 'replay'").collect()
    assert [(one.what, one.outcome, one.problem) for one in runs.last()] == [
        ("audit", "failed", "2 differences"),
        ("load", "stopped", None),
        ("load", "stopped", None),
    ]
